// SPDX-License-Identifier: Apache-2.0
// Prediction: the time and memory of a training step of a plan on a cluster.
#pragma once

#include <trireme/predict/faults.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace trireme::predict {

/// The predicted memory of the ranks of one pipeline stage rank, in bytes of one device.
struct RankMemoryPrediction {
  double parameters = 0;   ///< parameters and buffers that stay, after sharding
  double gradients = 0;    ///< gradients that stay until the optimizer step
  double optimizer = 0;    ///< optimizer state and fp32 copies of parameters
  double buckets = 0;      ///< gathered parameters and buckets in exchange
  double activations = 0;  ///< kept for backward at the peak, over all micro-batches in flight
  double temporary = 0;    ///< beyond that: results and gradients in use at the peak
  double inputs = 0;       ///< the batch
  /// What the allocator of an accelerator holds and cannot use at the peak: rounding, and gaps that
  /// are too small. Only if TrainingOptions::replays_allocator is set. Not in total().
  double lost = 0;
  std::string peak_module;  ///< the module that runs at the peak
  /// What one micro-batch keeps for backward, by module, the largest first.
  std::vector<std::pair<std::string, double>> activations_by_module;
  double host = 0;  ///< in host memory: offloaded optimizer state and activations

  /// Returns the peak on the device.
  double total() const noexcept {
    return parameters + gradients + optimizer + buckets + activations + temporary + inputs;
  }
};

/// Where the time of a step goes, in seconds of the slowest rank along `pipe`. The parts add up to
/// the step.
struct StepParts {
  double compute = 0;        ///< operators of forward and backward, without recomputation
  double recomputation = 0;  ///< operators that backward repeats
  double layouts = 0;        ///< collectives along axes of layouts, which operators wait for
  double data_exchange = 0;  ///< exchange along `data` that is not hidden by computation
  double pipeline = 0;       ///< waiting for other stages, and messages
  double optimizer = 0;      ///< the optimizer's step
};

struct Prediction {
  std::string cluster;        ///< name of the cluster
  std::int64_t ranks = 0;     ///< number of ranks
  double step_seconds = 0;    ///< time of one step
  StepParts parts;            ///< of step_seconds
  double flops_per_rank = 0;  ///< FLOPs of a step on one rank, without recomputation, as a mean
  double repeated_flops = 0;  ///< FLOPs of recomputation on one rank, as a mean
  double utilization = 0;     ///< flops_per_rank per second by the peak of the dtype (MFU)
  double parameters = 0;      ///< number of parameters of the module
  std::vector<RankMemoryPrediction> memory;  ///< by rank along `pipe`
  double device_memory = 0;                  ///< bytes of the smallest device
  double checkpoint_bytes = 0;               ///< parameters and optimizer state of all ranks
  double checkpoint_seconds = 0;  ///< time to write it by all hosts at once; 0: disks are unknown
  std::vector<double> stage_seconds;  ///< forward and backward of one micro-batch, by stage
  /// What failures cost; predict() leaves it empty (fault_options()).
  std::optional<FaultPrediction> faults{};

  /// Returns the largest memory of a rank in bytes.
  double peak_memory() const noexcept;
  /// Returns true if every rank's memory is on the device, with what its allocator loses.
  bool fits() const noexcept;
};

/// Returns the prediction as a table for people.
std::string to_string(const Prediction& prediction);

/// Returns the prediction as one JSON object. Format: docs/formats/prediction.md.
std::string to_json(const Prediction& prediction);

}  // namespace trireme::predict
