// SPDX-License-Identifier: Apache-2.0
// Reads files as text and as JSON, with errors that name the file.
#pragma once

#include <trireme/base/error.h>
#include <trireme/base/json_depth.h>

#include <filesystem>
#include <string>

namespace trireme::data::detail {

/// Returns the content of a file. Throws DataError with the file if it is missing or cannot be
/// read.
std::string read_text(const std::filesystem::path& path);

/// Reads a file that is a JSON object. A template, so that this header does not include the JSON
/// library. Throws DataError like read_text(), and with line and column if the file is not such an
/// object.
template <typename Json>
Json read_json(const std::filesystem::path& path) {
  const std::string text = read_text(path);
  if (const std::size_t depth = json_depth(text); depth > kDeepestJson) {
    throw DataError(join_message(path.string(), " is nested ", depth,
                                 " levels deep, expected at most ", kDeepestJson),
                    "the file is damaged, or not a vocabulary: get it anew");
  }
  Json content;
  try {
    content = Json::parse(text);
  } catch (const typename Json::exception& error) {
    throw DataError(join_message(path.string(), " is not JSON: ", error.what()),
                    "the file is damaged, or not a vocabulary: get it anew");
  }
  if (!content.is_object()) {
    throw DataError(join_message(path.string(), " is JSON, but not an object"),
                    "give the file of a vocabulary");
  }
  return content;
}

}  // namespace trireme::data::detail
