// SPDX-License-Identifier: Apache-2.0
#include <trireme/launch/tls/tls_files.h>

#include <trireme/base/error.h>

#include <array>

namespace trireme::launch {
namespace {

constexpr const char* kMindSporeSwitch = "MS_ENABLE_SSL";
constexpr const char* kFilesHint =
    "TRIREME_TLS=FOLDER names a folder with certificate.pem, key.pem and ca.pem; make one for each "
    "host by: trireme certificates make";

// The names under which a family gives the files, and the values.
struct Given {
  std::array<const char*, 4> names{};  // of the folder, the certificate, the key, the authority
  std::array<std::optional<std::string>, 4> values{};
  bool is_empty() const {
    for (const auto& value : values) {
      if (value) return false;
    }
    return true;
  }
};

std::optional<std::string> unless_empty(const std::string& text) {
  return text.empty() ? std::nullopt : std::optional(text);
}

Given given_by(const TlsOptions& options) {
  return {.names = {"--tls", "--tls-certificate", "--tls-key", "--tls-ca"},
          .values = {unless_empty(options.folder), unless_empty(options.certificate),
                     unless_empty(options.key), unless_empty(options.authority)}};
}

Given given_by(const Environment& environment) {
  Given given{
      .names = {"TRIREME_TLS", "TRIREME_TLS_CERTIFICATE", "TRIREME_TLS_KEY", "TRIREME_TLS_CA"}};
  for (std::size_t i = 0; i < given.names.size(); ++i)
    given.values.at(i) = environment.find(given.names.at(i));
  return given;
}

TlsFiles files_of(const Given& given) {
  constexpr std::array kMembers{&TlsFiles::certificate, &TlsFiles::key, &TlsFiles::authority};
  TlsFiles files = given.values[0] ? tls_files_of(*given.values[0]) : TlsFiles{};
  std::string set;
  std::string missing;
  for (std::size_t i = 0; i < kMembers.size(); ++i) {
    const auto& value = given.values.at(i + 1);
    const char* const name = given.names.at(i + 1);
    if (value) {
      files.*kMembers.at(i) = *value;
      set = join_message(name, " is '", *value, "'");
    } else if (!given.values[0]) {
      missing += join_message(missing.empty() ? "" : " and ", name);
    }
  }
  if (missing.empty()) return files;
  throw ConfigError(join_message(set, " but ", missing, " ",
                                 missing.find(' ') == std::string::npos ? "is" : "are",
                                 " not set, expected all of the certificate, its key and the "
                                 "authority"),
                    join_message("set what is missing, or ", given.names[0],
                                 " to a folder with certificate.pem, key.pem and ca.pem"));
}

}  // namespace

TlsFiles tls_files_of(const std::filesystem::path& folder) {
  return {.certificate = folder / kCertificateFile,
          .key = folder / kKeyFile,
          .authority = folder / kAuthorityFile};
}

bool is_switched_on(const std::optional<std::string>& value) {
  return value && !value->empty() && *value != "0" && *value != "False" && *value != "false" &&
         *value != "FALSE";
}

std::optional<TlsFiles> read_tls_files(const Environment& environment, const TlsOptions& options) {
  const Given by_options = given_by(options);
  if (!by_options.is_empty()) return files_of(by_options);
  const Given by_variables = given_by(environment);
  const auto mind_spore = environment.find(kMindSporeSwitch);
  if (by_variables.is_empty()) {
    if (!is_switched_on(mind_spore)) return std::nullopt;
    throw ConfigError(join_message("environment variable ", kMindSporeSwitch, " is '", *mind_spore,
                                   "', but nothing names the certificate of this host, its key "
                                   "and the authority"),
                      kFilesHint);
  }
  TlsFiles files = files_of(by_variables);
  if (!mind_spore || mind_spore->empty() || is_switched_on(mind_spore)) return files;
  throw ConfigError(
      join_message("environment variable ", kMindSporeSwitch, " is '", *mind_spore,
                   "' but TRIREME_TLS or its single files are set, which encrypts connections"),
      join_message("unset ", kMindSporeSwitch, ", or unset the variables of TLS"));
}

}  // namespace trireme::launch
