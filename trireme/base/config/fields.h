// SPDX-License-Identifier: Apache-2.0
// Describes the fields of a struct to a configuration. A struct takes part with a member function:
//
//   struct Training {
//     double learning_rate = 0.1;
//     std::optional<double> clip_norm;
//     Augmentation augmentation;  // a struct that is described itself
//
//     void fields(trireme::config::Fields& fields) {
//       fields.add("learning_rate", learning_rate, "step size of SGD").above(0);
//       fields.add("clip_norm", clip_norm, "longest gradient").above(0);
//       fields.add("augmentation", augmentation, "what is done to images");
//     }
//   };
//
// For a struct that you cannot change, write a free function `describe(Fields&, T&)` in its
// namespace instead.
#pragma once

#include <trireme/base/config/codec.h>
#include <trireme/base/config/value.h>
#include <trireme/base/text.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace trireme::config {

/// The interface of a field of any type.
class AnyField {
 public:
  /// Creates a field with its key from the root of the tree and its description.
  AnyField(std::string key, std::string description)
      : key_(std::move(key)), description_(std::move(description)) {}
  AnyField(const AnyField&) = delete;
  AnyField& operator=(const AnyField&) = delete;
  virtual ~AnyField() = default;

  /// Returns the key from the root of the tree, such as `plan.zero_level`.
  const std::string& key() const { return key_; }
  /// Returns the description for people.
  const std::string& description() const { return description_; }

  /// Returns a text that says which values the field accepts, such as `an integer, 1 or more`.
  virtual std::string expected() const = 0;
  /// Reads a value and keeps it until commit(). If the value does not fit, adds a problem and
  /// returns false.
  /// @param value the value to read.
  /// @param name the key that messages name.
  /// @param problems the list that collects problems.
  virtual bool read(const Value& value, const std::string& name, Problems& problems) = 0;
  /// Stores the value that was read last in the struct.
  virtual void commit() = 0;
  /// Returns the current value of the struct's field.
  virtual Value write() const = 0;
  /// Adds a problem if the current value of the struct's field is outside its limits.
  virtual void check(const Origin& origin, Problems& problems) const = 0;

 private:
  std::string key_;
  std::string description_;
};

namespace detail {

// Applies a limit to the innermost values: the value itself, the content of an optional, or each
// element of a list.
template <typename T>
struct Innermost {
  using Type = T;
  static bool holds(const T& value, const auto& test) { return test(value); }
};
template <typename T>
struct Innermost<std::optional<T>> {
  using Type = typename Innermost<T>::Type;
  static bool holds(const std::optional<T>& value, const auto& test) {
    return !value || Innermost<T>::holds(*value, test);
  }
};
template <typename T>
struct Innermost<std::vector<T>> {
  using Type = typename Innermost<T>::Type;
  static bool holds(const std::vector<T>& all, const auto& test) {
    return std::all_of(all.begin(), all.end(),
                       [&](const T& value) { return Innermost<T>::holds(value, test); });
  }
};
template <typename T, std::size_t N>
struct Innermost<std::array<T, N>> {
  using Type = typename Innermost<T>::Type;
  static bool holds(const std::array<T, N>& all, const auto& test) {
    return std::all_of(all.begin(), all.end(),
                       [&](const T& value) { return Innermost<T>::holds(value, test); });
  }
};

template <typename T>
std::string limit_text(const T& limit) {
  if constexpr (std::is_arithmetic_v<T>) {
    TextWriter text;
    text << +limit;
    return text.str();
  } else {
    const Value written = Codec<T>::write(limit);
    return written.text().value_or(shown(written));
  }
}

}  // namespace detail

/// A field of type T with its limits. The limits of an optional apply to its content, and those of
/// a list to each element. The functions that add a limit return the field, so that calls can be
/// chained.
template <typename T>
class Field final : public AnyField {
 public:
  /// The type that limits apply to.
  using Inner = typename detail::Innermost<T>::Type;

