// SPDX-License-Identifier: Apache-2.0
// Records operators in a graph as they are called: a boxed kernel above autograd that the operators
// of a thread pass while it records. Composite operators therefore arrive whole.
#pragma once

#include <trireme/graph/graph.h>
#include <trireme/graph/tensor_uses.h>
#include <trireme/tensor/layout.h>

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace trireme::graph::detail {

/// Records one forward pass. To be used on one thread, where only one recorder may record at a
/// time.
class Recorder {
 public:
  /// @param graph the graph to add to; its modules must be set.
  /// @param replicated layout of the tensors that stand for others.
  Recorder(Graph& graph, const Layout& replicated);
  ~Recorder() = default;
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  /// Adds a value that exists before the first operator.
  ValueId add(const at::Tensor& tensor, ValueKind kind, std::vector<std::string> names);

  /// Records the operators of this thread while it lives.
  class Recording {
   public:
    explicit Recording(Recorder& recorder);
    ~Recording();
    Recording(const Recording&) = delete;
    Recording& operator=(const Recording&) = delete;

   private:
    c10::impl::IncludeDispatchKeyGuard include_;
  };

  /// Returns the recorder that records on this thread; null if none does.
  static Recorder* of_thread() noexcept;

  /// Names the current place in forward.
  void mark(const at::Tensor& tensor, std::string_view name);

  /// Sets the results of the graph and checks the end of forward.
  void finish(const std::vector<at::Tensor>& results);

  /// Returns the operator that is running. Only valid while an operator runs.
  int current_node() const noexcept { return graph_->num_nodes(); }
  /// Notes that the running operator draws random numbers.
  void notice_random() noexcept { is_random_ = true; }
  /// Adds FLOPs to the running operator.
  void add_flops(double flops) noexcept { flops_ += flops; }

  /// Returns text for messages such as `, after aten::addmm of module layer (operator 3)`. It names
  /// the last operator on a parameter or buffer; empty before the first.
  std::string after() const;

  /// Returns the operator whose autograd node has that sequence number; -1 if there is none.
  int node_of_sequence(std::uint64_t number) const;

  /// Returns the value in whose memory a tensor with values lies; kNoValue if there is none.
  ValueId value_of_memory(const void* memory) const;

  /// Returns the call of the dry run that made a value; -1 if none did.
  int call_of(ValueId value) const { return call_.at(static_cast<std::size_t>(value)); }

  /// Records one call and runs it with the keys `below`.
  void record(const c10::OperatorHandle& op, c10::DispatchKeySet below, torch::jit::Stack& stack);

 private:
  // A tensor that has a value.
  struct Known {
    // Weak, because LibTorch copies a new tensor that has another owner, and because values must
    // not live longer here. The address is not reused while the weak pointer exists.
    c10::weak_intrusive_ptr<c10::TensorImpl> tensor;
    ValueId value;
  };

  // A call that is being recorded.
  struct Call {
    const c10::OperatorHandle& op;
    std::vector<c10::IValue> arguments;
    Node node;
    bool has_stand_ins = false;  // one of its tensors has no values
  };

  // Memory of a tensor with values.
  struct Memory {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;  // weak for the same reasons
    ValueId value;
  };

  ValueId find(const at::Tensor& tensor) const;
  ValueId add_value(const at::Tensor& tensor, Value value);
  ValueId add_result(const at::Tensor& tensor, const Call& call, Value value);
  bool is_unwritten(ValueId id) const;
  void make_constant(ValueId id, const at::Tensor& tensor);
  ValueId value_of_argument(const at::Tensor& tensor, const Call& call);
  ValueId value_of_output(const at::Tensor& tensor, Call& call);
  void place_in_memory(const at::Tensor& tensor, const Call& call, Value& value);
  void read_arguments(Call& call);
  void check_arguments(const Call& call);
  void run(Call& call, c10::DispatchKeySet below, torch::jit::Stack& stack);
  void read_writes(Call& call);
  void read_outputs(Call& call, const torch::jit::Stack& stack);
  void stand_in(const at::Tensor& tensor) const;
  void check_sequence(const std::string& where) const;
  std::string where(const Call& call) const;
  [[noreturn]] void refuse_failed(const Call& call, std::string_view what) const;

  Graph* graph_;
  Layout replicated_;
  std::unordered_map<const c10::TensorImpl*, Known> known_;
  // For bases without a value of their own: the first view of each.
  std::unordered_map<const c10::TensorImpl*, Known> bases_;
  std::unordered_map<const void*, Memory> memories_;  // by storage, of tensors with values
  std::vector<int> call_;                             // by value
  std::vector<bool> depends_on_random_;               // by value, for tensors with values
  std::vector<std::uint64_t> sequence_;               // by node: its first autograd sequence number
  std::uint64_t last_sequence_ = 0;
  TensorUses uses_;
  std::string last_place_;  // description of the last operator on a tensor of the module
  bool is_random_ = false;
  double flops_ = 0;
};

}  // namespace trireme::graph::detail
