// SPDX-License-Identifier: Apache-2.0
// Pairs of sentences for pre-training BERT, from the files that make_bert_pairs() or `trireme data
// bert` writes. docs/formats/bert-pairs.md describes them.
#pragma once

#include <trireme/data/data_loader.h>
#include <trireme/data/dataset.h>
#include <trireme/data/text/masking.h>
#include <trireme/data/text/word_piece_tokenizer.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace trireme::data {

/// How pairs of sentences are made of documents. The defaults are those of BERT.
struct BertPairsSettings {
  /// The maximum number of tokens of a pair, with [CLS] and twice [SEP]; at least 5.
  std::int64_t sequence_length = 128;
  /// The number of passes over the documents, each with other pairs.
  std::int64_t repeats = 1;
  /// The share of pairs that are made for a random, shorter length.
  double short_probability = 0.1;
  /// The probability that the second sentence is from another document, where there is a choice.
  double random_probability = 0.5;
  /// The probability that a token, or a whole word, is masked.
  double mask_probability = 0.15;
  /// Masks whole words rather than single tokens.
  bool whole_words = false;
  /// Masks tokens once, when the files are written, rather than anew in every epoch.
  bool static_masking = false;
  /// Texts are converted to lower case, and accents are removed.
  bool lowercase = true;
  /// The seed of all random choices.
  std::uint64_t seed = 0;

  bool operator==(const BertPairsSettings&) const = default;
};

/// The pairs in a folder, as samples. The files are memory-mapped. They must not be changed while
/// the data set is in use. Samples are padded to the sequence length. The columns are
/// - `tokens`, int64 [sequence_length]: [CLS] first sentence [SEP] second sentence [SEP] [PAD] …;
/// - `labels`, int64 [sequence_length]: the original token where it is masked, kIgnoredLabel
///   elsewhere; only if the files were masked when they were written;
/// - `token_types`, int64 [sequence_length]: 0 to the first [SEP], 1 to the second, 0 for padding;
/// - `mask`, bool [sequence_length]: false for padding;
/// - `next_sentence`, int64 []: 0 if the second sentence follows the first, 1 if it is a random
/// one.
///
/// Const methods may be called concurrently.
class BertPairs final : public Dataset {
 public:
  /// Opens a folder. Throws DataError like bert_pairs().
  explicit BertPairs(const std::filesystem::path& folder);

  std::int64_t size() const override { return pairs_.size(0); }
  const std::vector<std::string>& columns() const override { return columns_; }
  /// Throws DataError with file and row or offset if the pair is damaged.
  std::vector<at::Tensor> get(std::int64_t index) const override;

  /// Returns how the pairs were made.
  const BertPairsSettings& settings() const { return settings_; }
  /// Returns the tokenizer of the vocabulary in the folder.
  const WordPieceTokenizer& tokenizer() const { return tokenizer_; }
  /// Returns the number of [PAD].
  std::int64_t padding() const { return padding_; }

 private:
  std::int64_t token(std::int64_t place) const;
  std::int64_t label(std::int64_t place) const;

  std::filesystem::path folder_;
  BertPairsSettings settings_;
  WordPieceTokenizer tokenizer_;
  std::int64_t padding_ = 0;
  at::Tensor pairs_;   // [pairs, 3], int64
  at::Tensor tokens_;  // The mapped file, uint16 or uint32.
  at::Tensor labels_;  // The same of int32, if the files are masked.
  std::vector<std::string> columns_;
};

/// Opens a folder of pairs.
/// @throws DataError with the file if one is missing, damaged, or does not fit the others.
std::shared_ptr<const BertPairs> bert_pairs(const std::filesystem::path& folder);

/// Returns a loader with the columns `tokens`, `labels`, `token_types`, `mask` and
/// `next_sentence`, which masks tokens anew in each epoch unless the files are masked already. Add
/// shuffle(), batch() and so on.
///
///     const auto pairs = bert_pairs("data/bert");
///     auto training = bert_batches(pairs, skip(pairs, 1000)).shuffle(1).batch(32).prefetch(2);
/// @param pairs the pairs.
/// @param samples some of them, as a view (dataset_views.h); all by default.
DataLoader bert_batches(const std::shared_ptr<const BertPairs>& pairs,
                        const std::shared_ptr<const Dataset>& samples = nullptr);

/// Returns the options of masking for a tokenizer with BERT's special tokens.
/// @throws DataError if one of them is not in the vocabulary.
BertMaskingOptions masking_of(const WordPieceTokenizer& tokenizer, double probability = 0.15,
                              bool whole_words = false);

}  // namespace trireme::data
