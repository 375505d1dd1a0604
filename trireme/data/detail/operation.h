// SPDX-License-Identifier: Apache-2.0
// The interface of the built-in transforms. They work from memory to memory, so the last transform
// of a column writes directly into the batch and none allocates a tensor.
#pragma once

#include <trireme/data/philox.h>

#include <ATen/core/DimVector.h>
#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace trireme::data::detail {

/// The dtype and sizes of one sample of a column. Samples are contiguous in memory.
struct Form {
  at::ScalarType dtype = at::kFloat;  ///< The dtype.
  at::DimVector sizes;                ///< The sizes of all dimensions.

  std::int64_t elements() const {
    std::int64_t product = 1;
    for (const std::int64_t size : sizes) product *= size;
    return product;
  }
  /// Returns the size of an element in bytes.
  std::int64_t element_bytes() const { return static_cast<std::int64_t>(c10::elementSize(dtype)); }
  /// Returns the size in bytes. Throws UsageError if it overflows.
  std::size_t bytes() const {
    std::int64_t product = element_bytes();
    for (const std::int64_t size : sizes)
      if (__builtin_mul_overflow(product, size, &product)) fail_too_large();
    return static_cast<std::size_t>(product);
  }
  /// Compares dtype and sizes.
  bool operator==(const Form& other) const = default;

 private:
  [[noreturn]] void fail_too_large() const;
};

/// Returns a text such as `Byte [1, 28, 28]`.
std::string describe(const Form& form);

/// Height and width of an image [..., H, W], and the number of planes of that size.
struct Planes {
  std::int64_t count;   ///< The number of planes.
  std::int64_t height;  ///< The number of rows.
  std::int64_t width;   ///< The number of columns.
};
/// Returns the planes of an image. Throws UsageError if there are fewer than two dimensions.
Planes planes_of(const Form& form);

class Pointwise;

/// A built-in transform. Const methods may be called concurrently.
class Operation {
 public:
  virtual ~Operation() = default;
  /// Returns the name that error messages use.
  virtual std::string_view name() const = 0;

  /// Returns the form of the result. Throws UsageError if this operation cannot take the input.
  virtual Form result(const Form& input) const = 0;

  /// Reads a sample of form `from` and writes a sample of form `result(from)` to `output`. Input
  /// and output do not overlap.
  virtual void run(const Form& from, const std::byte* input, std::byte* output,
                   Random& random) const = 0;

  /// Returns this operation if it is pointwise (detail/pointwise_transforms.h), otherwise null.
  virtual const Pointwise* pointwise() const { return nullptr; }
};

}  // namespace trireme::data::detail
