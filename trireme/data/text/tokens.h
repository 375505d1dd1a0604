// SPDX-License-Identifier: Apache-2.0
// Converts tokens to tensors and to the files that token_file.h reads.
#pragma once

#include <trireme/base/atomic_file.h>
#include <trireme/data/text/tokenizer.h>

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::data {

/// Returns the tokens of `text` as int64 [tokens]. Throws like Tokenizer::encode.
at::Tensor encode_to_tensor(const Tokenizer& tokenizer, std::string_view text);

/// Returns the text of an int64 tensor of any shape on the CPU. Throws UsageError for another
/// tensor, and errors of Tokenizer::decode.
std::string decode_tensor(const Tokenizer& tokenizer, const at::Tensor& tokens);

/// Writes a file of tokens piece by piece, so the text may be larger than the memory. The file
/// appears under its name when finish() is called. Not thread-safe.
///
///     TokenWriter writer("train.bin");
///     const std::int64_t end = tokenizer.find("<|endoftext|>").value();
///     for (const std::string& document : documents) {
///       writer.add(tokenizer.encode_plain(document));
///       writer.add({&end, 1});
///     }
///     writer.finish();
class TokenWriter {
 public:
  /// Opens the file for writing.
  /// @param path the file to write.
  /// @param dtype the type of a token in the file: kUInt16, kUInt32 or kInt, little-endian.
  /// @throws UsageError for another dtype.
  /// @throws CheckpointError, here and in the other methods, if the file cannot be written.
  explicit TokenWriter(const std::filesystem::path& path, at::ScalarType dtype = at::kUInt16);

  /// Appends tokens. Throws UsageError with the token and its position in the file if the dtype
  /// cannot represent it; then none of `tokens` is written.
  void add(std::span<const std::int64_t> tokens);

  /// Publishes the file under its name and returns the number of tokens in it. Blocks until the
  /// file is on disk. Call it once, at the end.
  std::int64_t finish();

 private:
  at::ScalarType dtype_;
  AtomicFile file_;
  std::int64_t size_ = 0;
  // Bytes that are not written yet.
  std::vector<std::byte> buffer_;
};

/// Writes a file of these tokens, like TokenWriter.
void write_tokens(const std::filesystem::path& path, std::span<const std::int64_t> tokens,
                  at::ScalarType dtype = at::kUInt16);

}  // namespace trireme::data
