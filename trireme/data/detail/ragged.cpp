// SPDX-License-Identifier: Apache-2.0
#include <trireme/data/detail/ragged.h>

#include <trireme/base/error.h>
#include <trireme/data/transforms/elements.h>

#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <utility>

namespace trireme::data::detail {
namespace {

[[noreturn]] void fail_unlike(const std::string& column, const std::vector<Value>& rows,
                              const std::vector<std::int64_t>& samples, std::size_t row) {
  throw UsageError(
      join_message("column '", column, "': sample ", samples[row], " is ", describe(rows[row].form),
                   ", but sample ", samples[0], " of the same batch is ", describe(rows[0].form),
                   ", and they may differ in padded dimensions alone"),
      "pad the other dimensions too (Padding::dimensions), or bring all samples to one shape");
}

// Returns the padded dimensions, counted from 0.
std::vector<std::size_t> dimensions_of(const std::string& column, const Padding& padding,
                                       const Form& form) {
  const auto count = static_cast<std::int64_t>(form.sizes.size());
  std::vector<std::size_t> dimensions;
  for (const std::int64_t dimension : padding.dimensions) {
    if (dimension < -count || dimension >= count) {
      throw UsageError(join_message("column '", column, "': dimension ", dimension,
                                    " is to be padded, but samples are ", describe(form)),
                       "dimensions of a sample are counted from 0, or from -1 at the end");
    }
    const auto place = static_cast<std::size_t>(dimension < 0 ? dimension + count : dimension);
    if (std::ranges::find(dimensions, place) != dimensions.end()) {
      throw UsageError(join_message("column '", column, "': dimension ", dimension, " of samples ",
                                    describe(form), " is padded twice"),
                       "name each dimension once in Padding::dimensions");
    }
    dimensions.push_back(place);
  }
  return dimensions;
}

// Returns the common length of a dimension: the fixed one, or the longest rounded up to the
// multiple.
std::int64_t padded_length(const std::string& column, const Padding& padding,
                           const std::vector<Value>& rows, const std::vector<std::int64_t>& samples,
                           std::size_t dimension) {
  const auto longest = std::ranges::max_element(
      rows, {}, [&](const Value& value) { return value.form.sizes[dimension]; });
  const std::int64_t length = longest->form.sizes[dimension];
  if (!padding.length) return (length + padding.multiple - 1) / padding.multiple * padding.multiple;
  if (length <= *padding.length) return *padding.length;
  throw UsageError(
      join_message("column '", column, "': sample ",
                   samples[static_cast<std::size_t>(longest - rows.begin())], " is ",
                   describe(longest->form), ", longer than the ", *padding.length,
                   " that all are padded to"),
      "cut the samples by map, leave them out by filter, or give a larger Padding::length");
}

// Copies a sample to the beginning of each dimension of its row. Recurses until the remaining
// dimensions are contiguous in both, and then copies them at once.
void copy_block(const std::byte* from, const std::int64_t* sizes, std::byte* to,
                const std::int64_t* row_sizes, std::size_t dimensions, std::size_t element) {
  if (dimensions == 0) {
    std::memcpy(to, from, element);
    return;
  }
  std::size_t inner = element;
  std::size_t row_inner = element;
  bool is_contiguous = true;
  for (std::size_t i = 1; i < dimensions; ++i) {
    inner *= static_cast<std::size_t>(sizes[i]);
    row_inner *= static_cast<std::size_t>(row_sizes[i]);
    is_contiguous = is_contiguous && sizes[i] == row_sizes[i];
  }
  const auto count = static_cast<std::size_t>(sizes[0]);
  if (is_contiguous) {
    if (count * inner > 0) std::memcpy(to, from, count * inner);
    return;
  }
  for (std::size_t i = 0; i < count; ++i) {
    copy_block(from + i * inner, sizes + 1, to + i * row_inner, row_sizes + 1, dimensions - 1,
               element);
  }
}

void fill(at::Tensor& tensor, const std::array<std::byte, 8>& element) {
  auto* const bytes = static_cast<std::byte*>(tensor.mutable_data_ptr());
  const std::size_t size = tensor.dtype().itemsize();
  if (std::ranges::all_of(element, [](std::byte byte) { return byte == std::byte{0}; })) {
    if (tensor.nbytes() > 0) std::memset(bytes, 0, tensor.nbytes());
    return;
  }
  for (std::size_t i = 0; i < tensor.nbytes(); i += size) {
    std::memcpy(bytes + i, element.data(), size);
  }
}

at::Tensor lengths_of(const std::vector<Value>& rows, const std::vector<std::size_t>& dimensions) {
  at::DimVector sizes{static_cast<std::int64_t>(rows.size())};
  if (dimensions.size() != 1) sizes.push_back(static_cast<std::int64_t>(dimensions.size()));
  at::Tensor lengths = at::empty(sizes, at::kLong);
  auto* length = lengths.mutable_data_ptr<std::int64_t>();
  for (const Value& value : rows) {
    for (const std::size_t dimension : dimensions) *length++ = value.form.sizes[dimension];
  }
  return lengths;
}

}  // namespace

PaddedRows stack_padded(const std::string& column, const Padding& padding,
                        const std::vector<Value>& rows, const std::vector<std::int64_t>& samples) {
  const Form& form = rows[0].form;
  const std::vector<std::size_t> dimensions = dimensions_of(column, padding, form);
  for (std::size_t row = 1; row < rows.size(); ++row) {
    const Form& other = rows[row].form;
    if (other.dtype != form.dtype || other.sizes.size() != form.sizes.size()) {
      fail_unlike(column, rows, samples, row);
    }
    for (std::size_t i = 0; i < form.sizes.size(); ++i) {
      const bool is_padded = std::ranges::find(dimensions, i) != dimensions.end();
      if (!is_padded && other.sizes[i] != form.sizes[i]) fail_unlike(column, rows, samples, row);
    }
  }
  std::vector<std::int64_t> sizes{std::ssize(rows)};
  sizes.insert(sizes.end(), form.sizes.begin(), form.sizes.end());
  for (const std::size_t dimension : dimensions) {
    sizes[dimension + 1] = padded_length(column, padding, rows, samples, dimension);
  }
  at::Tensor tensor = at::empty(sizes, form.dtype);
  fill(tensor, element_of(join_message("column '", column, "': padding"), padding.value, form));
  auto* const to = static_cast<std::byte*>(tensor.mutable_data_ptr());
  const std::size_t row_bytes = tensor.nbytes() / rows.size();
  for (std::size_t row = 0; row < rows.size(); ++row) {
    copy_block(rows[row].data, rows[row].form.sizes.data(), to + row * row_bytes, sizes.data() + 1,
               form.sizes.size(), tensor.dtype().itemsize());
  }
  return {std::move(tensor), lengths_of(rows, dimensions)};
}

}  // namespace trireme::data::detail
