// SPDX-License-Identifier: Apache-2.0
// Runs a piece of a graph on tensors with values.
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

/// Runs a part on its inputs and returns its outputs. It may be called any number of times, also
/// after the run of the piece has ended.
using RunPart = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

struct RunOptions {
  /// Keys of random numbers. Without them, random operators draw from LibTorch's default generator
  /// as the module would.
  std::optional<RandomStream> random = std::nullopt;
  /// Leaves the module's buffers unchanged (running statistics, counters): writes go to copies.
  /// Meant for a second run of the same micro-batch.
  bool keep_buffers = false;
  /// Called before each operator with its arguments on the stack. It either leaves the results on
  /// the stack and returns true, or leaves the stack unchanged and returns false. May be null.
  bool (*replace)(const c10::OperatorHandle& op, std::vector<c10::IValue>& stack) = nullptr;
  /// Called for each part of the piece with its inputs; returns what `run` returns for them. If it
  /// is null, parts run like other operators.
  std::function<std::vector<at::Tensor>(const Part& part, RunPart run,
                                        const std::vector<at::Tensor>& inputs)>
      around = nullptr;
};

/// The operators of a graph between two boundaries, with the tensors of a module that they need. It
/// is made once and run often; copies are cheap and share everything.
class Piece {
 public:
  /// @param graph the graph; it is kept.
  /// @param begin,end boundaries: the piece has the operators from begin to end - 1.
  /// @param module the captured module, or another one that has parameters and buffers of the same
  /// names and shapes for these operators. The piece keeps these tensors and reads their values
  /// when it runs.
  /// @param parts parts for RunOptions::around, in order, between boundaries that part_boundaries
  /// (parts/part.h) allows.
  ///
  /// Throws UsageError for boundaries out of range or where the graph cannot be cut
  /// (reason_against_cut, boundaries.h). Throws it for tensors that the module does not have, or
  /// has with another shape. Throws it also for parts out of order, and for a part that reads a
  /// parameter which forward writes to elsewhere.
  Piece(std::shared_ptr<const Graph> graph, int begin, int end, const torch::nn::Module& module,
        const std::vector<Part>& parts = {});

  /// Returns a piece with the same operators on a device, with tensors on that device. A graph
  /// records no devices: an operator that names a device, or makes a tensor from numbers alone,
  /// uses this one. Constants are copied. run() then takes inputs on this device, and random
  /// numbers are those of the kind of device.
  /// @param there returns the tensor to use for each of parameters() and buffers(), of the same
  /// shape and dtype.
  Piece moved_to(at::Device device, const std::function<at::Tensor(ValueId)>& there) const;

  /// Returns the boundary before the first operator.
  int begin() const noexcept;
  /// Returns the boundary after the last operator.
  int end() const noexcept;
  /// Returns the graph of the piece.
  const Graph& graph() const noexcept;

  /// Returns the values that run() takes: the inputs of the graph and results of earlier operators
  /// that the piece uses. A piece at the end of the graph also takes inputs that forward returns.
  const std::vector<ValueId>& inputs() const noexcept;
  /// Returns the values that run() returns: those that its operators make and that later operators
  /// use or forward returned. A piece at the end of the graph also returns results that no operator
  /// makes.
  const std::vector<ValueId>& outputs() const noexcept;
  /// Returns the parameters that its operators use.
  const std::vector<ValueId>& parameters() const noexcept;
  /// Returns the buffers that its operators use.
  const std::vector<ValueId>& buffers() const noexcept;
  /// Returns the buffers that its operators write to.
  const std::vector<ValueId>& written_buffers() const noexcept;

  /// Returns the tensors that it keeps between runs: parameters, buffers and constants.
  std::vector<at::Tensor> lasting() const;

  /// Runs the operators on values and returns the outputs.
  ///
  /// Results, and gradients of a backward from them, have the same bits as those of the module's
  /// own code. Autograd and autocast are as recorded; autograd is off if gradients are disabled in
  /// the caller. Each value is freed after its last use. Inputs are never written to: an input that
  /// an operator writes to is copied first.
  ///
  /// Several threads may call it at once if they do not write to the same buffers. Throws
  /// UsageError for inputs of another number, shape or dtype than captured, and for an operator
  /// that fails. Out-of-memory errors and errors of other ranks pass through.
  std::vector<at::Tensor> run(const std::vector<at::Tensor>& inputs,
                              const RunOptions& options = {}) const;

 private:
  explicit Piece(std::shared_ptr<const detail::Program> program);

  std::shared_ptr<const detail::Program> program_;
};

}  // namespace trireme::graph
