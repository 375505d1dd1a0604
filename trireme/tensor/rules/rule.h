// SPDX-License-Identifier: Apache-2.0
// What a rule is: for one operator, the layouts under which every rank's local call gives its part
// of the result.
//
// A rule speaks of one axis of a mesh; the dispatcher applies it to each axis. The executor, the
// planner, the simulator and the documentation read the same table (rule_table.h). How to write
// one: docs/guide/rules.md.
#pragma once

#include <trireme/mesh/collective_cost.h>
#include <trireme/mesh/device_mesh.h>
#include <trireme/tensor/layout.h>

#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/stack.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace c10 {
class OperatorHandle;
}

namespace trireme::tensor {

/// A call of an operator as a rule sees it: shapes, dtypes and arguments, no values.
class Call {
 public:
  Call(const c10::FunctionSchema& schema, std::vector<c10::IValue> arguments,
       std::vector<at::Tensor> inputs, std::vector<int> argument_of_input);

  const c10::FunctionSchema& schema() const noexcept { return *schema_; }
  /// The operator's name without its overload, such as `aten::add`.
  const std::string& name() const noexcept { return schema_->name(); }

  /// The arguments by position, defaults included. Tensors among them are meta tensors.
  const c10::IValue& argument(int position) const {
    return arguments_[static_cast<std::size_t>(position)];
  }
  int num_arguments() const noexcept { return static_cast<int>(arguments_.size()); }
  /// Position of the argument of that name; -1 where the schema has none.
  int position(std::string_view argument_name) const;

  std::int64_t integer(int position) const { return argument(position).toInt(); }
  bool boolean(int position) const { return argument(position).toBool(); }
  std::vector<std::int64_t> integers(int position) const {
    return argument(position).toIntVector();
  }
  bool is_none(int position) const { return argument(position).isNone(); }

  /// Every defined tensor among the arguments, lists element by element, in order, as meta tensors
  /// of the global shape; those given as `out=` are not inputs.
  c10::ArrayRef<at::Tensor> inputs() const noexcept { return inputs_; }
  const at::Tensor& input(int index) const { return inputs_[static_cast<std::size_t>(index)]; }
  int num_inputs() const noexcept { return static_cast<int>(inputs_.size()); }
  /// Which argument an input is, or is an element of.
  int argument_of(int input) const { return argument_of_input_[static_cast<std::size_t>(input)]; }
  /// The first input that comes from that argument; -1 where it is not given.
  int input_of(int position) const;

  /// Every tensor returned, lists element by element, as meta tensors of the global shape;
  /// undefined ones where nothing is returned. Empty where the rule has `shape_from_local`.
  c10::ArrayRef<at::Tensor> outputs() const noexcept { return outputs_; }
  const at::Tensor& output(int index) const { return outputs_[static_cast<std::size_t>(index)]; }
  int num_outputs() const noexcept { return static_cast<int>(outputs_.size()); }
  void set_outputs(std::vector<at::Tensor> outputs) { outputs_ = std::move(outputs); }

  /// Whether the call writes into its first argument and returns it.
  bool is_in_place() const noexcept;

  /// All arguments, to run the call on meta tensors.
  const std::vector<c10::IValue>& arguments() const noexcept { return arguments_; }

 private:
  const c10::FunctionSchema* schema_;
  std::vector<c10::IValue> arguments_;
  std::vector<at::Tensor> inputs_;
  std::vector<int> argument_of_input_;
  std::vector<at::Tensor> outputs_;
};

class LocalCall;
/// Does the local part of a call instead of the operator itself.
using LocalKernel = void (*)(LocalCall& call);

/// Placements along one axis under which the local call is right: one an input, and one an output,
/// or a single one that all outputs share.
struct Strategy {
  c10::SmallVector<Placement, 4> inputs;
  c10::SmallVector<Placement, 2> outputs;
  /// Null: the operator itself runs on the local tensors. Where several axes chose strategies, any
  /// of them with a kernel makes the kernel run, once; it looks at the layouts of all axes.
  LocalKernel kernel = nullptr;
  /// Of an operator that returns a view: the kernel moves data between ranks, and what it gives is
  /// a copy, as where a view has to be gathered.
  bool is_copy = false;
};

/// One axis of a call's mesh.
struct AxisCall {
  const Call& call;
  std::int64_t ranks;  ///< along this axis
  /// For each input and dim how many parts all axes together make of it, this one included.
  std::int64_t parts(int input, std::int64_t dim) const;
  c10::ArrayRef<Layout> layouts;  ///< of the inputs as they are
  int axis;
};

/// A call about to run on local tensors.
class LocalCall {
 public:
  LocalCall(const c10::OperatorHandle& op, torch::jit::Stack& stack, const Call* call,
            c10::ArrayRef<Layout> inputs, c10::ArrayRef<Layout> outputs,
            c10::ArrayRef<c10::IntArrayRef> input_sizes,
            c10::ArrayRef<c10::IntArrayRef> output_sizes);

