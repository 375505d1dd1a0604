// SPDX-License-Identifier: Apache-2.0
// Reads plain text as documents of sentences, which BERT is pre-trained on.
// docs/formats/bert-pairs.md describes the two forms of text.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::data {

/// The form of a text file.
enum class TextForm {
  /// One sentence per line; empty lines separate documents.
  kSentences,
  /// Prose: an empty line ends a paragraph, and two or more end a document. Lines of a paragraph
  /// are joined, and sentences are found by split_sentences().
  kProse,
};

/// The sentences of a document, in order.
using Document = std::vector<std::string>;

/// Reads the documents of a file. The end of the file ends a document. White space at both ends of
/// a sentence is removed, and documents without a sentence are left out. Blocking.
/// @throws DataError with the file if it is missing or cannot be read, and with file and line if a
/// line is not UTF-8.
std::vector<Document> read_documents(const std::filesystem::path& path, TextForm form);

/// Splits a paragraph into sentences. A sentence ends after `.`, `!` or `?`, and the quotation
/// marks and brackets that follow, if white space or the end comes next. So abbreviations end a
/// sentence, too.
std::vector<std::string> split_sentences(std::string_view paragraph);

}  // namespace trireme::data
