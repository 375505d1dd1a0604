// SPDX-License-Identifier: Apache-2.0
#include <trireme/data/random_tensors.h>

#include <trireme/base/error.h>
#include <trireme/data/detail/dataset_checks.h>
#include <trireme/data/philox.h>

#include <ATen/ops/empty.h>

#include <concepts>
#include <limits>
#include <utility>

namespace trireme::data {
namespace {

// Calls `function` with a value of the C++ type of the column's dtype.
template <typename Function>
void with_type(const RandomColumn& column, const Function& function) {
  switch (column.dtype) {
    case at::kFloat:
      return function(float{});
    case at::kDouble:
      return function(double{});
    case at::kByte:
      return function(std::uint8_t{});
    case at::kInt:
      return function(std::int32_t{});
    case at::kLong:
      return function(std::int64_t{});
    default:
      throw UsageError(
          join_message("random tensors of dtype ", column.dtype, " in column '", column.name, "'"),
          "give at::kFloat, at::kDouble, at::kByte, at::kInt or at::kLong");
  }
}

void check(const RandomColumn& column) {
  for (const std::int64_t side : column.sizes) {
    if (side >= 0) continue;
    throw UsageError(join_message("random tensors of sizes ", at::IntArrayRef(column.sizes),
                                  " in column '", column.name, "'"),
                     "give sizes of at least 0");
  }
  with_type(column, [&]<typename Number>(Number) {
    if constexpr (std::integral<Number>) {
      constexpr auto kLargest = static_cast<std::int64_t>(std::numeric_limits<Number>::max());
      // The largest number is one less than the bound.
      if (column.bound >= 1 && column.bound - 1 <= kLargest) return;
      throw UsageError(join_message("the bound of column '", column.name, "' is ", column.bound,
                                    ", expected 1 to the largest ", column.dtype, " and one"),
                       "random integers are from 0 to bound - 1");
    }
  });
}

at::Tensor draw(const RandomColumn& column, Random random) {
  at::Tensor tensor = at::empty(column.sizes, column.dtype);
  with_type(column, [&]<typename Number>(Number) {
    auto* const numbers = tensor.mutable_data_ptr<Number>();
    for (std::int64_t i = 0; i < tensor.numel(); ++i) {
      if constexpr (std::integral<Number>) {
        numbers[i] = static_cast<Number>(random.below(column.bound));
      } else {
        numbers[i] = static_cast<Number>(random.normal());
      }
    }
  });
  return tensor;
}

}  // namespace

std::shared_ptr<const Dataset> random_tensors(std::int64_t size, std::vector<RandomColumn> columns,
                                              std::uint64_t seed) {
  std::vector<std::string> names;
  for (const RandomColumn& column : columns) {
    check(column);
    names.push_back(column.name);
  }
  return generator(
      size, std::move(names), [columns = std::move(columns), seed](std::int64_t index) {
        std::vector<at::Tensor> sample;
        for (const RandomColumn& column : columns) {
          // Operation numbers count down from 2^64 - 1. Those of a data loader count up, so the two
          // never meet.
          const std::uint64_t operation = ~static_cast<std::uint64_t>(sample.size());
          sample.push_back(
              draw(column, Random(seed, 0, static_cast<std::uint64_t>(index), operation)));
        }
        return sample;
      });
}

std::shared_ptr<const Dataset> random_images(std::int64_t size, std::int64_t channels,
                                             std::int64_t height, std::int64_t width,
                                             std::int64_t classes, std::uint64_t seed) {
  return random_tensors(size,
                        {{.name = "image", .sizes = {channels, height, width}, .dtype = at::kByte},
                         {.name = "label", .dtype = at::kLong, .bound = classes}},
                        seed);
}

}  // namespace trireme::data
