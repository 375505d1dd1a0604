// SPDX-License-Identifier: Apache-2.0
// Runs a part of a graph on values.
#pragma once

#include <trireme/graph/graph.h>
#include <trireme/graph/parts/part.h>
#include <trireme/graph/run/random_stream.h>

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <vector>

namespace torch::nn {
class Module;
}

namespace trireme::graph {

namespace detail {
struct Program;
}

/// Runs a part on its inputs and gives its outputs; as often as it is wanted, also when the run of
/// the piece is over.
using RunPart = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

struct RunOptions {
  /// Without one, random operators draw from LibTorch's default generator as the module would.
  std::optional<RandomStream> random = std::nullopt;
  /// Leaves the module's buffers as they are (running statistics, counters), for a second run of
  /// the same micro-batch: what writes to them writes to copies.
  bool keep_buffers = false;
  /// Is asked first to run each operator, with its arguments on the stack: leaves the results there
  /// and returns true, or returns false and leaves it as it is. Null: nobody is.
  bool (*replace)(const c10::OperatorHandle& op, std::vector<c10::IValue>& stack) = nullptr;
  /// Is given each part of the piece with its inputs, and gives what `run` gives for them. Null:
  /// parts run as everything else.
  std::function<std::vector<at::Tensor>(const Part& part, RunPart run,
                                        const std::vector<at::Tensor>& inputs)>
      around = nullptr;
};

/// The operators of a graph from one boundary to another, with the tensors of a module that they
/// need. Made once, run often; a handle that is cheap to copy.
class Piece {
 public:
  /// @param begin,end boundaries: operators begin to end - 1.
  /// @param module the one that was captured, or another that has parameters and buffers of the
  /// same names and shapes for this part; its tensors, not their values, are taken now. Throws
  /// UsageError for boundaries that are none, where the graph cannot be cut at one of them
  /// (reason_against_cut, boundaries.h), and for tensors that the module lacks or has otherwise.
  /// @param parts for RunOptions::around, between boundaries that part_boundaries (parts/part.h)
  /// allows. Throws UsageError for parts out of order, or that read a parameter which forward
  /// writes to elsewhere.
  Piece(std::shared_ptr<const Graph> graph, int begin, int end, const torch::nn::Module& module,
        const std::vector<Part>& parts = {});

  /// The same operators on a device, with tensors that lie there. A graph knows no devices: an
  /// operator that names one, or makes a tensor of numbers alone, takes this one. Constants are
  /// copied; run() takes inputs that lie there, and random numbers are those of the device's kind.
  /// @param there what stands for each of parameters() and buffers(), of its shape and dtype.
  Piece moved_to(at::Device device, const std::function<at::Tensor(ValueId)>& there) const;

  int begin() const noexcept;
  int end() const noexcept;
  const Graph& graph() const noexcept;

  /// What run() takes: inputs of the graph, and results of earlier operators, that it uses. Of a
  /// piece that ends with the graph also inputs that are results.
  const std::vector<ValueId>& inputs() const noexcept;
  /// What run() gives: what its operators make and later ones use, or forward returned. Of a piece
  /// that ends with the graph also results that no operator makes.
  const std::vector<ValueId>& outputs() const noexcept;
  /// Of the module, that its operators use.
  const std::vector<ValueId>& parameters() const noexcept;
  const std::vector<ValueId>& buffers() const noexcept;
  /// Of the buffers those that its operators write to.
  const std::vector<ValueId>& written_buffers() const noexcept;

  /// What it has from run to run: parameters, buffers, and constants of the graph where it runs.
  std::vector<at::Tensor> lasting() const;

  /// Runs the operators, with autograd as when they were recorded, unless gradients are off here:
  /// the same bits as the module's own code, and gradients that backward from the outputs gives are
  /// too. Each value is let go after its last use. Inputs are never written to: one that an
  /// operator writes to is copied first. Autocast is as it was recorded.
  ///
  /// Const, and may be called by several threads at once where they do not write to the same
  /// buffers. Throws UsageError for inputs of another number, shape or dtype than captured; what
  /// operators throw passes.
  std::vector<at::Tensor> run(const std::vector<at::Tensor>& inputs,
                              const RunOptions& options = {}) const;

 private:
  explicit Piece(std::shared_ptr<const detail::Program> program);

  std::shared_ptr<const detail::Program> program_;
};

}  // namespace trireme::graph
