// SPDX-License-Identifier: Apache-2.0
#include <trireme/data/token_file.h>

#include <trireme/base/error.h>
#include <trireme/data/detail/dataset_checks.h>
#include <trireme/data/detail/mapped_file.h>

#include <ATen/ops/empty.h>

#include <algorithm>
#include <bit>
#include <utility>

namespace trireme::data {
namespace {

static_assert(std::endian::native == std::endian::little, "the files are little-endian");

class TokenFile final : public Dataset {
 public:
  TokenFile(at::Tensor bytes, at::ScalarType dtype, std::int64_t sequence_length,
            std::int64_t stride, std::int64_t size)
      : bytes_(std::move(bytes)),
        dtype_(dtype),
        sequence_length_(sequence_length),
        stride_(stride),
        size_(size) {}

  std::int64_t size() const override { return size_; }
  const std::vector<std::string>& columns() const override { return names_; }

  std::vector<at::Tensor> get(std::int64_t index) const override {
    detail::check_index(index, size_);
    std::vector<at::Tensor> sample;
    for (const std::int64_t shift : {0, 1}) sample.push_back(sequence(index * stride_ + shift));
    return sample;
  }

 private:
  at::Tensor sequence(std::int64_t begin) const {
    if (dtype_ == at::kUInt16) return widen<std::uint16_t>(begin);
    if (dtype_ == at::kUInt32) return widen<std::uint32_t>(begin);
    return widen<std::int32_t>(begin);
  }

  // Converts tokens to int64. This is a loop because at::Tensor::to starts OpenMP threads for long
  // sequences.
  template <typename Token>
  at::Tensor widen(std::int64_t begin) const {
    at::Tensor sequence = at::empty({sequence_length_}, at::kLong);
    const auto* tokens = static_cast<const Token*>(bytes_.const_data_ptr());
    std::copy_n(tokens + begin, sequence_length_, sequence.mutable_data_ptr<std::int64_t>());
    return sequence;
  }

  at::Tensor bytes_;  // The mapped file.
  at::ScalarType dtype_;
  std::int64_t sequence_length_;
  std::int64_t stride_;
  std::int64_t size_;
  std::vector<std::string> names_ = {"input", "target"};
};

void check_length(std::string_view what, std::int64_t value) {
  if (value >= 1) return;
  throw UsageError(join_message("the ", what, " of a token file is ", value), "give at least 1");
}

}  // namespace

std::shared_ptr<const Dataset> token_file(const std::filesystem::path& path,
                                          std::int64_t sequence_length, at::ScalarType dtype,
                                          std::optional<std::int64_t> stride) {
  const std::int64_t step = stride.value_or(sequence_length);
  check_length("sequence length", sequence_length);
  check_length("stride", step);
  if (dtype != at::kUInt16 && dtype != at::kUInt32 && dtype != at::kInt) {
    throw UsageError(join_message("a token file of dtype ", dtype),
                     "give at::kUInt16, at::kUInt32 or at::kInt");
  }
  at::Tensor bytes = detail::map_file(path);
  const auto token_bytes = static_cast<std::int64_t>(c10::elementSize(dtype));
  const std::int64_t tokens = bytes.numel() / token_bytes;
  if (const std::int64_t rest = bytes.numel() % token_bytes; rest != 0) {
    throw DataError(join_message(path.string(), ": offset ", bytes.numel() - rest,
                                 ": the last token has ", rest, " bytes, expected ", token_bytes),
                    "the file is cut short, or its tokens are of another dtype");
  }
  if (tokens <= sequence_length) {
    throw DataError(
        join_message(path.string(), " has ", tokens, " tokens, too few for one sequence of ",
                     sequence_length, " and its target"),
        "give a shorter sequence length or a longer file");
  }
  const std::int64_t size = (tokens - 1 - sequence_length) / step + 1;
  return std::make_shared<TokenFile>(std::move(bytes), dtype, sequence_length, step, size);
}

}  // namespace trireme::data
