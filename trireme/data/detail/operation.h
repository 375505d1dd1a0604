// SPDX-License-Identifier: Apache-2.0
// The built-in transforms as the data loader sees them: from memory to memory, so that the last one
// of a column writes straight into the batch and none makes a tensor.
#pragma once

#include <trireme/data/philox.h>

#include <ATen/core/DimVector.h>
#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace trireme::data::detail {

/// Dtype and sizes of one sample of a column; it lies contiguously in memory.
struct Form {
  at::ScalarType dtype = at::kFloat;
  at::DimVector sizes;

  std::int64_t elements() const {
    std::int64_t product = 1;
    for (const std::int64_t size : sizes) product *= size;
    return product;
  }
  std::int64_t element_bytes() const { return static_cast<std::int64_t>(c10::elementSize(dtype)); }
  /// Throws UsageError where that is more than any memory has.
  std::size_t bytes() const {
    std::int64_t product = element_bytes();
    for (const std::int64_t size : sizes)
      if (__builtin_mul_overflow(product, size, &product)) fail_too_large();
    return static_cast<std::size_t>(product);
  }
  bool operator==(const Form& other) const = default;

 private:
  [[noreturn]] void fail_too_large() const;
};

/// `Byte [1, 28, 28]`.
std::string describe(const Form& form);

/// Height and width of an image [..., H, W], and how many planes of them there are.
struct Planes {
  std::int64_t count;
  std::int64_t height;
  std::int64_t width;
};
/// Throws UsageError where there are fewer than two dimensions.
Planes planes_of(const Form& form);

class Pointwise;

class Operation {
 public:
  virtual ~Operation() = default;
  virtual std::string_view name() const = 0;

  /// Returns the form of the result. Throws UsageError where this operation cannot take the input.
  virtual Form result(const Form& input) const = 0;

  /// Reads a sample of form `from` and writes `result(from)` to `output`, which does not overlap
  /// it.
  virtual void run(const Form& from, const std::byte* input, std::byte* output,
                   Random& random) const = 0;

  /// This operation where it is one of detail/pointwise_transforms.h, else null.
  virtual const Pointwise* pointwise() const { return nullptr; }
};

}  // namespace trireme::data::detail
