// SPDX-License-Identifier: Apache-2.0
// The simulated step behind a prediction: what each rank along `pipe` does when, and its memory
// over time. It is written as a trace, and as a picture of the memory.
#pragma once

#include <trireme/cluster/cluster.h>
#include <trireme/graph/module_ref.h>
#include <trireme/plan/plan.h>
#include <trireme/predict/predict.h>
#include <trireme/predict/prediction.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace trireme::predict {

/// A span of a simulated step, in seconds from its start.
struct SimulatedSpan {
  /// The rows of a rank. kSteps and kPhases are those of traces of real runs. Spans of a row nest
  /// or do not overlap, except for messages.
  enum class Row : std::uint8_t { kSteps, kPhases, kComputation, kCommunication, kMessages };

  Row row = Row::kSteps;
  std::string name{};        ///< a phase, module, operator, bucket or message
  double begin = 0;          ///< seconds
  double end = 0;            ///< seconds
  int stage = -1;            ///< -1: none, or all
  int micro_batch = -1;      ///< -1: none, or all
  double flops = 0;          ///< of operators
  double bytes = 0;          ///< of what is exchanged
  std::string parameters{};  ///< of a bucket, in words
};

/// The memory of activations from a time on, in bytes.
struct MemoryMoment {
  double time = 0;           ///< seconds from the start of the step
  double activations = 0;    ///< kept for backward, over all micro-batches in flight
  double temporary = 0;      ///< beyond that
  double gradients = 0;      ///< of parameters, where they have no memory before they are made
  std::string module{};      ///< the module that runs; empty: none, or code outside of modules
  int micro_batch = -1;      ///< -1: none runs
  bool is_backward = false;  ///< true if it runs in backward

  /// Returns what changes during a step.
  double total() const noexcept { return activations + temporary + gradients; }
};

/// One rank along `pipe`, which stands for all with this coordinate.
struct SimulatedRank {
  std::int64_t rank = 0;               ///< the number of the first of them
  std::vector<SimulatedSpan> spans{};  ///< in the order of their starts, by row
  /// Ascending in time. The largest total is that of the prediction: activations, temporary, and
  /// gradients that have no memory of their own.
  std::vector<MemoryMoment> memory{};

  /// Returns true if gradients get their memory one by one, when they are made.
  bool makes_gradients() const;
  /// Returns the first moment at which the memory is largest. There must be one.
  const MemoryMoment& peak() const;
  /// Returns the end of the last span in seconds, without messages.
  double end() const;
};

struct SimulatedStep {
  Prediction prediction{};             ///< as predict() returns it
  std::vector<SimulatedRank> ranks{};  ///< by coordinate along `pipe`
};

/// Simulates a step. Takes the arguments of predict(), and throws as it does. Up to 50,000 calls of
/// operators in a step are single spans; up to a million are combined by module, more by pass.
SimulatedStep simulate_step(const ModuleRecord& record, const Plan& plan,
                            const cluster::Cluster& cluster, const TrainingOptions& options = {});
/// Does the same for a module.
SimulatedStep simulate_step(ModuleRef module, const Plan& plan, const cluster::Cluster& cluster,
                            const std::function<at::Tensor()>& forward,
                            const TrainingOptions& options = {});

/// Returns the step in the Trace Event Format of Chrome, with the processes and rows of traces of
/// real runs (docs/formats/run.md). Rows for computation and communication, messages, and a graph
/// of the memory are added.
std::string to_trace(const SimulatedStep& step);

/// Returns a picture of the memory over the step as a self-contained SVG, with one part for each
/// rank along `pipe`. Parts of the memory are stacked, and the peak is marked and named by its
/// module.
std::string to_svg(const SimulatedStep& step);

}  // namespace trireme::predict
