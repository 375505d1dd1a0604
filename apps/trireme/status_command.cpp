// SPDX-License-Identifier: Apache-2.0
#include <apps/trireme/status_command.h>

#include <trireme/base/environment.h>
#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/launch/status/run_status.h>
#include <trireme/launch/status/status_client.h>

#include <CLI/CLI.hpp>
#include <apps/trireme/command_line.h>
#include <apps/trireme/tls_options.h>
#include <sys/stat.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <string>

namespace trireme::apps {
namespace {

constexpr const char* kStatusDescription =
    R"(Show the status of a run that was started with --status:
  trireme status [options] [folder of the run, or HOST:PORT]

The folder is that of --log-dir of trireme run or --run-dir of trireme scheduler. The file
status_url in it has the address and the token of the run.)";

constexpr const char* kStatusFooter =
    R"(Exit code: 0 if the status was shown; 2 if it was not.

Examples:
  trireme status logs
  trireme status --json logs
  trireme status --token-file token.txt host0:8080
  trireme status --tls /etc/trireme https://host0:8080)";

struct StatusArguments {
  std::string target = ".";
  std::filesystem::path token_file;
  bool as_json = false;
  std::int64_t timeout_seconds = 10;
  launch::TlsOptions tls;
};

bool is_file_or_folder(const std::string& target) {
  struct stat found{};
  return target.find("://") == std::string::npos && ::stat(target.c_str(), &found) == 0;
}

std::string token_of_file(const std::filesystem::path& file) {
  std::ifstream stream(file);
  std::string line;
  if (!stream || !std::getline(stream, line) || without_spaces(line).empty()) {
    throw ConfigError(join_message("--token-file is '", file.string(),
                                   "', which cannot be read or has no token in its first line"),
                      "the token follows token= in the file status_url of the run");
  }
  return std::string(without_spaces(line));
}

launch::StatusAddress address_of(const StatusArguments& arguments) {
  const bool is_address =
      !is_file_or_folder(arguments.target) && arguments.target.find(':') != std::string::npos;
  launch::StatusAddress address =
      is_address ? launch::parse_status_address("the address", arguments.target)
                 : launch::read_status_address(arguments.target);
  if (is_address && !address.token.empty()) {
    throw ConfigError("the address has a token, which other users can read on a command line",
                      "give the folder of the run, or the address without it and --token-file");
  }
  if (!arguments.token_file.empty()) address.token = token_of_file(arguments.token_file);
  return address;
}

void show_status(const StatusArguments& arguments) {
  const launch::StatusAddress address = address_of(arguments);
  const auto tls = launch::read_tls_files(Environment::of_process(), arguments.tls);
  const std::string json = launch::fetch_status(address, "/status.json", tls,
                                                std::chrono::seconds(arguments.timeout_seconds));
  const launch::RunStatus status = launch::parse_status(json, launch::text_of(address.place));
  std::cout << (arguments.as_json ? json : launch::status_table(status)) << std::flush;
}

}  // namespace

void add_status_command(CLI::App& app) {
  auto arguments = std::make_shared<StatusArguments>();
  CLI::App* command = app.add_subcommand("status", kStatusDescription);
  command->footer(kStatusFooter);
  command
      ->add_option("run", arguments->target,
                   "Folder of the run, or HOST:PORT or https://HOST:PORT (default: this folder)")
      ->option_text("RUN");
  command->add_flag("--json", arguments->as_json, "Print it as JSON");
  command
      ->add_option("--token-file", arguments->token_file,
                   "File with the token of the run in its first line, for HOST:PORT")
      ->option_text("FILE");
  command
      ->add_option("--timeout", arguments->timeout_seconds,
                   "Seconds until the run must have answered (default: 10)")
      ->check(integer_from(1, 3600))
      ->option_text("S");
  add_tls_options(*command, arguments->tls);
  command->callback([arguments] { show_status(*arguments); });
}

}  // namespace trireme::apps
