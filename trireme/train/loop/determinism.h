// SPDX-License-Identifier: Apache-2.0
// What makes LibTorch repeat itself: deterministic algorithms, random numbers that depend on the
// step alone, and the state of its generators.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <map>
#include <string>

namespace trireme::detail {

/// While any lives, LibTorch takes deterministic algorithms in this whole process and does not try
/// out which kernel of cuDNN is the fastest; the last one puts its settings back. Thread-safe.
class DeterministicAlgorithms {
 public:
  DeterministicAlgorithms();
  DeterministicAlgorithms(const DeterministicAlgorithms&) = delete;
  DeterministicAlgorithms& operator=(const DeterministicAlgorithms&) = delete;
  ~DeterministicAlgorithms();
};

/// Seeds LibTorch's generators of all devices for one step of one rank.
void seed_step(std::uint64_t seed, std::int64_t global_step, int rank);

/// The state of LibTorch's generators that training on that device draws from, as bytes:
/// `random.cpu`, and `random.cuda` or what the device is.
std::map<std::string, std::string> random_streams(at::Device device);

/// Puts back those that are there. Throws CheckpointError for one that LibTorch refuses.
void set_random_streams(const std::map<std::string, std::string>& streams, at::Device device);

}  // namespace trireme::detail
