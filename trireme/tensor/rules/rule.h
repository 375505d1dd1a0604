// SPDX-License-Identifier: Apache-2.0
// Rules: for one operator, the layouts under which the local call of every rank computes its part
// of the result.
//
// A rule describes one axis of a mesh, and is applied to each axis. The dispatcher, `explain`, the
// planner and the documentation read the same table of rules (rule_table.h). Guide to writing one:
// docs/guide/rules.md.
#pragma once

#include <trireme/cluster/collective_cost.h>
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

/// A call of an operator as a rule sees it: shapes, dtypes and arguments without the values of
/// tensors.
class Call {
 public:
  /// @param argument_of_input for each input the position of its argument.
  Call(const c10::FunctionSchema& schema, std::vector<c10::IValue> arguments,
       std::vector<at::Tensor> inputs, std::vector<int> argument_of_input);

  /// Returns the schema of the operator.
  const c10::FunctionSchema& schema() const noexcept { return *schema_; }
  /// The operator's name without its overload, such as `aten::add`.
  const std::string& name() const noexcept { return schema_->name(); }

  /// Returns an argument by position; defaults are filled in. Tensors in it are meta tensors.
  const c10::IValue& argument(int position) const {
    return arguments_[static_cast<std::size_t>(position)];
  }
  /// Returns the number of arguments of the schema.
  int num_arguments() const noexcept { return static_cast<int>(arguments_.size()); }
  /// Returns the position of the argument of that name; -1 if the schema has none.
  int position(std::string_view argument_name) const;

  /// Returns an argument that is an int.
  std::int64_t integer(int position) const { return argument(position).toInt(); }
  /// Returns an argument that is a bool.
  bool boolean(int position) const { return argument(position).toBool(); }
  /// Returns an argument that is a list of ints.
  std::vector<std::int64_t> integers(int position) const {
    return argument(position).toIntVector();
  }
  /// Returns true if an optional argument was not given.
  bool is_none(int position) const { return argument(position).isNone(); }

  /// Returns every defined tensor among the arguments in order, lists element by element, as meta
  /// tensors of the global shape. Tensors given as `out=` are not inputs.
  c10::ArrayRef<at::Tensor> inputs() const noexcept { return inputs_; }
  const at::Tensor& input(int index) const { return inputs_[static_cast<std::size_t>(index)]; }
  int num_inputs() const noexcept { return static_cast<int>(inputs_.size()); }
  /// Returns the position of the argument that an input is, or is an element of.
  int argument_of(int input) const { return argument_of_input_[static_cast<std::size_t>(input)]; }
  /// Returns the first input that comes from the argument at `position`; -1 if it is not given.
  int input_of(int position) const;

  /// Returns every returned tensor, lists element by element, as meta tensors of the global shape.
  /// A tensor that is not returned is undefined. Empty for a rule with `shape_from_local`.
  c10::ArrayRef<at::Tensor> outputs() const noexcept { return outputs_; }
  const at::Tensor& output(int index) const { return outputs_[static_cast<std::size_t>(index)]; }
  int num_outputs() const noexcept { return static_cast<int>(outputs_.size()); }
  /// Sets the outputs, once their shapes are known.
  void set_outputs(std::vector<at::Tensor> outputs) { outputs_ = std::move(outputs); }

  /// Returns true if the call writes into its first argument.
  bool is_in_place() const noexcept;

  /// Returns all arguments, with which the call can be run on meta tensors.
  const std::vector<c10::IValue>& arguments() const noexcept { return arguments_; }

 private:
  const c10::FunctionSchema* schema_;
  std::vector<c10::IValue> arguments_;
  std::vector<at::Tensor> inputs_;
  std::vector<int> argument_of_input_;
  std::vector<at::Tensor> outputs_;
};

class LocalCall;
/// A function that runs instead of the operator on local tensors.
using LocalKernel = void (*)(LocalCall& call);

/// Placements along one axis under which the local call is right: one for each input, and one for
/// each output or a single one for all outputs.
struct Strategy {
  c10::SmallVector<Placement, 4> inputs;   ///< one for each tensor among the arguments
  c10::SmallVector<Placement, 2> outputs;  ///< one for each result, or one for all
  /// Null if the operator itself runs on the local tensors. If several axes chose strategies and
  /// one of them has a kernel, the kernel runs once and looks at the layouts of all axes.
  LocalKernel kernel = nullptr;
  /// The kernel moves data between ranks. If other axes chose other kernels, this one runs. The
  /// result of an operator that returns a view is then a copy that must not be written to.
  bool is_copy = false;
  /// Estimated seconds of the kernel's messages, and of bringing its results where they are needed.
  /// Added to the cost of redistributing the inputs.
  double seconds = 0;
  /// Chosen before all strategies that are not, whatever they cost. An input that is
  /// moved to another dim for it keeps the new layout, since what follows will prefer the same.
  bool is_preferred = false;
};

/// A call and one axis of its mesh.
struct AxisCall {
  const Call& call;    ///< the call, in global shapes
  std::int64_t ranks;  ///< number of ranks along this axis
  /// Returns the number of parts that all axes together make of a dim of an input, if this axis
  /// shards it too.
  std::int64_t parts(int input, std::int64_t dim) const;
  c10::ArrayRef<Layout> layouts;  ///< layouts of the inputs; axes before this one have chosen
  int axis;                       ///< number of the axis in the mesh
};

