// SPDX-License-Identifier: Apache-2.0
#include <apps/trireme/horovodrun_options.h>

#include <trireme/base/error.h>
#include <trireme/base/machine.h>
#include <trireme/base/text.h>

#include <CLI/CLI.hpp>

#include <chrono>
#include <fstream>
#include <optional>
#include <string_view>
#include <vector>

namespace trireme::apps {
namespace {

struct Host {
  std::string name;
  std::optional<int> slots;
};

// Parses `host` or `host:4`. IPv6 addresses are not supported, as in horovodrun.
Host parse_host(std::string_view option, const std::string& text) {
  const auto colon = text.find(':');
  Host host{.name = text.substr(0, colon), .slots = std::nullopt};
  if (colon == std::string::npos && !host.name.empty()) return host;
  if (colon != std::string::npos) host.slots = parse_number<int>(text.substr(colon + 1));
  if (!host.name.empty() && host.slots && *host.slots > 0) return host;
  throw ConfigError(join_message(option, " names '", text, "', expected HOST:SLOTS"),
                    "for instance -H localhost:4");
}

std::vector<Host> parse_hosts(const std::string& text) {
  std::vector<Host> hosts;
  TextReader parts(text);
  for (std::string part; std::getline(parts, part, ',');) hosts.push_back(parse_host("-H", part));
  return hosts;
}

// Reads lines such as `host slots=4`; what follows a `#` is a comment.
std::vector<Host> read_host_file(const std::string& path) {
  std::ifstream file(path);
  if (!file) {
    throw ConfigError(join_message("--hostfile is '", path, "', which cannot be read"),
                      "give a file with a line `host slots=4` for each host");
  }
  std::vector<Host> hosts;
  for (std::string line; std::getline(file, line);) {
    TextReader words(line.substr(0, line.find('#')));
    std::string name;
    std::string slots;
    if (!(words >> name)) continue;
    constexpr std::string_view kSlots = "slots=";
    if (words >> slots && slots.starts_with(kSlots)) name += ":" + slots.substr(kSlots.size());
    hosts.push_back(parse_host("--hostfile", name));
  }
  return hosts;
}

bool is_this_host(const std::string& name) {
  return name == "localhost" || name == "::1" || name.starts_with("127.") || name == host_name();
}

}  // namespace

void add_horovodrun_options(CLI::App& command, HorovodrunOptions& options) {
  const auto no_effect = [](std::int64_t /*count*/) {};
  command
      .add_option("-H,--hosts", options.hosts,
                  "As in horovodrun, for this host alone: its name and the most ranks")
      ->option_text("HOST:SLOTS");
  command
      .add_option("--hostfile", options.host_file,
                  "As in horovodrun, for this host alone: a file with a line `HOST slots=SLOTS`")
      ->option_text("FILE");
  command
      .add_option("--network-interface,--network-interfaces", options.interfaces,
                  "As in horovodrun: sets TRIREME_INTERFACE")
      ->option_text("NAME");
  command.add_option("--start-timeout", options.start_timeout, "As in horovodrun: sets --timeout")
      ->option_text("S");
  command.add_flag_function("--gloo", no_effect,
                            "As in horovodrun, without effect: the engine is chosen by itself");
  command.add_flag_function("--mpi", no_effect,
                            "As in horovodrun, without effect: MPI is not needed");
  command.add_flag_function("--verbose", no_effect, "As in horovodrun, without effect");
}

void apply_horovodrun_options(const HorovodrunOptions& options, launch::RunOptions& run) {
  std::vector<Host> hosts = parse_hosts(options.hosts);
  if (!options.host_file.empty()) {
    const std::vector<Host> more = read_host_file(options.host_file);
    hosts.insert(hosts.end(), more.begin(), more.end());
  }
  for (const Host& host : hosts) {
    if (hosts.size() == 1 && is_this_host(host.name)) break;
    throw ConfigError(
        join_message("-H or --hostfile names ", hosts.size(), " hosts, among them '", host.name,
                     "', and trireme run starts ranks on this host, '", host_name(), "', only"),
        "start it on each host, with --nnodes, --node-rank, --master-addr and --master-port");
  }
  if (!hosts.empty() && hosts.front().slots) {
    const int slots = *hosts.front().slots;
    if (run.processes && *run.processes > slots) {
      throw ConfigError(
          join_message("-n is ", *run.processes, ", and the host has ", slots, " slots"),
          "give as many slots as ranks");
    }
    if (!run.processes) run.processes = slots;
  }
  if (!options.interfaces.empty()) {
    run.environment.emplace_back("TRIREME_INTERFACE", options.interfaces);
  }
  if (options.start_timeout > 0 && !run.timeout) {
    run.timeout = std::chrono::seconds(options.start_timeout);
  }
}

}  // namespace trireme::apps
