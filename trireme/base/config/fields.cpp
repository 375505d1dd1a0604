// SPDX-License-Identifier: Apache-2.0
#include <trireme/base/config/fields.h>

#include <trireme/base/config/suggestion.h>
#include <trireme/base/error.h>

namespace trireme::config {
namespace {

constexpr std::size_t kMostListed = 12;

// Returns the key that was probably meant: one with a similar spelling, or one with the same name
// in another table.
std::optional<std::string> meant(const std::string& key, const std::vector<std::string>& keys) {
  if (auto found = closest_match(key, keys)) return found;
  std::vector<std::string> last;
  last.reserve(keys.size());
  for (const std::string& candidate : keys) last.push_back(last_part(candidate));
  const auto found = closest_match(last_part(key), last);
  if (!found) return std::nullopt;
  return keys[static_cast<std::size_t>(std::ranges::find(last, *found) - last.begin())];
}

std::string listed(const std::string& table, const std::vector<std::string>& keys) {
  std::string names;
  std::size_t count = 0;
  for (const std::string& key : keys) {
    if (table_of(key) != table) continue;
    if (++count > kMostListed) return names + ", ...";
    names += (names.empty() ? "" : ", ") + last_part(key);
  }
  return names;
}

}  // namespace

void Place::refuse(const Value& value, const std::string& expected, const std::string& hint) const {
  // The sentence ends with what the type expects, followed by the limits of the field.
  problems.push_back({value.origin,
                      join_message(to_string(value.origin), ": ", key, " is ", shown(value),
                                   ", expected ", expected, limits),
                      hint});
}

void refuse_none(const Value& value) {
  if (value.text() != "none") return;
  throw ConfigError("an optional text is \"none\", which stands for one that is not set",
                    "take another word");
}

std::optional<Value::List> elements_of(const Value& value) {
  if (const auto* list = value.get<Value::List>()) return *list;
  if (!value.typed) return std::nullopt;
  Value::List elements;
  TextReader typed(*value.typed);
  for (std::string element; std::getline(typed, element, ',');) {
    elements.push_back(typed_value(std::string(without_spaces(element)), value.origin));
  }
  return elements;
}

std::string Fields::key_of(std::string_view name) const {
  const auto fits = [](char letter) { return is_ascii_alphanumeric(letter) || letter == '_'; };
  if (name.empty() || !std::ranges::all_of(name, fits)) {
    throw UsageError(join_message("a setting is called '", prefix_, name,
                                  "', expected letters, digits and underscores"),
                     "correct the name where the field is added");
  }
  std::string key = prefix_ + std::string(name);
  if (std::ranges::any_of(fields_, [&](const auto& field) { return field->key() == key; }) ||
      std::ranges::any_of(sections_, [&](const auto& section) { return section.key == key; })) {
    throw UsageError(join_message("two settings are called '", key, "'"),
                     "rename one where they are added");
  }
  return key;
}

Problem Fields::unknown(const std::string& key, const Origin& origin, const Value& value,
                        const std::string& name) const {
  const std::string what = join_message(to_string(origin), ": there is no setting '", name, key,
                                        "' (", shown(value), ")");
  for (const auto& [old_key, new_key] : renamed_) {
    if (old_key == key) return {origin, what, join_message("it is '", name, new_key, "' now")};
  }
  std::vector<std::string> keys;
  for (const auto& field : fields_) keys.push_back(field->key());
  for (const auto& section : sections_) keys.push_back(section.key);
  const auto suggestion = meant(key, keys);
  // Find the innermost existing table around the key.
  std::string table = table_of(key);
  while (!table.empty() && listed(table, keys).empty()) table = table_of(table);
  const std::string where = table.empty() ? name.substr(0, name.rfind('.')) : name + table;
  return {origin, what,
          suggestion ? join_message("did you mean '", name, *suggestion, "'?")
                     : join_message("the settings", where.empty() ? "" : " of " + where, " are ",
                                    listed(table, keys))};
}

void Fields::read_entry(const std::string& key, const Origin& key_origin, const Value& value,
                        const std::string& name, Problems& problems,
                        const std::function<void(std::size_t, const Value&)>& on_read) {
  const auto field =
      std::ranges::find_if(fields_, [&](const auto& each) { return each->key() == key; });
  if (field != fields_.end()) {
    if ((*field)->read(value, name + key, problems) && on_read) {
      on_read(static_cast<std::size_t>(field - fields_.begin()), value);
    }
    return;
  }
  // Not a field: a table with fields of its own, or an unknown key.
  if (std::ranges::find(sections_, key, &Section::key) == sections_.end()) {
    problems.push_back(unknown(key, key_origin, value, name));
  } else if (value.get<Value::Table>() != nullptr) {
    read_table(value, key + ".", name, problems, on_read);
  } else {
    Place{name + key, "", problems}.refuse(value, "a table of settings");
  }
}

void Fields::read_table(const Value& table, const std::string& prefix, const std::string& name,
                        Problems& problems,
                        const std::function<void(std::size_t, const Value&)>& on_read) {
  for (const auto& [key, origin, value] : *table.get<Value::Table>()) {
    read_entry(prefix + key, origin, value, name, problems, on_read);
  }
}

void Fields::read_key(const std::string& key, const Value& value, Problems& problems,
                      const std::function<void(std::size_t, const Value&)>& on_read) {
  // A key such as `layers.0.width` names a part of a field that is itself a list or a table. The
  // whole field is written, changed and read again.
  for (const auto& field : fields_) {
    if (!key.starts_with(field->key() + ".")) continue;
    Value whole = field->write();
    if (whole.text() == "none") whole.data = Value::Table{};
    if (set_below(whole, std::string_view(key).substr(field->key().size() + 1), value)) {
      whole.origin = value.origin;
      read_entry(field->key(), value.origin, whole, "", problems, on_read);
    } else {
      problems.push_back(unknown(key, value.origin, value, ""));
    }
    return;
  }
  read_entry(key, value.origin, value, "", problems, on_read);
}

Value Fields::write() const {
  Value whole{.data = Value::Table{}};
  for (const auto& field : fields_) set_below(whole, field->key(), field->write());
  return whole;
}

}  // namespace trireme::config
