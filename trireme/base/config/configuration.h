// SPDX-License-Identifier: Apache-2.0
// The configuration of a program: one typed tree, filled from code, TOML files and the command
// line, and saved with what came of it. docs/guide/configuration.md shows a whole program.
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

/// Fills a tree of settings and remembers where each came from. What is read later counts. A file,
/// or one assignment, is taken whole or not at all: ConfigError tells everything that is wrong in
/// it by file, line, column, key, value and what was expected, and with which key an unknown one
/// may have been confused. Not thread-safe. Not collective: ranks that read different files have
/// different settings.
class Configuration {
 public:
  /// @param settings must outlive this. What differs from a T made anew counts as set by the
  /// program, also later.
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

  /// Reads a TOML file; settings that it does not name stay. Throws ConfigError.
  void read_file(const std::filesystem::path& file);

  /// Reads TOML; `name` stands for the file in messages.
  void read_text(std::string_view text, const std::string& name);

  /// Reads `key=value`, as in `--set plan.zero_level=2`. The value is TOML; texts need no quotes,
  /// lists no brackets (`30,60`). A key may lead into a list or a table (`layers.0.width`).
  void set(std::string_view assignment);

  /// Reads `--config FILE` and `--set KEY=VALUE`, each as often as it comes, files first. Returns
  /// false where `--help` is among them and help() was printed. Throws ConfigError also for any
  /// other argument.
  bool read_command_line(int count, const char* const* arguments);
  bool read_command_line(const std::vector<std::string>& arguments, std::ostream& output);

  /// Throws ConfigError where the program itself set something beyond its limits.
  void check() const;

  /// Returns the settings in effect as TOML, each with a comment that says where it came from.
  /// Reads back as the same settings. Throws ConfigError as check does, and for a text that TOML
  /// cannot hold (not UTF-8, or the word "none" in an optional).
  std::string to_toml() const;

  /// Writes to_toml() to a file, which appears whole. Throws CheckpointError where the file system
  /// refuses.
  void save(const std::filesystem::path& file) const;

  /// Returns each key with its value as TOML: what a JsonlWriter takes as settings of a run.
  std::map<std::string, std::string> to_texts() const;

  /// Returns every key with its value, what it takes and its description, for people.
  std::string help() const;

  /// Returns where a setting came from. Throws UsageError for a key that is none.
  Origin origin_of(std::string_view key) const;

  /// The keys of all settings, in the order of their description.
  std::vector<std::string> keys() const;

 private:
  struct Known {
    Origin origin{};
    std::string text{};  // as TOML, when it was last set from outside
  };

  void begin(const Fields& defaults);
  Origin origin_at(std::size_t field) const;
  void read(const Value& value, const std::string* key);
  std::string line_of(std::size_t field) const;

  Fields fields_;
  std::vector<Known> known_;
};

}  // namespace trireme::config
