// SPDX-License-Identifier: Apache-2.0
// A piece of a graph, made ready to run: which tensor comes from where and is let go when.
#pragma once

#include <trireme/graph/graph.h>
#include <trireme/graph/parts/part.h>

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

namespace torch::nn {
class Module;
}

namespace trireme::graph::detail {

/// Where an argument with tensors gets them: places in Program::tensors.
struct Feed {
  enum class Kind { kTensor, kList, kOptionalList };
  static constexpr auto kNone = static_cast<std::size_t>(-1);

  std::size_t argument = 0;
  Kind kind = Kind::kTensor;
  std::vector<std::size_t> slots;
};

struct Program;

struct Step {
  const Node* node = nullptr;  ///< of a part its first
  int index = 0;               ///< of the node in the whole graph
  /// Is run instead of the node, with one feed for its inputs.
  std::shared_ptr<const Program> part{};
  std::vector<Feed> feeds;
  std::vector<std::size_t> devices{};  ///< arguments that say where
  std::vector<std::size_t> outputs;
  std::vector<std::size_t> dropped_before;  ///< once the arguments are together
  std::vector<std::size_t> dropped_after;
};

/// A tensor has one place for all its values.
struct Program {
  Program(std::shared_ptr<const Graph> its_graph, int its_begin, int its_end,
          const torch::nn::Module& module, const std::vector<Part>& parts);

  /// Of a part. Its tensors of the module are not there yet.
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

  std::vector<at::Tensor> tensors;  ///< of the module and constants; undefined elsewhere
  std::vector<Step> steps;
  std::vector<std::size_t> input_slots;
  std::vector<bool> is_input_written;
  /// Of a part: what others write to later, in this run or the next, and a second run of the part
  /// is to find as it was.
  std::vector<bool> is_input_copied;
  std::vector<std::size_t> output_slots;
  std::vector<std::size_t> written_buffer_slots;
  Part part;  ///< of the graph, that this is

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
  std::unordered_set<ValueId> written_;           // memories, by its own operators
  std::unordered_set<ValueId> written_anywhere_;  // and by any of the graph; of a part
  std::map<ValueId, std::size_t> slots_;          // by object
  std::vector<std::shared_ptr<Program>> parts_;
};

}  // namespace trireme::graph::detail
