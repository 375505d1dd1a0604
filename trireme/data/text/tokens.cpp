// SPDX-License-Identifier: Apache-2.0
#include <trireme/data/text/tokens.h>

#include <trireme/base/error.h>

#include <ATen/ops/empty.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

namespace trireme::data {
namespace {

static_assert(std::endian::native == std::endian::little, "the files are little-endian");

constexpr std::size_t kBufferBytes = std::size_t{1} << 20;

at::ScalarType checked(at::ScalarType dtype) {
  if (dtype == at::kUInt16 || dtype == at::kUInt32 || dtype == at::kInt) return dtype;
  throw UsageError(join_message("a token file of dtype ", dtype),
                   "give at::kUInt16, at::kUInt32 or at::kInt");
}

struct Range {
  std::int64_t least;
  std::int64_t most;
};

Range range_of(at::ScalarType dtype) {
  if (dtype == at::kUInt16) return {0, std::numeric_limits<std::uint16_t>::max()};
  if (dtype == at::kUInt32) return {0, std::numeric_limits<std::uint32_t>::max()};
  return {std::numeric_limits<std::int32_t>::min(), std::numeric_limits<std::int32_t>::max()};
}

}  // namespace

at::Tensor encode_to_tensor(const Tokenizer& tokenizer, std::string_view text) {
  const std::vector<std::int64_t> tokens = tokenizer.encode(text);
  at::Tensor tensor = at::empty({std::ssize(tokens)}, at::kLong);
  std::ranges::copy(tokens, tensor.mutable_data_ptr<std::int64_t>());
  return tensor;
}

std::string decode_tensor(const Tokenizer& tokenizer, const at::Tensor& tokens) {
  if (!tokens.defined() || tokens.scalar_type() != at::kLong || !tokens.is_cpu()) {
    throw UsageError("tokens that are not an int64 tensor on the CPU",
                     "give tokens.to(at::kCPU, at::kLong)");
  }
  const at::Tensor own = tokens.contiguous();
  return tokenizer.decode(
      {own.const_data_ptr<std::int64_t>(), static_cast<std::size_t>(own.numel())});
}

TokenWriter::TokenWriter(const std::filesystem::path& path, at::ScalarType dtype)
    : dtype_(checked(dtype)), file_(path) {}

void TokenWriter::add(std::span<const std::int64_t> tokens) {
  const auto [least, most] = range_of(dtype_);
  // All tokens are checked first, so that a failed call writes nothing.
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] >= least && tokens[i] <= most) continue;
    throw UsageError(
        join_message("token ", tokens[i], " at place ", size_ + static_cast<std::int64_t>(i),
                     " of a file of ", dtype_, ", which holds ", least, " to ", most),
        most < std::numeric_limits<std::int32_t>::max() ? "give at::kUInt32, here and to token_file"
                                                        : "check what made the tokens");
  }
  // On a little-endian machine, the low bytes of an int64 come first.
  const std::size_t token_bytes = c10::elementSize(dtype_);
  for (const std::int64_t token : tokens) {
    const std::size_t at = buffer_.size();
    buffer_.resize(at + token_bytes);
    std::memcpy(buffer_.data() + at, &token, token_bytes);
    if (buffer_.size() < kBufferBytes) continue;
    file_.write(buffer_);
    buffer_.clear();
  }
  size_ += std::ssize(tokens);
}

std::int64_t TokenWriter::finish() {
  file_.write(buffer_);
  file_.commit();
  return size_;
}

void write_tokens(const std::filesystem::path& path, std::span<const std::int64_t> tokens,
                  at::ScalarType dtype) {
  TokenWriter writer(path, dtype);
  writer.add(tokens);
  writer.finish();
}

}  // namespace trireme::data