  /// Local value of the argument at that position of the schema.
  c10::IValue& argument(int position);
  const at::Tensor& tensor(int position) { return argument(position).toTensor(); }
  bool has_tensor(int position);

  /// The call in global shapes. Values of Scalar arguments in it are those of the first such call:
  /// read them with argument().
  const Call& call() const { return *call_; }
  const c10::OperatorHandle& op() const { return op_; }

  /// Layouts that inputs have now, and that outputs are to have.
  const Layout& input_layout(int input) const { return inputs_[static_cast<std::size_t>(input)]; }
  const Layout& output_layout(int output) const {
    return outputs_[static_cast<std::size_t>(output)];
  }
  /// Global sizes.
  c10::IntArrayRef input_sizes(int input) const {
    return input_sizes_[static_cast<std::size_t>(input)];
  }
  c10::IntArrayRef output_sizes(int output) const {
    return output_sizes_[static_cast<std::size_t>(output)];
  }

  /// Runs the operator itself on what the stack holds.
  void call_operator();

  /// A value returned, once the operator was called or results were given.
  c10::IValue& result(int position);

  /// Replaces the arguments by the results.
  void give(std::vector<c10::IValue> results);

 private:
  const c10::OperatorHandle& op_;
  torch::jit::Stack& stack_;
  const Call* call_;
  c10::ArrayRef<Layout> inputs_, outputs_;
  c10::ArrayRef<c10::IntArrayRef> input_sizes_, output_sizes_;
};

/// A collective along one axis of a mesh.
struct Exchange {
  Collective collective;
  int axis;
  double bytes_sent;  ///< by one rank
  double seconds;     ///< estimated
};

/// A call whose layouts are decided, before it runs on the rank at `coordinate`.
struct DecidedCall {
  const Call& call;
  c10::ArrayRef<Layout> inputs, outputs;
  c10::IntArrayRef coordinate;
};

/// What is known of an operator. Only `strategies` must be given.
struct Rule {
  /// The strategies of a call along one axis, appended to the list. Among equally cheap ones the
  /// first counts. Replicate everywhere is acceptable for any operator and need not be listed,
  /// unless `lists_all`.
  std::function<void(const AxisCall&, std::vector<Strategy>&)> strategies;

  /// Non-tensor arguments that differ on local tensors, such as the sizes of a view: position and
  /// value. Given the coordinates that this rank has in the output's mesh.
  std::function<void(const Call&, c10::ArrayRef<Layout> outputs, c10::IntArrayRef coordinate,
                     std::vector<std::pair<int, c10::IValue>>&)>
      local_arguments = nullptr;

  /// Global outputs as meta tensors, where LibTorch has no meta kernel for the operator.
  std::function<std::vector<at::Tensor>(const Call&)> shapes = nullptr;

  /// Floating-point operations of the whole call; without it, the elements of inputs and outputs,
  /// and 0 for views and for operators that only move or set numbers.
  std::function<double(const Call&)> flops = nullptr;

  /// The shape of the result depends on values (nonzero) or the result is no tensor (item):
  /// outputs are Replicate, and have the local result's shape.
  bool shape_from_local = false;

  /// Lists go element by element: element i of every list belongs together, and its layouts do not
  /// depend on other elements (foreach operators). `strategies` sees a call with one element a
  /// list.
  bool elementwise_lists = false;

  /// Values of Scalar and float arguments change the strategies (the p of a norm).
  bool scalars_matter = false;

  /// `strategies` lists all there are: replicate everywhere counts only where it is listed. For
  /// operators with an input that means something under one layout alone, such as a workspace.
  bool lists_all = false;

  /// Runs always instead of the operator, even where everything is replicated (random numbers).
  LocalKernel kernel = nullptr;

  /// The collectives that the rule's kernels do in a call, appended to the list in their order, for
  /// those who plan it. Without it they do none.
  std::function<void(const DecidedCall&, std::vector<Exchange>&)> exchanges = nullptr;

  /// The family that the operator belongs to, for the list of covered operators.
  const char* family = "";
};

}  // namespace trireme::tensor
