// SPDX-License-Identifier: Apache-2.0
// Pointwise operations: each element of the result depends on one element of the sample. Several in
// a row run block by block, so that intermediate results stay in the cache of the core.
#pragma once

#include <trireme/data/detail/operation.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace trireme::data::detail {

/// A pointwise operation. The result has the sizes of the sample.
class Pointwise : public Operation {
 public:
  void run(const Form& from, const std::byte* input, std::byte* output, Random& random) const final;
  const Pointwise* pointwise() const final { return this; }

  /// Computes `count` elements of one channel.
  /// @param from the dtype of the input.
  /// @param channel the index in the dimension before height and width; 0 if there is none.
  /// @param input the elements to read.
  /// @param output the elements to write.
  /// @param count the number of elements.
  virtual void run_block(at::ScalarType from, std::int64_t channel, const std::byte* input,
                         std::byte* output, std::int64_t count) const = 0;
};

/// A pointwise operation and the dtype of its input.
struct PointwiseStep {
  const Pointwise* operation;
  at::ScalarType from;  ///< The dtype of its input.
};

/// Runs operations one after the other, each on the result of the one before.
/// @param steps the operations, at least one.
/// @param from the form of the input, with the dtype of the first operation.
/// @param to the dtype of the output.
/// @param input the sample to read.
/// @param output the sample to write.
void run_pointwise(std::span<const PointwiseStep> steps, const Form& from, at::ScalarType to,
                   const std::byte* input, std::byte* output);

}  // namespace trireme::data::detail
