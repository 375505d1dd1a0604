// SPDX-License-Identifier: Apache-2.0
// Codecs: how a field of one type is read from a Value, written to one, and described in an error
// message. A type that is a single value specialises Codec like this:
//
//   template <>
//   struct trireme::config::Codec<Color> {
//     static std::string expected() { return "a color such as \"#ff8000\""; }
//     static std::optional<Color> parse(const Value& value);  // std::nullopt if it is not a Color
//     static Value write(const Color& color);
//   };
//
// An enumeration only needs a function `enum_names(E)` beside it, and a struct only its fields
// (fields.h).
#pragma once

#include <trireme/base/config/duration.h>
#include <trireme/base/config/suggestion.h>
#include <trireme/base/config/value.h>
#include <trireme/base/text.h>

#include <array>
#include <charconv>
#include <chrono>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace trireme::config {

class Fields;

/// Satisfied by a struct with a member function `void fields(trireme::config::Fields&)`.
template <typename T>
concept HasFieldsMember = requires(T& settings, Fields& fields) { settings.fields(fields); };

/// Satisfied by a struct with a free function `void describe(trireme::config::Fields&, T&)` in its
/// namespace.
template <typename T>
concept HasDescribe = requires(T& settings, Fields& fields) { describe(fields, settings); };

/// Satisfied by a struct that describes its fields in either of these two ways.
template <typename T>
concept Described = std::is_class_v<T> && (HasFieldsMember<T> || HasDescribe<T>);

/// The values of an enumeration with their names, in the order in which messages list them.
template <typename E>
using EnumNames = std::vector<std::pair<E, std::string>>;

/// Satisfied by an enumeration with a function `inline EnumNames<E> enum_names(E) { return
/// {{E::kOne, "one"}, ...}; }` in its namespace.
template <typename E>
concept NamedEnum = std::is_enum_v<E> && requires(E value) {
  { enum_names(value) } -> std::convertible_to<EnumNames<E>>;
};

/// Reads, writes and describes values of type T; specialised below for each supported type.
template <typename T>
struct Codec;

/// The context of reading one value: its key and limits for messages, and the list that collects
/// problems.
struct Place {
  std::string key;     ///< the key that messages name
  std::string limits;  ///< the text about limits that follows what was expected
  Problems& problems;  ///< the list that collects problems

  /// Adds a problem: `value` is not what was expected.
  void refuse(const Value& value, const std::string& expected, const std::string& hint = {}) const;
};

/// Returns `value` as a T. If it is not one, adds a problem and returns std::nullopt.
template <typename T>
std::optional<T> read_value(const Value& value, const Place& place) {
  if constexpr (requires { Codec<T>::parse(value); }) {
    auto parsed = Codec<T>::parse(value);
    if (!parsed) place.refuse(value, Codec<T>::expected());
    return parsed;
  } else {
    return Codec<T>::read(value, place);
  }
}

/// Reads and writes `true` and `false`.
template <>
struct Codec<bool> {
  static std::string expected() { return "true or false"; }
  static std::optional<bool> parse(const Value& value) {
    const bool* const flag = value.get<bool>();
    return flag != nullptr ? std::optional(*flag) : std::nullopt;
  }
  static Value write(bool flag) { return {.data = flag}; }
};

/// Reads and writes integers of any width; a value that does not fit the type is a problem.
template <std::integral T>
struct Codec<T> {
  static std::string expected() { return "an integer"; }
  static std::optional<T> read(const Value& value, const Place& place) {
    const std::int64_t* const integer = value.get<std::int64_t>();
    if (integer != nullptr && std::in_range<T>(*integer)) return static_cast<T>(*integer);
    place.refuse(value, integer == nullptr
                            ? expected()
                            : "an integer from " + std::to_string(std::numeric_limits<T>::min()) +
                                  " to " + std::to_string(std::numeric_limits<T>::max()));
    return std::nullopt;
  }
  static Value write(T integer) { return {.data = static_cast<std::int64_t>(integer)}; }
};

