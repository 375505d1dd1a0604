// SPDX-License-Identifier: Apache-2.0
// A piece of a graph, prepared to run: where each argument comes from, and when each tensor is
// freed.
#pragma once

#include <trireme/graph/graph.h>
#include <trireme/graph/parts/part.h>

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <unordered_set>
#include <vector>

namespace torch::nn {
class Module;
}

namespace trireme::graph::detail {

/// The tensors of one argument, as indices (slots) into Program::tensors.
struct Feed {
  enum class Kind { kTensor, kList, kOptionalList };
  static constexpr auto kNone = static_cast<std::size_t>(-1);  ///< slot of an undefined tensor

  std::size_t argument = 0;  ///< position of the argument
  Kind kind = Kind::kTensor;
  std::vector<std::size_t> slots;
};

struct Program;

/// One operator of a program, or one part that runs as a whole.
struct Step {
  const Node* node = nullptr;  ///< the operator; for a part, its first operator
  int index = 0;               ///< index of the operator in the whole graph
  /// A part that runs instead of the operator; its inputs are the only feed.
  std::shared_ptr<const Program> part{};
  std::vector<Feed> feeds;
  std::vector<std::size_t> devices{};       ///< positions of arguments that name the device
  std::vector<std::size_t> outputs;         ///< slots of the results
  std::vector<std::size_t> dropped_before;  ///< slots that are freed once the arguments are read
  std::vector<std::size_t> dropped_after;   ///< slots that are freed once the operator has run
};

/// A piece that is ready to run. All values of a tensor share one slot.
struct Program {
  Program(std::shared_ptr<const Graph> its_graph, int its_begin, int its_end,
          const torch::nn::Module& module, const std::vector<Part>& parts);

  /// Makes the program of a part. The tensors of the module are set when the whole piece is bound.
  Program(std::shared_ptr<const Graph> its_graph, const Part& its_part);

  /// See Piece::moved_to.
  Program moved_to(at::Device its_device, const std::function<at::Tensor(ValueId)>& there) const;

  /// See Piece::lasting.
  std::vector<at::Tensor> lasting() const;

  std::shared_ptr<const Graph> graph;
  int begin;
  int end;
  at::Device device = at::kCPU;  ///< where it runs
  std::vector<ValueId> inputs;
  std::vector<ValueId> outputs;
  std::vector<ValueId> parameters;
  std::vector<ValueId> buffers;
  std::vector<ValueId> written_buffers;

  std::vector<at::Tensor> tensors;  ///< parameters, buffers and constants; undefined elsewhere
  std::vector<Step> steps;
  std::vector<std::size_t> input_slots;
  std::vector<bool> is_input_written;  ///< inputs that are copied, since operators write to them
  /// For a part: inputs that other operators write to later, in this run or the next. They are
  /// copied, so that a recomputation finds them unchanged.
  std::vector<bool> is_input_copied;
  std::vector<std::size_t> output_slots;
  std::vector<std::size_t> written_buffer_slots;
  Part part;  ///< the operators of this program, with the parts in it

 private:
  void check_boundaries() const;
  std::size_t slot_of(ValueId id);
  void add_input(ValueId id);
  void add_input_of_part(ValueId id);
  void find_inputs();
  void find_outputs();
  void find_writes();
  void find_slots();
  void add_steps(const std::vector<Part>& parts);
  void add_step(int index);
  void add_part(const Part& part);
  void bind(const torch::nn::Module& module);
  void bind(const Program& whole);
  void move(at::Device its_device, const std::function<at::Tensor(ValueId)>& there);
  void drop_unused();

  bool is_part_ = false;
  std::unordered_set<ValueId> written_;           // memories that its operators write to
  std::unordered_set<ValueId> written_anywhere_;  // for a part: those that any operator writes to
  std::map<ValueId, std::size_t> slots_;          // by Value::object
  std::vector<std::shared_ptr<Program>> parts_;
};

}  // namespace trireme::graph::detail
