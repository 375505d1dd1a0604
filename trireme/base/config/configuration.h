// SPDX-License-Identifier: Apache-2.0
// The configuration of a program: one typed tree of settings. It is filled from code, TOML files
// and the command line, and saved with the origin of each value. docs/guide/configuration.md shows
// a complete program.
//
//   Settings settings;  // a struct with fields(), see fields.h; its initializers are the defaults
//   trireme::config::Configuration configuration(settings);
//   if (!configuration.read_command_line(argc, argv)) return 0;  // --help
//   ...
//   configuration.save(folder / "config.toml");
#pragma once

#include <trireme/base/config/fields.h>
#include <trireme/base/config/value.h>

#include <concepts>
#include <filesystem>
#include <iosfwd>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::config {

/// Fills a tree of settings and remembers the origin of each value. Later values override earlier
/// ones. A file or an assignment is taken completely or not at all. If anything in it is wrong,
/// ConfigError lists all problems with file, line, column, key, value and what was expected. For an
/// unknown key it suggests a similar one. Not thread-safe. Not collective: ranks that read
/// different files have different settings.
class Configuration {
 public:
  /// Uses the fields of `settings`. A value that differs from that of a default-constructed T
  /// counts as set by the program; so does a value that the program changes later.
  /// @param settings the struct to fill; it must outlive this object.
  template <Described T>
  explicit Configuration(T& settings) {
    fields_.describe_fields(settings);
    if constexpr (std::default_initializable<T>) {
      T fresh{};
      Fields defaults;
      defaults.describe_fields(fresh);
      begin(defaults);
    } else {
      begin(fields_);
    }
  }

  /// Reads a TOML file. Settings that the file does not name keep their values. Throws ConfigError.
  void read_file(const std::filesystem::path& file);

  /// Reads settings from TOML text. Throws ConfigError.
  /// @param text the TOML text.
  /// @param name the name that stands for the file in messages.
  void read_text(std::string_view text, const std::string& name);

  /// Reads one assignment `key=value`, as in `--set plan.zero_level=2`. The value is TOML, except
  /// that texts need no quotes and lists no brackets (`30,60`). A key may name an element of a list
  /// or a table (`layers.0.width`). Throws ConfigError.
  void set(std::string_view assignment);

  /// Reads the options `--config FILE` and `--set KEY=VALUE`, which may be repeated, and then calls
  /// check(). Files are read first, so assignments override them. For `--help`, prints the options
  /// and help(), and returns false. Otherwise returns true. Throws ConfigError, also for any other
  /// argument.
  bool read_command_line(int count, const char* const* arguments);
  /// Reads the same options from a list without the program's name, and prints help to `output`.
  bool read_command_line(const std::vector<std::string>& arguments, std::ostream& output);

  /// Throws ConfigError if a value that the program itself has set is outside its limits.
  void check() const;

  /// Returns the settings in effect as TOML, each with a comment that names its origin. The text
  /// reads back as the same settings. Throws ConfigError as check() does, and for a text that TOML
  /// cannot hold: one that is not UTF-8, or the word "none" in an optional.
  std::string to_toml() const;

  /// Writes to_toml() to a file atomically. Throws CheckpointError if the file system refuses.
  void save(const std::filesystem::path& file) const;

  /// Returns each key with its value as TOML. JsonlWriter takes this map as the settings of a run.
  std::map<std::string, std::string> to_texts() const;

  /// Returns a text for people that lists every key with its value, what it accepts, and its
  /// description.
  std::string help() const;

  /// Returns the origin of a setting. Throws UsageError for an unknown key.
  Origin origin_of(std::string_view key) const;

  /// Returns the keys of all settings, in the order in which they were described.
  std::vector<std::string> keys() const;

 private:
  struct Known {
    Origin origin{};
    std::string text{};  // the value as TOML, when it was last read from a source
  };

  void begin(const Fields& defaults);
  Origin origin_at(std::size_t field) const;
  void read(const Value& value, const std::string* key);
  std::string line_of(std::size_t field) const;

  Fields fields_;
  std::vector<Known> known_;
};

}  // namespace trireme::config
