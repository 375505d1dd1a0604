// SPDX-License-Identifier: Apache-2.0
#include <trireme/base/environment.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>

extern char** environ;  // NOLINT(readability-redundant-declaration): POSIX leaves it undeclared

namespace trireme {

Environment Environment::of_process() {
  std::map<std::string, std::string, std::less<>> variables;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const auto equals = text.find('=');
    if (equals == std::string_view::npos) continue;
    variables.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return Environment(std::move(variables));
}

std::optional<std::string> Environment::find(std::string_view name) const {
  const auto found = variables_.find(name);
  // Shells and job files often clear a variable by setting it to an empty text.
  if (found == variables_.end() || found->second.empty()) return std::nullopt;
  return found->second;
}

std::optional<std::int64_t> Environment::find_integer(std::string_view name, std::int64_t minimum,
                                                      std::int64_t maximum) const {
  const auto text = find(name);
  if (!text) return std::nullopt;
  const auto value = parse_number<std::int64_t>(*text);
  if (!value || *value < minimum || *value > maximum) {
    throw ConfigError(join_message("environment variable ", name, " is '", *text,
                                   "', expected an integer from ", minimum, " to ", maximum),
                      join_message("correct ", name, " or unset it"));
  }
  return value;
}

Settings Settings::from(const Environment& environment) {
  Settings settings;
  constexpr std::int64_t kOneMonth = 31LL * 24 * 3600;
  if (const auto seconds = environment.find_integer("TRIREME_TIMEOUT", 1, kOneMonth)) {
    settings.timeout = std::chrono::seconds{*seconds};
  }
  settings.engine = environment.find("TRIREME_ENGINE").value_or(settings.engine);
  settings.engine_across = environment.find("TRIREME_ENGINE_ACROSS").value_or("auto");
  settings.leaders =
      static_cast<int>(environment.find_integer("TRIREME_LEADERS", 0, 1024).value_or(0));
  settings.allreduce_streams =
      static_cast<int>(environment.find_integer("TRIREME_ALLREDUCE_STREAMS", 1, 16).value_or(1));
  settings.tensor_memory = environment.find("TRIREME_TENSOR_MEMORY").value_or("auto");
  settings.interface = environment.find("TRIREME_INTERFACE").value_or("");
  // The order follows the XDG base directory specification.
  if (const auto cache = environment.find("XDG_CACHE_HOME")) {
    settings.cache_folder = std::filesystem::path(*cache) / "trireme";
  } else if (const auto home = environment.find("HOME")) {
    settings.cache_folder = std::filesystem::path(*home) / ".cache" / "trireme";
  }
  settings.predict_folder = environment.find("TRIREME_PREDICT").value_or("");
  settings.dump_folder = environment.find("TRIREME_DUMP").value_or("");
  settings.cluster = environment.find("TRIREME_CLUSTER").value_or("");
  settings.plan = environment.find("TRIREME_PLAN").value_or("");
  if (const auto seconds = environment.find_integer("TRIREME_GRACE", 1, kOneMonth)) {
    settings.leave_grace = std::chrono::seconds{*seconds};
  }
  if (const auto seconds = environment.find_integer("TRIREME_MAX_TIME", 1, kOneMonth)) {
    settings.max_time = std::chrono::seconds{*seconds};
  }
  if (const auto resume = environment.find("TRIREME_RESUME")) {
    settings.resumes = *resume == "latest";
    if (!settings.resumes) {
      throw ConfigError(
          join_message("environment variable TRIREME_RESUME is '", *resume, "', expected latest"),
          "set TRIREME_RESUME=latest or unset it");
    }
  }
  constexpr std::int64_t kMostSteps = 1'000'000'000;
  settings.steps_between_replica_checks =
      environment.find_integer("TRIREME_CHECK_REPLICAS", 0, kMostSteps).value_or(0);
  if (const auto check = environment.find("TRIREME_CHECK")) {
    settings.check_values = *check == "values";
    if (!settings.check_values) {
      throw ConfigError(
          join_message("environment variable TRIREME_CHECK is '", *check, "', expected values"),
          "set TRIREME_CHECK=values or unset it");
    }
  }
  return settings;
}

}  // namespace trireme
