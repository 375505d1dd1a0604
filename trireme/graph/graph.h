// SPDX-License-Identifier: Apache-2.0
// A module's forward and loss as a list of operators in the order in which they ran: what each was
// given, what it gave, which module of the tree it belongs to, what it costs.
// docs/design/capture.md says how it comes to be and what can be done with it.
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

/// A place in Graph::values.
using ValueId = int;
/// A tensor that is not defined.
inline constexpr ValueId kNoValue = -1;

enum class ValueKind { kInput, kParameter, kBuffer, kConstant, kResult };

/// A tensor between two writes to it: an operator that writes to a tensor makes a new value of it.
struct Value {
  ValueKind kind = ValueKind::kResult;
  /// Of a parameter or buffer its name in the module; else what errors call it: `input 1`,
  /// `constant 0`, `result of aten::relu (operator 12)`.
  std::string name;
  /// Of a parameter or buffer all its names, more than one where modules share it.
  std::vector<std::string> names;
  std::vector<std::int64_t> sizes;
  std::vector<std::int64_t> strides;
  at::ScalarType dtype = at::kFloat;
  bool requires_grad = false;
  int node = -1;  ///< whose result it is, or that wrote it last; -1 for what was there before
  /// The first value of the same tensor; itself where nothing had written to it.
  ValueId object = kNoValue;
  /// The first value whose memory it lies in: views and what they are views of have the same.
  ValueId memory = kNoValue;
  /// What it is a view of; the nearest that the graph has.
  ValueId view_of = kNoValue;
  /// Whether backward reads it, so that its memory stays until then.
  bool is_saved = false;
  /// Of a constant the tensor itself; its values are never changed.
  at::Tensor constant;

  std::int64_t bytes() const;
};

/// What an operator wrote to.
struct Write {
  ValueId before = kNoValue;
  ValueId after = kNoValue;
};

/// How LibTorch's automatic mixed precision is set, on the processor and CUDA.
struct AutocastState {
  std::array<bool, 2> is_enabled = {};
  std::array<at::ScalarType, 2> dtype = {};
  bool keeps_casts = true;

  bool operator==(const AutocastState&) const = default;
  bool is_any_enabled() const noexcept { return is_enabled[0] || is_enabled[1]; }

  /// Of this thread.
  static AutocastState now();
  void set() const;
};

/// One operator that the code of the modules called; what it is made of is not taken apart.
struct Node {
  explicit Node(const c10::OperatorHandle& its_op) : op(its_op) {}

  c10::OperatorHandle op;
  /// As they were given, without tensors: in their places are None and empty lists.
  std::vector<c10::IValue> arguments;
  /// For each argument the tensors in it: one, or those of a list.
  std::vector<std::vector<ValueId>> inputs;
  /// Every tensor returned, lists element by element. One that was given is the value that it was,
  /// or is after the write.
  std::vector<ValueId> outputs;
  /// Declared by the operator, and the running statistics of norms in training.
  std::vector<Write> writes;
  /// The module whose code called it, by path; empty is the outermost one or code around it.
  std::string module;
  bool grad_mode = true;
  AutocastState autocast;
  bool is_random = false;  ///< draws random numbers
  double flops = 0;
  double backward_flops = 0;  ///< of what its share of backward runs
  std::int64_t bytes = 0;     ///< of new memory for its outputs
  /// What its share of backward reads, each once: results and inputs of operators, and buffers.
  std::vector<ValueId> saved;
  std::int64_t saved_bytes =
      0;  ///< of what it keeps for backward beside values (masks, statistics)

  /// With overload: `aten::add.Tensor`.
  std::string name() const;
};

/// A module of the tree.
struct ModuleState {
  std::string path;  ///< empty for the outermost
  std::string type;  ///< such as `torch::nn::LinearImpl`
  bool is_training = true;
};

/// A place that the code named with trireme::mark (mark.h).
struct Mark {
  /// As it was given; with a number, `middle.1`, where a module or an earlier mark is called so.
  std::string name;
  int node = 0;  ///< the first operator after it; the number of operators where none is
  /// The tensor that was given; kNoValue for one that no operator here knows.
  ValueId value = kNoValue;
  /// The innermost module that has the operators before and after it.
  std::string module;

  bool operator==(const Mark&) const = default;
};

struct Graph {
  std::vector<Value> values;
  std::vector<Node> nodes;
  /// In the order in which they were given.
  std::vector<ValueId> inputs;
  /// What forward returned.
  std::vector<ValueId> results;
  /// In the module's order, each once.
  std::vector<ValueId> parameters;
  std::vector<ValueId> buffers;
  /// The outermost first.
  std::vector<ModuleState> modules;
  /// In the order in which forward came to them.
  std::vector<Mark> marks;
  /// False where it was read from a file (show/graph_text.h): to look at, balance and cut, not to
  /// run.
  bool can_run = true;

  int num_nodes() const noexcept { return static_cast<int>(nodes.size()); }
  const Node& node(int index) const { return nodes.at(static_cast<std::size_t>(index)); }
  const Value& value(ValueId id) const { return values.at(static_cast<std::size_t>(id)); }

  /// Every tensor that a node is given, each once.
  std::vector<ValueId> inputs_of(int node) const;

  /// `operator 12, aten::relu of layer1.0`.
  std::string describe(int node) const;
};

}  // namespace trireme::graph