  /// Refers to `value`, which must outlive the field.
  Field(std::string key, T& value, std::string description)
      : AnyField(std::move(key), std::move(description)), value_(value) {}

  /// Accepts values of `minimum` or more.
  Field& at_least(Inner minimum) {
    return each([minimum](const Inner& value) { return value >= minimum; },
                detail::limit_text(minimum) + " or more");
  }
  /// Accepts values of `maximum` or less.
  Field& at_most(Inner maximum) {
    return each([maximum](const Inner& value) { return value <= maximum; },
                detail::limit_text(maximum) + " or less");
  }
  /// Accepts values greater than `minimum`.
  Field& above(Inner minimum) {
    return each([minimum](const Inner& value) { return value > minimum; },
                "above " + detail::limit_text(minimum));
  }
  /// Accepts values less than `maximum`.
  Field& below(Inner maximum) {
    return each([maximum](const Inner& value) { return value < maximum; },
                "below " + detail::limit_text(maximum));
  }
  /// Accepts values from `minimum` to `maximum`, both included.
  Field& between(Inner minimum, Inner maximum) {
    return each(
        [minimum, maximum](const Inner& value) { return value >= minimum && value <= maximum; },
        detail::limit_text(minimum) + " to " + detail::limit_text(maximum));
  }
  /// Adds any other rule on the whole value. In messages, `expected` follows the description of the
  /// type, as in "expected a list, each an integer, `expected`".
  Field& check_that(std::function<bool(const T&)> holds, const std::string& expected) {
    limits_ += ", " + expected;
    rules_.push_back(std::move(holds));
    return *this;
  }

  std::string expected() const override { return Codec<T>::expected() + limits_; }

  bool read(const Value& value, const std::string& name, Problems& problems) override {
    const Place place = {name, limits_, problems};
    auto read = read_value<T>(value, place);
    if (!read) return false;
    if (!is_within(*read)) {
      place.refuse(value, Codec<T>::expected());
      return false;
    }
    read_ = std::move(read);
    return true;
  }

  void commit() override {
    if (read_) value_ = std::move(*read_);
    read_.reset();
  }

  Value write() const override { return Codec<T>::write(value_); }

  void check(const Origin& origin, Problems& problems) const override {
    Value value = write();
    value.origin = origin;
    const Place place = {key(), limits_, problems};
    // An invalid value of the type itself (such as an enumerator without a name) is reported by
    // read_value(); the limits would not notice it.
    if (read_value<T>(value, place) && !is_within(value_)) {
      place.refuse(value, Codec<T>::expected());
    }
  }

 private:
  Field& each(std::function<bool(const Inner&)> test, const std::string& expected) {
    return check_that([test = std::move(test)](
                          const T& value) { return detail::Innermost<T>::holds(value, test); },
                      expected);
  }

  bool is_within(const T& value) const {
    return std::all_of(rules_.begin(), rules_.end(), [&](const auto& rule) { return rule(value); });
  }

  T& value_;
  std::optional<T> read_;
  std::string limits_;
  std::vector<std::function<bool(const T&)>> rules_;
};

/// Collects the fields of one tree of structs, which must outlive it. Not thread-safe.
class Fields {
 public:
  /// A struct within a struct, which is a table in TOML.
  struct Section {
    std::string key;          ///< the key from the root of the tree
    std::string description;  ///< the description for people
  };

  Fields() = default;
  Fields(const Fields&) = delete;
  Fields& operator=(const Fields&) = delete;
  Fields(Fields&&) = default;
  Fields& operator=(Fields&&) = default;

