// SPDX-License-Identifier: Apache-2.0
// The names of the files of BertPairs, and its description, bert.json. docs/formats/bert-pairs.md
// describes them.
#pragma once

#include <trireme/data/text/bert_pairs.h>
#include <trireme/data/text/word_piece_tokenizer.h>

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <filesystem>
#include <string_view>

namespace trireme::data::detail {

inline constexpr const char* kPairsDescription = "bert.json";  ///< settings and sizes
inline constexpr const char* kPairsTokens = "tokens.bin";      ///< the tokens of all pairs
inline constexpr const char* kPairsLabels = "labels.bin";      ///< the labels, if masked
inline constexpr const char* kPairsPlaces = "pairs.npy";       ///< where each pair is
inline constexpr const char* kPairsVocabulary = "vocab.txt";   ///< the vocabulary
inline constexpr std::int64_t kShortestPair = 5;               ///< [CLS] a [SEP] b [SEP]
inline constexpr std::int64_t kLongestSequence = 1 << 20;      ///< of a sequence_length
inline constexpr std::int64_t kMostUint16Tokens = 1 << 16;     ///< in a vocabulary of uint16

/// What bert.json says.
struct PairsDescription {
  BertPairsSettings settings;        ///< how the pairs were made
  std::int64_t vocabulary_size = 0;  ///< the number of tokens in vocab.txt
  std::int64_t pairs = 0;            ///< the number of pairs
  std::int64_t tokens = 0;           ///< the number of tokens of all pairs
};

/// Returns the type of a token in tokens.bin: kUInt16 if the vocabulary permits it, else kUInt32.
at::ScalarType token_type_of(std::int64_t vocabulary_size);

/// Returns the number of a special token. Throws DataError if the vocabulary lacks it.
std::int64_t special_token(const WordPieceTokenizer& tokenizer, std::string_view name);

/// Throws UsageError for settings out of range.
void check_settings(const BertPairsSettings& settings);

/// Reads bert.json of a folder. Throws DataError with the file and the member.
PairsDescription read_description(const std::filesystem::path& folder);

/// Writes bert.json into a folder. Throws CheckpointError if it cannot be written.
void write_description(const std::filesystem::path& folder, const PairsDescription& description);

}  // namespace trireme::data::detail
