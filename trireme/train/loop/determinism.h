// SPDX-License-Identifier: Apache-2.0
// Repeatable runs of LibTorch: deterministic algorithms, random numbers that depend on the step
// alone, and the state of its generators.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <map>
#include <string>

namespace trireme::detail {

/// Makes LibTorch use deterministic algorithms in this process, and turns off the search for the
/// fastest kernel of cuDNN. The last object to be destroyed restores the settings. Thread-safe.
class DeterministicAlgorithms {
 public:
  DeterministicAlgorithms();
  DeterministicAlgorithms(const DeterministicAlgorithms&) = delete;
  DeterministicAlgorithms& operator=(const DeterministicAlgorithms&) = delete;
  ~DeterministicAlgorithms();
};

/// Seeds LibTorch's generators of all devices for one step of one rank.
void seed_step(std::uint64_t seed, std::int64_t global_step, int rank);

/// Returns the state of the generators of LibTorch that training on `device` uses, as bytes by
/// name: `random.cpu`, and for another device its type, such as `random.cuda`.
std::map<std::string, std::string> random_streams(at::Device device);

/// Restores the states that `streams` contains. Throws CheckpointError for a state that LibTorch
/// refuses.
void set_random_streams(const std::map<std::string, std::string>& streams, at::Device device);

}  // namespace trireme::detail
