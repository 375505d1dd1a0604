// SPDX-License-Identifier: Apache-2.0
// Text as a file of token numbers, for language models. The bytes: docs/formats/datasets.md.
#pragma once

#include <trireme/data/dataset.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>

namespace trireme::data {

/// Maps a file that is nothing but tokens, one after the other without a header, such as the `.bin`
/// files that nanoGPT's data/*/prepare.py writes. Pages are read when their samples are; a file
/// that is larger than the memory will do. It must not be shortened or written to meanwhile.
///
/// Sample i begins at token i * stride. Columns: "input" int64 [sequence_length], and "target"
/// int64 [sequence_length], which are the tokens one further on. There are (tokens - 1 -
/// sequence_length) / stride + 1 samples, rounded down; what is left at the end belongs to none.
/// Whether the numbers are in a vocabulary is not looked at.
/// @param dtype of the file: kUInt16, kUInt32 or kInt, little-endian.
/// @param stride default: sequence_length, so that each token is predicted once. A smaller one
/// gives sequences that overlap; 1 gives every sequence there is, which is what nanoGPT draws from.
/// Throws UsageError where a length is not positive or for another dtype; DataError with the file
/// where it is missing or cannot be mapped, has a part of a token at its end, or has fewer than
/// sequence_length + 1 tokens.
std::shared_ptr<const Dataset> token_file(const std::filesystem::path& path,
                                          std::int64_t sequence_length,
                                          at::ScalarType dtype = at::kUInt16,
                                          std::optional<std::int64_t> stride = std::nullopt);

}  // namespace trireme::data
