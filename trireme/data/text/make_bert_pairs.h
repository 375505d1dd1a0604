// SPDX-License-Identifier: Apache-2.0
// Makes pairs of sentences for pre-training BERT from plain text: Devlin, Chang, Lee, Toutanova,
// "BERT" (2019), sections 3.1 and A.2. docs/formats/bert-pairs.md describes the files.
#pragma once

#include <trireme/data/text/bert_pairs.h>
#include <trireme/data/text/sentences.h>

#include <cstdint>
#include <filesystem>
#include <vector>

namespace trireme::data {

/// The sizes of the pairs that were made.
struct MadeBertPairs {
  std::int64_t documents = 0;     ///< documents read
  std::int64_t sentences = 0;     ///< sentences of these with at least one token
  std::int64_t pairs = 0;         ///< pairs written
  std::int64_t random_pairs = 0;  ///< those whose second sentence is a random one
  std::int64_t tokens = 0;        ///< tokens of all pairs, without padding
};

/// Makes pairs of the documents in text files and writes them to a folder, which bert_pairs()
/// opens.
///
/// Sentences of a document are collected until they have as many tokens as fit into a pair. They
/// are cut at a random place: what comes before is the first sentence, and what comes after the
/// second, or a random piece of another document in its stead. In the latter case the rest comes
/// back in the next pair. A single sentence always gets a random second one. So more than
/// `random_probability` of the pairs may have one. A pair that is too long loses tokens at a random
/// end of the longer sentence. The same texts, vocabulary and settings give the same files.
///
/// All texts are in memory as tokens, four bytes each. Blocking. An earlier content of the folder
/// is replaced; it cannot be opened while this runs.
/// @param files the texts.
/// @param form their form.
/// @param vocabulary BERT's vocab.txt; it is copied to the folder.
/// @param folder the folder to write; it is created if it does not exist.
/// @throws UsageError for settings out of range.
/// @throws DataError with file and line like read_documents() and WordPieceTokenizer::read, and if
/// there are fewer than two documents.
/// @throws CheckpointError if a file cannot be written.
MadeBertPairs make_bert_pairs(const std::vector<std::filesystem::path>& files, TextForm form,
                              const std::filesystem::path& vocabulary,
                              const std::filesystem::path& folder,
                              const BertPairsSettings& settings = {});

}  // namespace trireme::data
