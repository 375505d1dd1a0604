// SPDX-License-Identifier: Apache-2.0
// Tokens in tensors, and in the files that token_file.h reads.
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

/// Returns the tokens of `text`: int64 [tokens]. Throws as Tokenizer::encode does.
at::Tensor encode_to_tensor(const Tokenizer& tokenizer, std::string_view text);

/// Returns the text of an int64 tensor on the CPU, whatever its shape. Throws UsageError for
/// another tensor, and as Tokenizer::decode does.
std::string decode_tensor(const Tokenizer& tokenizer, const at::Tensor& tokens);

/// Writes a file of tokens piece after piece, so that a text may be larger than the memory. The
/// file appears when it is whole. Not thread-safe.
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
  /// @param dtype of the file: kUInt16, kUInt32 or kInt, little-endian.
  /// Throws UsageError for another dtype; CheckpointError, here and in the other methods, where the
  /// file system refuses.
  explicit TokenWriter(const std::filesystem::path& path, at::ScalarType dtype = at::kUInt16);

  /// Throws UsageError that names the token and its place in the file where the dtype cannot hold
  /// it. Nothing of `tokens` is written then.
  void add(std::span<const std::int64_t> tokens);

  /// Publishes the file and returns how many tokens it has; blocking. Call once, last.
  std::int64_t finish();

 private:
  at::ScalarType dtype_;
  AtomicFile file_;
  std::int64_t size_ = 0;
  std::vector<std::byte> buffer_;  // not written yet
};

/// Writes a file of these tokens, as TokenWriter does.
void write_tokens(const std::filesystem::path& path, std::span<const std::int64_t> tokens,
                  at::ScalarType dtype = at::kUInt16);

}  // namespace trireme::data
