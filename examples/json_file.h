// SPDX-License-Identifier: Apache-2.0
// Reads the JSON files of folders that Hugging Face's package `transformers` writes.
#pragma once

#include <trireme/base/error.h>

#include <nlohmann/json.hpp>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

namespace examples {

/// Returns the object in a file. Throws DataError if there is none.
inline nlohmann::json read_json(const std::filesystem::path& path) {
  std::ifstream file(path);
  nlohmann::json content = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (content.is_object()) return content;
  throw trireme::DataError(path.string() + " is missing or no JSON object",
                           "give a folder that this example or Hugging Face's transformers wrote");
}

/// Returns a number of an object that was read from `path`. Throws DataError if it is missing.
inline std::int64_t number_in(const nlohmann::json& object, const char* name,
                              const std::filesystem::path& path) {
  const auto found = object.find(name);
  if (found != object.end() && found->is_number_integer()) return found->get<std::int64_t>();
  throw trireme::DataError(path.string() + " has no number " + name,
                           "give the folder of a model of the same kind");
}

}  // namespace examples
