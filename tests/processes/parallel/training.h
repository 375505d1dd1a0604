// SPDX-License-Identifier: Apache-2.0
// Trains a small model in parallel, and in one process by the same tree of sums
// (docs/design/numerics.md), so that the two can be compared bit by bit.
#pragma once

#include <trireme/parallel/parallelize.h>

#include <tests/processes/parallel/small_models.h>

#include <string>
#include <vector>

namespace trireme::test {

/// What decides the bits of one process.
struct Subject {
  std::string model{};
  std::string optimizer{};  ///< sgd, momentum or adam
  std::int64_t micro_batches = 1;

  auto operator<=>(const Subject&) const = default;
};

/// What must not.
struct Variant {
  int zero_level = 0;
  std::int64_t bucket_bytes = 4096;
  bool is_delayed = false;  ///< ranks dawdle at random
};

std::string to_string(const Subject& subject);
std::string to_string(const Variant& variant);

/// What training ends with.
struct State {
  std::vector<std::string> names;  ///< of the parameters, then of the buffers
  std::vector<torch::Tensor> tensors;
  std::size_t num_parameters = 0;
};

State initial_state(const std::string& model);

inline constexpr int kSteps = 10;

/// The reference: ranks outside, in their order or, to show that it matters, in reverse;
/// micro-batches inside; divided once. Buffers are as rank 0's micro-batches left them.
enum class RankOrder { kForward, kReverse };
State train_alone(const Subject& subject, int ranks, RankOrder order = RankOrder::kForward);

/// A loop as anyone writes it: all batches of a step accumulated one after the other. Its sums are
/// the same tree where one of ranks and micro-batches is 1; its buffers see all batches.
State train_plainly(const Subject& subject, int ranks);

State train_parallel(const Subject& subject, const Variant& variant, const comm::Group& group);

/// Whether every bit is the same, also of what is not a number.
bool is_same(const torch::Tensor& one, const torch::Tensor& other);

}  // namespace trireme::test