/// Reads and writes floating-point numbers; an integer is accepted too.
template <std::floating_point T>
struct Codec<T> {
  static std::string expected() { return "a number"; }
  static std::optional<T> parse(const Value& value) {
    if (const auto* integer = value.get<std::int64_t>()) return static_cast<T>(*integer);
    if (const auto* number = value.get<double>()) return narrow(*number);
    if (const auto* text = value.get<std::string>(); text != nullptr && value.typed) {
      // `.5` and `1e-3.` are not TOML, but accepted on the command line
      if (const auto number = parse_number<double>(*text)) return narrow(*number);
    }
    return std::nullopt;
  }
  // Goes through the shortest digits of T, so that 0.1F is written as 0.1 and not as
  // 0.10000000149011612.
  static Value write(T number) {
    std::array<char, 64> digits{};
    const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), number).ptr;
    double shortest = 0;
    std::from_chars(digits.data(), end, shortest);
    return {.data = shortest};
  }

 private:
  // Returns std::nullopt if a finite number overflows the narrower type.
  static std::optional<T> narrow(double number) {
    const T narrowed = static_cast<T>(number);
    if (std::isinf(narrowed) != std::isinf(number)) return std::nullopt;
    return narrowed;
  }
};

/// Reads and writes strings; on the command line without quotes.
template <>
struct Codec<std::string> {
  static std::string expected() { return "a text in quotes"; }
  static std::optional<std::string> parse(const Value& value) { return value.text(); }
  static Value write(const std::string& text) { return {.data = text}; }
};

/// Reads and writes paths. Relative paths are relative to the working directory of the program.
template <>
struct Codec<std::filesystem::path> {
  static std::string expected() { return "a path in quotes"; }
  static std::optional<std::filesystem::path> parse(const Value& value) { return value.text(); }
  static Value write(const std::filesystem::path& path) { return {.data = path.string()}; }
};

/// Reads and writes an enumeration by the names of its values.
template <NamedEnum E>
struct Codec<E> {
  static std::string expected() {
    std::string names;
    for (const auto& [value, name] : enum_names(E{})) {
      names += (names.empty() ? "\"" : ", \"") + name + "\"";
    }
    return "one of " + names;
  }
  static std::optional<E> read(const Value& value, const Place& place) {
    const auto text = value.text();
    std::vector<std::string> names;
    for (const auto& [candidate, name] : enum_names(E{})) {
      if (text && *text == name) return candidate;
      names.push_back(name);
    }
    place.refuse(value, expected(), did_you_mean(text.value_or(""), names));
    return std::nullopt;
  }
  static Value write(E written) {
    for (const auto& [value, name] : enum_names(E{})) {
      if (value == written) return {.data = name};
    }
    return {.data = static_cast<std::int64_t>(written)};  // it has no name; check() refuses it
  }
};

/// Reads and writes durations with a unit, such as `30 s`. For an integer representation, the
/// duration must be a whole number of its periods.
template <typename Rep, typename Period>
struct Codec<std::chrono::duration<Rep, Period>> {
  using Duration = std::chrono::duration<Rep, Period>;
  static constexpr std::int64_t kPeriod =
      std::chrono::nanoseconds(std::chrono::duration<std::int64_t, Period>(1)).count();

  static std::string expected() {
    std::string example = "a duration such as \"30 s\" or \"1.5 h\"";
    if constexpr (std::floating_point<Rep>) return example;
    return example + ", in whole " + duration_text(std::int64_t{1}, kPeriod);
  }
  static std::optional<Duration> parse(const Value& value) {
    const auto text = value.text();
    const auto written = text ? parse_duration(*text) : std::nullopt;
    if (!written) return std::nullopt;
    if constexpr (std::floating_point<Rep>) {
      return Duration(
          static_cast<Rep>(written->number * static_cast<long double>(written->unit_ns) /
                           static_cast<long double>(kPeriod)));
    } else {
      const auto count = whole_periods(*written, kPeriod);
      if (!count || !std::in_range<Rep>(*count)) return std::nullopt;
      return Duration(static_cast<Rep>(*count));
    }
  }
  static Value write(const Duration& duration) {
    if constexpr (std::floating_point<Rep>) {
      return {.data = duration_text(static_cast<double>(duration.count()), kPeriod)};
    } else {
      return {.data = duration_text(static_cast<std::int64_t>(duration.count()), kPeriod)};
    }
  }
};

