// SPDX-License-Identifier: Apache-2.0
// Data sets of token sequences for language models. docs/formats/datasets.md describes the file.
#pragma once

#include <trireme/data/dataset.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>

namespace trireme::data {

/// Makes a data set of the sequences in a file of tokens.
///
/// The file holds tokens only, without a header, like the `.bin` files that nanoGPT's
/// data/*/prepare.py writes. It is memory-mapped, so it may be larger than the memory. It must not
/// be truncated or written to while the data set is in use.
///
/// Sample i begins at token i * stride. The columns are "input", int64 [sequence_length], and
/// "target", int64 [sequence_length], which is the input shifted by one token. There are (tokens -
/// 1 - sequence_length) / stride + 1 samples, rounded down; tokens left over at the end are not
/// used. The token numbers are not checked against a vocabulary.
///
/// @param path the file.
/// @param sequence_length the number of tokens of a sample.
/// @param dtype the type of a token in the file: kUInt16, kUInt32 or kInt, little-endian.
/// @param stride the distance between the beginnings of two samples. The default, sequence_length,
/// makes each token a target once. A smaller stride gives overlapping sequences. With 1 the data
/// set has every possible sequence, which is what nanoGPT draws from.
/// @throws UsageError if a length is not positive, or for another dtype.
/// @throws DataError with the file if it is missing or cannot be mapped, ends within a token, or
/// has fewer than sequence_length + 1 tokens.
std::shared_ptr<const Dataset> token_file(const std::filesystem::path& path,
                                          std::int64_t sequence_length,
                                          at::ScalarType dtype = at::kUInt16,
                                          std::optional<std::int64_t> stride = std::nullopt);

}  // namespace trireme::data
