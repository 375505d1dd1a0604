// SPDX-License-Identifier: Apache-2.0
// Operations that make each element of the result of one element of the sample. Several in a row
// run block after block, so that what is between them stays in the cache of the core.
#pragma once

#include <trireme/data/detail/operation.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace trireme::data::detail {

/// The result has the sizes of the sample.
class Pointwise : public Operation {
 public:
  void run(const Form& from, const std::byte* input, std::byte* output, Random& random) const final;
  const Pointwise* pointwise() const final { return this; }

  /// Computes `count` elements of one channel.
  /// @param from dtype of the input.
  /// @param channel below the size of the dimension before height and width; 0 where there is none.
  virtual void run_block(at::ScalarType from, std::int64_t channel, const std::byte* input,
                         std::byte* output, std::int64_t count) const = 0;
};

struct PointwiseStep {
  const Pointwise* operation;
  at::ScalarType from;  ///< dtype that it takes
};

/// Runs operations one after the other, each on the result of the one before.
/// @param steps at least one.
/// @param from form of the input, of the first one's dtype.
/// @param to dtype of the output.
void run_pointwise(std::span<const PointwiseStep> steps, const Form& from, at::ScalarType to,
                   const std::byte* input, std::byte* output);

}  // namespace trireme::data::detail
