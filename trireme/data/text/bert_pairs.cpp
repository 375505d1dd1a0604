// SPDX-License-Identifier: Apache-2.0
#include <trireme/data/text/bert_pairs.h>

#include <trireme/base/error.h>
#include <trireme/data/detail/dataset_checks.h>
#include <trireme/data/detail/mapped_file.h>
#include <trireme/data/npy.h>
#include <trireme/data/text/detail/bert_pairs_files.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

namespace trireme::data {
namespace {

constexpr std::string_view kRemake = "the folder is damaged: make it anew with trireme data bert";
constexpr std::int64_t kFields = 3;  // of a row of pairs.npy: begin, second sentence, next_sentence

// Maps a file of numbers without a header.
at::Tensor map_numbers(const std::filesystem::path& path, at::ScalarType dtype,
                       std::int64_t count) {
  const at::Tensor bytes = detail::map_file(path);
  const auto expected = count * static_cast<std::int64_t>(c10::elementSize(dtype));
  if (bytes.numel() != expected) {
    throw DataError(join_message(path.string(), " has ", bytes.numel(), " bytes, expected ",
                                 expected, ": ", count, " of ", dtype),
                    kRemake);
  }
  return bytes.view(dtype);
}

at::Tensor map_pairs(const std::filesystem::path& path, std::int64_t pairs) {
  at::Tensor rows = read_npy(path);
  const bool fits = rows.scalar_type() == at::kLong && rows.dim() == 2 && rows.size(0) == pairs &&
                    rows.size(1) == kFields;
  if (!fits) {
    throw DataError(join_message(path.string(), " is ", rows.scalar_type(), ' ', rows.sizes(),
                                 ", expected Long [", pairs, ", ", kFields, ']'),
                    kRemake);
  }
  return rows;
}

}  // namespace

BertPairs::BertPairs(const std::filesystem::path& folder)
    : folder_(folder),
      settings_(detail::read_description(folder).settings),
      tokenizer_(WordPieceTokenizer::read(folder / detail::kPairsVocabulary,
                                          {.lowercase = settings_.lowercase})),
      padding_(detail::special_token(tokenizer_, "[PAD]")),
      columns_{"tokens", "token_types", "mask", "next_sentence"} {
  const detail::PairsDescription description = detail::read_description(folder);
  if (description.vocabulary_size != tokenizer_.vocabulary_size()) {
    throw DataError(join_message((folder / detail::kPairsVocabulary).string(), " has ",
                                 tokenizer_.vocabulary_size(), " tokens, expected ",
                                 description.vocabulary_size),
                    kRemake);
  }
  pairs_ = map_pairs(folder / detail::kPairsPlaces, description.pairs);
  tokens_ = map_numbers(folder / detail::kPairsTokens,
                        detail::token_type_of(description.vocabulary_size), description.tokens);
  if (settings_.static_masking) {
    labels_ = map_numbers(folder / detail::kPairsLabels, at::kInt, description.tokens);
    columns_.insert(columns_.begin() + 1, "labels");
  }
}

std::int64_t BertPairs::token(std::int64_t place) const {
  const std::int64_t number =
      tokens_.scalar_type() == at::kUInt16
          ? std::int64_t{static_cast<const std::uint16_t*>(tokens_.const_data_ptr())[place]}
          : std::int64_t{static_cast<const std::uint32_t*>(tokens_.const_data_ptr())[place]};
  if (number < tokenizer_.vocabulary_size()) return number;
  throw DataError(join_message((folder_ / detail::kPairsTokens).string(), ": token ", place, " is ",
                               number, ", but the vocabulary has ", tokenizer_.vocabulary_size()),
                  kRemake);
}

std::int64_t BertPairs::label(std::int64_t place) const {
  const std::int64_t number = labels_.const_data_ptr<std::int32_t>()[place];
  if (number == kIgnoredLabel || (number >= 0 && number < tokenizer_.vocabulary_size()))
    return number;
  throw DataError(join_message((folder_ / detail::kPairsLabels).string(), ": label ", place, " is ",
                               number, ", expected ", kIgnoredLabel, " or a token below ",
                               tokenizer_.vocabulary_size()),
                  kRemake);
}

std::vector<at::Tensor> BertPairs::get(std::int64_t index) const {
  detail::check_index(index, size());
  const auto* const row = pairs_.const_data_ptr<std::int64_t>() + index * kFields;
  const std::int64_t begin = row[0];
  const std::int64_t second = row[1];
  const std::int64_t end = index + 1 < size() ? row[kFields] : tokens_.numel();
  const std::int64_t length = settings_.sequence_length;
  const bool fits = begin >= 0 && begin < second && second < end && end <= tokens_.numel() &&
                    end - begin <= length && (row[2] == 0 || row[2] == 1);
  if (!fits) {
    throw DataError(join_message((folder_ / detail::kPairsPlaces).string(), ": row ", index, " is ",
                                 begin, ", ", second, ", ", row[2], ", and the pair ends at ", end,
                                 " of ", tokens_.numel(), " tokens; a pair has at most ", length),
                    kRemake);
  }
  at::Tensor tokens = at::full({length}, padding_, at::kLong);
  at::Tensor token_types = at::zeros({length}, at::kLong);
  at::Tensor mask = at::zeros({length}, at::kBool);
  std::fill_n(token_types.mutable_data_ptr<std::int64_t>() + (second - begin), end - second, 1);
  std::fill_n(mask.mutable_data_ptr<bool>(), end - begin, true);
  auto* const to = tokens.mutable_data_ptr<std::int64_t>();
  for (std::int64_t place = begin; place < end; ++place) to[place - begin] = token(place);
  std::vector<at::Tensor> sample{std::move(tokens), std::move(token_types), std::move(mask),
                                 at::scalar_tensor(row[2], at::kLong)};
  if (labels_.defined()) {
    at::Tensor labels = at::full({length}, kIgnoredLabel, at::kLong);
    auto* const label = labels.mutable_data_ptr<std::int64_t>();
    for (std::int64_t place = begin; place < end; ++place)
      label[place - begin] = this->label(place);
    sample.insert(sample.begin() + 1, std::move(labels));
  }
  return sample;
}

std::shared_ptr<const BertPairs> bert_pairs(const std::filesystem::path& folder) {
  return std::make_shared<const BertPairs>(folder);
}

DataLoader bert_batches(const std::shared_ptr<const BertPairs>& pairs,
                        const std::shared_ptr<const Dataset>& samples) {
  DataLoader loader(samples ? samples : pairs);
  const BertPairsSettings& settings = pairs->settings();
  if (!settings.static_masking) {
    loader.map_columns({"tokens"}, {"tokens", "labels"},
                       bert_masking(masking_of(pairs->tokenizer(), settings.mask_probability,
                                               settings.whole_words)));
  }
  return loader;
}

BertMaskingOptions masking_of(const WordPieceTokenizer& tokenizer, double probability,
                              bool whole_words) {
  BertMaskingOptions options{.mask_token = detail::special_token(tokenizer, "[MASK]"),
                             .vocabulary_size = tokenizer.vocabulary_size(),
                             .probability = probability};
  for (const char* const name : {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}) {
    options.special_tokens.push_back(detail::special_token(tokenizer, name));
  }
  for (std::int64_t token = 0; whole_words && token < options.vocabulary_size; ++token) {
    // A token alone is decoded as the vocabulary writes it.
    if (tokenizer.decode({&token, 1}).starts_with("##")) options.continuations.push_back(token);
  }
  return options;
}

}  // namespace trireme::data
