// SPDX-License-Identifier: Apache-2.0
// Typed access to a JSON document, with errors that name the place. Templates keep the JSON library
// out of this header; `Json` is nlohmann::json.
#pragma once

#include <trireme/base/error.h>
#include <trireme/graph/show/text_format.h>

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace trireme::graph::detail {

/// Parses a text. Throws DataError with `source` for text that is no JSON, with line and column
/// counted from 1 (not for numbers out of range). Throws it also for an object that has a key
/// twice, and for nesting deeper than a graph has.
template <typename Json>
Json parse_json(std::string_view text, std::string_view source);

/// Returns a value for messages: the beginning of a number or string, otherwise its type.
template <typename Json>
std::string shown(const Json& json);

/// Returns a description of the type for messages.
template <typename Type>
constexpr std::string_view expected() {
  if constexpr (std::is_same_v<Type, bool>) {
    return "true or false";
  } else if constexpr (std::is_floating_point_v<Type>) {
    return "a number";
  } else if constexpr (std::is_integral_v<Type>) {
    return "a whole number";
  } else {
    return "a text";
  }
}

/// Returns the value; nullopt if it has another type or does not fit.
template <typename Type, typename Json>
std::optional<Type> converted(const Json& json) {
  if constexpr (std::is_same_v<Type, bool>) {
    if (json.is_boolean()) return json.template get<bool>();
  } else if constexpr (std::is_floating_point_v<Type>) {
    if (json.is_number()) return json.template get<Type>();
  } else if constexpr (std::is_integral_v<Type>) {
    constexpr auto kMost = static_cast<std::uint64_t>(std::numeric_limits<Type>::max());
    if (json.is_number_unsigned() && json.template get<std::uint64_t>() > kMost)
      return std::nullopt;
    if (json.is_number_integer() &&
        json.template get<std::int64_t>() >= std::numeric_limits<Type>::lowest()) {
      return json.template get<Type>();
    }
  } else {
    if (json.is_string()) return json.template get<Type>();
  }
  return std::nullopt;
}

/// Reads parts of a document. Every method throws DataError with source and place. Not thread-safe.
class JsonReader {
 public:
  explicit JsonReader(std::string_view source) : source_(source) {}

  /// Sets the place for messages, such as `nodes[12]`; empty stands for the document.
  void set_place(std::string place) { place_ = std::move(place); }

  /// Throws DataError.
  [[noreturn]] void fail(const std::string& what, std::string_view hint = kDamagedHint) const {
    throw DataError(join_message(source_, ": ", place_, place_.empty() ? "" : ": ", what), hint);
  }

  /// Returns a value of the given type; `what` names it in errors.
  template <typename Type, typename Json>
  Type as(const Json& json, std::string_view what) const {
    const std::optional<Type> value = converted<Type>(json);
    if (!value) fail(join_message(what, " is ", shown(json), ", expected ", expected<Type>()));
    return *value;
  }

  /// Returns the element of an object.
  template <typename Json>
  const Json& part(const Json& json, const char* key) const {
    if (!json.is_object()) fail(join_message("found ", shown(json), ", expected an object"));
    const auto found = json.find(key);
    if (found == json.end()) fail(join_message("'", key, "' is missing"));
    return *found;
  }

  /// Returns the element of an object as the given type.
  template <typename Type, typename Json>
  Type get(const Json& json, const char* key) const {
    return as<Type>(part(json, key), key);
  }

  /// Returns the element of an object as the given type; `otherwise` if it is missing.
  template <typename Type, typename Json>
  Type get(const Json& json, const char* key, const Type& otherwise) const {
    return json.is_object() && !json.contains(key) ? otherwise : get<Type>(json, key);
  }

  /// Returns the element of an object, which must be a list.
  template <typename Json>
  const Json& list(const Json& json, const char* key) const {
    const Json& all = part(json, key);
    if (!all.is_array()) fail(join_message(key, " is ", shown(all), ", expected a list"));
    return all;
  }

  /// Returns the element of an object, which must be a list of values of the given type.
  template <typename Type, typename Json>
  std::vector<Type> all_of(const Json& json, const char* key) const {
    std::vector<Type> all;
    for (const Json& item : list(json, key)) all.push_back(as<Type>(item, key));
    return all;
  }

 private:
  std::string source_;
  std::string place_;
};

/// Returns an argument of an operator as Node::arguments has it.
template <typename Json>
c10::IValue read_argument(const JsonReader& reader, const Json& json);

}  // namespace trireme::graph::detail
