// SPDX-License-Identifier: Apache-2.0
// The tasks of `trireme data vocabulary` and `trireme data bert`: their parsed form and their
// execution.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace trireme::apps {

/// A parsed command line. The defaults are those of BertPairsSettings and WordPieceTrainingOptions.
struct TextDataTask {
  /// The subcommand.
  enum class Kind { kVocabulary, kBertPairs };
  /// The subcommand.
  Kind kind = Kind::kVocabulary;
  /// The texts.
  std::vector<std::string> texts{};
  /// The file or folder to write.
  std::string to;
  /// Keeps capitals and accents.
  bool is_cased = false;
  /// The number of tokens of a vocabulary that is trained.
  std::int64_t vocabulary_size = 8192;
  /// The least number of occurrences of a pair of tokens that is merged (`vocabulary`).
  std::int64_t minimum_count = 2;
  // The fields below belong to `bert`.
  std::string vocabulary;              ///< an existing vocabulary; empty to train one
  bool is_prose = false;               ///< texts are prose, not one sentence per line
  std::int64_t sequence_length = 128;  ///< tokens of a pair
  std::int64_t repeats = 1;            ///< passes over the documents
  double short_probability = 0.1;      ///< share of shorter pairs
  double mask_probability = 0.15;      ///< share of masked tokens
  bool whole_words = false;            ///< masks whole words
  bool static_masking = false;         ///< masks once
  std::uint64_t seed = 0;              ///< of all random choices
};

/// Executes a task and prints what was written. Throws Error.
void do_text_data_task(const TextDataTask& task);

}  // namespace trireme::apps
