// SPDX-License-Identifier: Apache-2.0
// Graph: the forward pass and loss of a module as a list of operators in the order in which they
// ran. It records inputs, outputs, module and cost of each operator. How it is made and used:
// docs/design/capture.md.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <c10/core/ScalarType.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace trireme::graph {

/// An index into Graph::values.
using ValueId = int;
/// Stands for an undefined tensor.
inline constexpr ValueId kNoValue = -1;

/// Where a value comes from.
enum class ValueKind { kInput, kParameter, kBuffer, kConstant, kResult };

/// A tensor between two writes to it. An operator that writes to a tensor makes a new value of it.
struct Value {
  ValueKind kind = ValueKind::kResult;  ///< where it comes from
  /// The name of a parameter or buffer in the module. For other values a description for messages:
  /// `input 1`, `constant 0`, `result of aten::relu (operator 12)`.
  std::string name;
  /// All names of a parameter or buffer; several if modules share it. Empty for other values.
  std::vector<std::string> names;
  std::vector<std::int64_t> sizes;
  std::vector<std::int64_t> strides;
  at::ScalarType dtype = at::kFloat;
  bool requires_grad = false;
  int node = -1;  ///< operator that made it or wrote to it; -1 if it existed before forward
  /// The first value of the same tensor; its own id if nothing has written to it.
  ValueId object = kNoValue;
  /// The first value in the same memory. A view and its base have the same.
  ValueId memory = kNoValue;
  /// The nearest value that it is a view of; kNoValue if it is no view.
  ValueId view_of = kNoValue;
  /// True if backward reads it, so that its memory is kept until then.
  bool is_saved = false;
  /// The tensor of a constant, whose values never change; undefined for other values.
  at::Tensor constant;

  /// Returns the size in bytes, from sizes and dtype.
  std::int64_t bytes() const;
};

/// A write of an operator to a tensor: the values before and after it.
struct Write {
  ValueId before = kNoValue;  ///< the value that is overwritten
  ValueId after = kNoValue;   ///< the value that the write makes
};

/// The settings of LibTorch's autocast; index 0 is the CPU, index 1 CUDA.
struct AutocastState {
  std::array<bool, 2> is_enabled = {};       ///< whether operators of the device are cast
  std::array<at::ScalarType, 2> dtype = {};  ///< the dtype that they are cast to
  /// True if casts of parameters are cached within an autocast region.
  bool keeps_casts = true;

  bool operator==(const AutocastState&) const = default;
  /// Returns whether autocast is enabled for a device.
  bool is_any_enabled() const noexcept { return is_enabled[0] || is_enabled[1]; }

  /// Returns the settings of this thread.
  static AutocastState now();
  /// Applies the settings to this thread.
  void set() const;
};

/// One operator that the code of the modules called. Composite operators are recorded whole.
struct Node {
  /// Makes a call of an operator, without arguments so far.
  explicit Node(const c10::OperatorHandle& its_op) : op(its_op) {}

  c10::OperatorHandle op;  ///< the operator in LibTorch's dispatcher
  /// The arguments without tensors: None and empty lists are in their places.
  std::vector<c10::IValue> arguments;
  /// For each argument the tensors in it: one, or the elements of a list.
  std::vector<std::vector<ValueId>> inputs;
  /// Every returned tensor, lists element by element. A returned argument has the value that it
  /// had, or the value after the write.
  std::vector<ValueId> outputs;
  /// The writes that the schema declares, and those to running statistics of norms in training.
  std::vector<Write> writes;
  /// Path of the module whose code called it; empty for the outermost module and code around it.
  std::string module;
  bool grad_mode = true;      ///< gradients were enabled
  AutocastState autocast;     ///< autocast as it was set
  bool is_random = false;     ///< draws random numbers
  double flops = 0;           ///< FLOPs of forward
  double backward_flops = 0;  ///< FLOPs of its part of backward
  std::int64_t bytes = 0;     ///< bytes of new memory for its outputs
  /// The values that its part of backward reads, each once: inputs, results and buffers.
  std::vector<ValueId> saved;
  /// Bytes that it keeps for backward beside values: masks, statistics.
  std::int64_t saved_bytes = 0;

  /// Returns the name with overload, such as `aten::add.Tensor`.
  std::string name() const;
};

/// A module of the tree and its state.
struct ModuleState {
  std::string path;         ///< empty for the outermost module
  std::string type;         ///< such as `torch::nn::LinearImpl`
  bool is_training = true;  ///< train() or eval()
};

/// A place that the code named with trireme::mark (mark.h).
struct Mark {
  /// The given name. It gets a number (`middle.1`) if a module or an earlier mark has the same
  /// name.
  std::string name;
  int node = 0;  ///< first operator after it; the number of operators if there is none
  /// The given tensor; kNoValue if no operator of the graph made or used it.
  ValueId value = kNoValue;
  /// The innermost module that contains the operators before and after it.
  std::string module;

  bool operator==(const Mark&) const = default;
};

/// A recorded forward pass. A plain value: it may be copied, and read by several threads.
struct Graph {
  std::vector<Value> values;  ///< all tensors, in the order in which they appeared
  std::vector<Node> nodes;    ///< all operators, in the order in which they ran
  /// The inputs, in the order in which they were given.
  std::vector<ValueId> inputs;
  /// The tensors that forward returned.
  std::vector<ValueId> results;
  /// The parameters in the module's order, each once.
  std::vector<ValueId> parameters;
  /// The buffers in the module's order, each once.
  std::vector<ValueId> buffers;
  /// The modules of the tree, the outermost first.
  std::vector<ModuleState> modules;
  /// The marks, in the order in which forward reached them.
  std::vector<Mark> marks;
  /// False for a graph that was read from a file (show/graph_text.h). It can be shown, balanced and
  /// cut, but not run.
  bool can_run = true;

  /// Returns the number of operators.
  int num_nodes() const noexcept { return static_cast<int>(nodes.size()); }
  const Node& node(int index) const { return nodes.at(static_cast<std::size_t>(index)); }
  const Value& value(ValueId id) const { return values.at(static_cast<std::size_t>(id)); }

  /// Returns every tensor that a node is given, each once.
  std::vector<ValueId> inputs_of(int node) const;

  /// Returns text such as `operator 12, aten::relu of layer1.0`.
  std::string describe(int node) const;
};

}  // namespace trireme::graph