/// Throws ConfigError for the text "none", which is reserved for an optional without a value.
void refuse_none(const Value& value);

/// Reads and writes an optional. An optional without a value is written `"none"`, because TOML has
/// no null.
template <typename T>
struct Codec<std::optional<T>> {
  static std::string expected() { return Codec<T>::expected() + ", or \"none\""; }
  static std::optional<std::optional<T>> read(const Value& value, const Place& place) {
    if (value.text() == "none") return std::optional<std::optional<T>>(std::in_place);
    auto read = read_value<T>(value, place);
    if (!read) return std::nullopt;
    return std::make_optional(std::move(read));
  }
  static Value write(const std::optional<T>& value) {
    if (!value) return Value{.data = std::string("none")};
    Value written = Codec<T>::write(*value);
    refuse_none(written);
    return written;
  }
};

/// Returns the elements of a list. A text typed on the command line, such as `1,2,3`, is split at
/// commas. Returns std::nullopt for any other value.
std::optional<Value::List> elements_of(const Value& value);

/// Reads and writes lists. A problem with an element names its index.
template <typename T>
struct Codec<std::vector<T>> {
  static std::string expected() { return "a list, each " + Codec<T>::expected(); }
  static std::optional<std::vector<T>> read(const Value& value, const Place& place) {
    const auto elements = elements_of(value);
    if (!elements) {
      place.refuse(value, expected());
      return std::nullopt;
    }
    std::vector<T> all;
    for (std::size_t index = 0; index < elements->size(); ++index) {
      const Place at = {place.key + "[" + std::to_string(index) + "]", place.limits,
                        place.problems};
      if (auto read = read_value<T>((*elements)[index], at)) all.push_back(std::move(*read));
    }
    return all.size() == elements->size() ? std::optional(std::move(all)) : std::nullopt;
  }
  static Value write(const std::vector<T>& all) {
    Value::List list;
    for (const auto& element : all) list.push_back(Codec<T>::write(element));
    return {.data = std::move(list)};
  }
};

/// Reads and writes lists of exactly N elements.
template <typename T, std::size_t N>
struct Codec<std::array<T, N>> {
  static std::string expected() {
    return "a list of " + std::to_string(N) + ", each " + Codec<T>::expected();
  }
  static std::optional<std::array<T, N>> read(const Value& value, const Place& place) {
    const auto elements = elements_of(value);
    if (!elements || elements->size() != N) {
      place.refuse(value, expected());
      return std::nullopt;
    }
    auto all = Codec<std::vector<T>>::read(value, place);
    if (!all) return std::nullopt;
    std::array<T, N> array{};
    std::move(all->begin(), all->end(), array.begin());
    return array;
  }
  static Value write(const std::array<T, N>& array) {
    return Codec<std::vector<T>>::write(std::vector<T>(array.begin(), array.end()));
  }
};

/// Reads and writes a pair as a list of two elements, as in `zero_level_of = [["embedding", 3]]`.
template <typename A, typename B>
struct Codec<std::pair<A, B>> {
  static std::string expected() {
    return "a list of two, " + Codec<A>::expected() + " and " + Codec<B>::expected();
  }
  static std::optional<std::pair<A, B>> read(const Value& value, const Place& place) {
    const auto elements = elements_of(value);
    if (!elements || elements->size() != 2) {
      place.refuse(value, expected());
      return std::nullopt;
    }
    const Place first = {place.key + "[0]", place.limits, place.problems};
    const Place second = {place.key + "[1]", place.limits, place.problems};
    auto a = read_value<A>((*elements)[0], first);
    auto b = read_value<B>((*elements)[1], second);
    if (!a || !b) return std::nullopt;
    return std::pair<A, B>(std::move(*a), std::move(*b));
  }
  static Value write(const std::pair<A, B>& pair) {
    return {.data = Value::List{Codec<A>::write(pair.first), Codec<B>::write(pair.second)}};
  }
};

}  // namespace trireme::config
