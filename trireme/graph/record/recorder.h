// SPDX-License-Identifier: Apache-2.0
// Writes operators into a graph as they are called: a boxed kernel above autograd that this
// thread's operators pass while a recorder records, so that composite ones arrive whole.
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

/// Of one thread, and one at a time there.
class Recorder {
 public:
  /// @param replicated of what stands in for tensors.
  Recorder(Graph& graph, const Layout& replicated);
  ~Recorder() = default;
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;
  Recorder(Recorder&&) = delete;
  Recorder& operator=(Recorder&&) = delete;

  /// Adds a value that is there before the first operator.
  ValueId add(const at::Tensor& tensor, ValueKind kind, std::vector<std::string> names);

  /// As long as it lives, operators are recorded. For one forward pass.
  class Recording {
   public:
    explicit Recording(Recorder& recorder);
    ~Recording();
    Recording(const Recording&) = delete;
    Recording& operator=(const Recording&) = delete;
    Recording(Recording&&) = delete;
    Recording& operator=(Recording&&) = delete;

   private:
    c10::impl::IncludeDispatchKeyGuard include_;
  };

  /// The one that records on this thread; null where none does.
  static Recorder* of_thread() noexcept;

  /// Names the place that forward has come to.
  void mark(const at::Tensor& tensor, std::string_view name);

  /// What forward returned.
  void finish(const std::vector<at::Tensor>& results);

  /// The operator that is running, as long as one is.
  int current_node() const noexcept { return graph_->num_nodes(); }
  void notice_random() noexcept { is_random_ = true; }
  void add_flops(double flops) noexcept { flops_ += flops; }

  /// `, after aten::addmm of module layer (operator 3)`, the last operator so far that was given a
  /// parameter or buffer; empty before the first.
  std::string after() const;

  /// Whose autograd node has the number; -1 where it is none's.
  int node_of_sequence(std::uint64_t number) const;

  /// The value that took the memory of a tensor with values; kNoValue where none did.
  ValueId value_of_memory(const void* memory) const;

  /// The recorded call that made a value; -1 where none did.
  int call_of(ValueId value) const { return call_.at(static_cast<std::size_t>(value)); }

  void record(const c10::OperatorHandle& op, c10::DispatchKeySet below, torch::jit::Stack& stack);

 private:
  struct Known {
    // Weak: LibTorch copies a new tensor that someone else holds, and values are not to live
    // longer here. The address is not used again as long as it is held.
    c10::weak_intrusive_ptr<c10::TensorImpl> tensor;
    ValueId value;
  };

  struct Call {
    const c10::OperatorHandle& op;
    std::vector<c10::IValue> arguments;
    Node node;
    bool has_stand_ins = false;  // among its tensors
  };

  struct Memory {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;  // as above
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
  // By what views are views of, where the graph has no value of that: the first of them.
  std::unordered_map<const c10::TensorImpl*, Known> bases_;
  std::unordered_map<const void*, Memory> memories_;  // of tensors that have values
  std::vector<int> call_;                             // by value
  std::vector<bool> depends_on_random_;               // by value; of tensors that have values
  std::vector<std::uint64_t> sequence_;               // by node, where its autograd nodes begin
  std::uint64_t last_sequence_ = 0;
  TensorUses uses_;
  std::string last_place_;  // the last operator on a tensor of the module, in words
  bool is_random_ = false;
  double flops_ = 0;
};

}  // namespace trireme::graph::detail