/// A call that is about to run on local tensors, as a kernel sees it.
class LocalCall {
 public:
  /// @param op the operator.
  /// @param stack its arguments, with local tensors; gets the results.
  /// @param call the call in global shapes; null where no rule asks for it.
  /// @param inputs layouts of the inputs.
  /// @param outputs layouts of the results.
  /// @param input_sizes global sizes of the inputs.
  /// @param output_sizes global sizes of the results.
  LocalCall(const c10::OperatorHandle& op, torch::jit::Stack& stack, const Call* call,
            c10::ArrayRef<Layout> inputs, c10::ArrayRef<Layout> outputs,
            c10::ArrayRef<c10::IntArrayRef> input_sizes,
            c10::ArrayRef<c10::IntArrayRef> output_sizes);

  /// Returns the local value of the argument at that position of the schema. It may be changed.
  c10::IValue& argument(int position);
  /// Returns the local tensor of an argument.
  const at::Tensor& tensor(int position) { return argument(position).toTensor(); }
  /// Returns true if the argument is a defined tensor.
  bool has_tensor(int position);

  /// Returns the call in global shapes. Its Scalar arguments have the values of the first call of
  /// this kind: read the values of this call with argument().
  const Call& call() const { return *call_; }
  const c10::OperatorHandle& op() const { return op_; }

  /// Returns the layout that an input has now.
  const Layout& input_layout(int input) const { return inputs_[static_cast<std::size_t>(input)]; }
  /// Returns the layout that an output shall have.
  const Layout& output_layout(int output) const {
    return outputs_[static_cast<std::size_t>(output)];
  }
  /// Returns the global sizes of an input.
  c10::IntArrayRef input_sizes(int input) const {
    return input_sizes_[static_cast<std::size_t>(input)];
  }
  /// Returns the global sizes of an output.
  c10::IntArrayRef output_sizes(int output) const {
    return output_sizes_[static_cast<std::size_t>(output)];
  }

  /// Runs the operator itself on the arguments as they are now.
  void call_operator();

  /// Returns a returned value, after call_operator() or give().
  c10::IValue& result(int position);

  /// Replaces the arguments by the results and so ends the call.
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
  Collective collective;  ///< what the ranks along the axis do
  int axis;               ///< number of the axis in the mesh
  double bytes_sent;      ///< by one rank
  double seconds;         ///< estimated
  /// Begins with computing a first part, and then goes on while the call computes other parts.
  bool overlaps = false;
  const char* reason = nullptr;  ///< what it is for, shown by `explain`; null: the input's layout
};

/// A call whose layouts are decided, before it runs on the rank at `coordinate`.
struct DecidedCall {
  const Call& call;               ///< the call, in global shapes
  c10::ArrayRef<Layout> inputs;   ///< the layouts of inputs that were decided
  c10::ArrayRef<Layout> outputs;  ///< the layouts of results that were decided
  c10::IntArrayRef coordinate;    ///< of the rank in the mesh
  LocalKernel kernel;             ///< the kernel that runs; null: the operator itself
};

/// What is known of an operator. Only `strategies` is required.
struct Rule {
  /// Appends the strategies of a call along one axis. Of equally cheap strategies the first is
  /// taken. Replicating everything works for any operator and need not be listed, unless
  /// `lists_all`.
  std::function<void(const AxisCall&, std::vector<Strategy>&)> strategies;

  /// Appends the non-tensor arguments that differ on local tensors, such as the sizes of a view, as
  /// pairs of position and value. `coordinate` is that of this rank in the mesh of the outputs.
  std::function<void(const Call&, c10::ArrayRef<Layout> outputs, c10::IntArrayRef coordinate,
                     std::vector<std::pair<int, c10::IValue>>&)>
      local_arguments = nullptr;

  /// Returns the global outputs as meta tensors, where LibTorch has no meta kernel for the
  /// operator.
  std::function<std::vector<at::Tensor>(const Call&)> shapes = nullptr;

  /// Returns the floating-point operations of the whole call. The default is the number of elements
  /// of inputs and outputs, and 0 for views and for operators that only move or set numbers.
  std::function<double(const Call&)> flops = nullptr;

  /// The shape of the result depends on values (nonzero), or the result is no tensor (item).
  /// Outputs are Replicate and have the shape of the local result.
  bool shape_from_local = false;

  /// Lists are processed element by element (foreach operators): the elements i of all lists belong
  /// together, and their layouts do not depend on other elements. `strategies` gets a call whose
  /// lists have one element.
  bool elementwise_lists = false;

  /// The values of Scalar and float arguments change the strategies, as the p of a norm does.
  bool scalars_matter = false;

  /// Replicating everything is only allowed where `strategies` lists it. For operators with an
  /// input that is valid under one layout alone, such as a workspace.
  bool lists_all = false;

  /// The strategies ask for shards of inputs that are whole, on a mesh with an axis along which
  /// sequences or rows begin to be sharded (dim_to_begin()).
  bool begins_shards = false;

  /// Always runs instead of the operator, also where everything is replicated (random numbers).
  LocalKernel kernel = nullptr;

  /// Appends the collectives that the rule's kernels make in a call, in their order. `explain` and
  /// planning read them. Without it the kernels make none.
  std::function<void(const DecidedCall&, std::vector<Exchange>&)> exchanges = nullptr;

  /// Returns the work of the rank that does most, as a multiple of the mean of the ranks that share
  /// the work. Without it the work is equal.
  std::function<double(const DecidedCall&)> imbalance = nullptr;

  /// The family that the operator belongs to, for the list of covered operators.
  const char* family = "";
};

}  // namespace trireme::tensor