  /// Adds a field. Supported types are bool, integers, floating-point numbers, std::string, paths,
  /// durations of std::chrono, enumerations with `enum_names`, described structs, any type with a
  /// Codec, and optionals, vectors, arrays and pairs of these. Throws UsageError if `name` contains
  /// anything but letters, digits and underscores, or is already used.
  template <typename T>
  Field<T>& add(std::string_view name, T& value, std::string description) {
    auto field = std::make_unique<Field<T>>(key_of(name), value, std::move(description));
    Field<T>& added = *field;
    fields_.push_back(std::move(field));
    return added;
  }
  /// Adds a described struct as a table with its own fields.
  template <Described T>
  void add(std::string_view name, T& value, std::string description) {
    const std::string outer = prefix_;
    sections_.push_back({key_of(name), std::move(description)});
    prefix_ = sections_.back().key + ".";
    describe_fields(value);
    prefix_ = outer;
  }

  /// Adds the fields of a struct without a table around them.
  template <Described T>
  void describe_fields(T& settings) {
    if constexpr (HasFieldsMember<T>) {
      settings.fields(*this);
    } else {
      describe(*this, settings);
    }
  }

  /// Declares that the setting `name` used to be called `old_name`. The error for the old name then
  /// suggests the new one.
  void renamed(std::string_view old_name, std::string_view name) {
    renamed_.emplace_back(prefix_ + std::string(old_name), prefix_ + std::string(name));
  }

  /// Returns the fields in the order in which they were added.
  const std::vector<std::unique_ptr<AnyField>>& all() const { return fields_; }
  /// Returns the tables in the order in which they were added.
  const std::vector<Section>& sections() const { return sections_; }

  /// Reads the entries of a table into their fields, without storing them in the structs yet. Adds
  /// a problem for every entry that does not fit.
  /// @param table the table to read.
  /// @param name the prefix of keys in messages.
  /// @param problems the list that collects problems.
  /// @param on_read called with the index and the value of each field that was read.
  void read(const Value& table, const std::string& name, Problems& problems,
            const std::function<void(std::size_t field, const Value& value)>& on_read = {}) {
    read_table(table, "", name, problems, on_read);
  }

  /// Reads one value into the field or the table that `key` names, or into an element of a field
  /// that is a list or a table.
  void read_key(const std::string& key, const Value& value, Problems& problems,
                const std::function<void(std::size_t field, const Value& value)>& on_read);

  /// Stores the values that were read in the structs.
  void commit() {
    for (const auto& field : fields_) field->commit();
  }

  /// Returns the current values of all fields as one table.
  Value write() const;

 private:
  std::string key_of(std::string_view name) const;
  void read_table(const Value& table, const std::string& prefix, const std::string& name,
                  Problems& problems,
                  const std::function<void(std::size_t, const Value&)>& on_read);
  void read_entry(const std::string& key, const Origin& key_origin, const Value& value,
                  const std::string& name, Problems& problems,
                  const std::function<void(std::size_t, const Value&)>& on_read);
  Problem unknown(const std::string& key, const Origin& origin, const Value& value,
                  const std::string& name) const;

  std::string prefix_;
  std::vector<std::unique_ptr<AnyField>> fields_;
  std::vector<Section> sections_;
  std::vector<std::pair<std::string, std::string>> renamed_;  // pairs of old and new key
};

/// Reads and writes a described struct as one value, for lists and optionals of structs.
template <Described T>
struct Codec<T> {
  static std::string expected() { return "a table"; }
  static std::optional<T> read(const Value& value, const Place& place) {
    if (value.get<Value::Table>() == nullptr) {
      place.refuse(value, expected());
      return std::nullopt;
    }
    T settings{};
    Fields fields;
    fields.describe_fields(settings);
    const std::size_t problems = place.problems.size();
    fields.read(value, place.key + ".", place.problems);
    if (place.problems.size() > problems) return std::nullopt;
    fields.commit();
    return settings;
  }
  static Value write(const T& settings) {
    T copy = settings;
    Fields fields;
    fields.describe_fields(copy);
    return fields.write();
  }
};

}  // namespace trireme::config
