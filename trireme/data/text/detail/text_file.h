// SPDX-License-Identifier: Apache-2.0
// Files as text and as JSON, with errors that name them.
#pragma once

#include <trireme/base/error.h>
#include <trireme/base/json_depth.h>

#include <filesystem>
#include <string>

namespace trireme::data::detail {

/// Throws DataError with the file where it is missing or cannot be read.
std::string read_text(const std::filesystem::path& path);

/// Reads a JSON object; a template, so that a header does not bring the library. Throws DataError
/// as read_text does, and with line and column where the file is none.
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
