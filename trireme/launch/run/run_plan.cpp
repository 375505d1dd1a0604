// SPDX-License-Identifier: Apache-2.0
#include <trireme/launch/run/run_plan.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/launch/run/start_process.h>
#include <trireme/launch/secret.h>
#include <trireme/launch/tls/tls_files.h>

#include <algorithm>
#include <array>

namespace trireme::launch {
namespace {

constexpr int kMostProcesses = 4096;
constexpr int kMostNodes = 65536;

constexpr std::array<std::string_view, 11> kOwnVariables{"RANK",
                                                         "WORLD_SIZE",
                                                         "LOCAL_RANK",
                                                         "LOCAL_WORLD_SIZE",
                                                         "GROUP_RANK",
                                                         "MASTER_ADDR",
                                                         "MASTER_PORT",
                                                         "TORCHELASTIC_USE_AGENT_STORE",
                                                         "TRIREME_RUN_ID",
                                                         "GROUP_WORLD_SIZE",
                                                         "TORCHELASTIC_RESTART_COUNT"};

void check_range(std::string_view option, std::int64_t value, std::int64_t minimum,
                 std::int64_t maximum) {
  if (value >= minimum && value <= maximum) return;
  throw ConfigError(join_message(option, " is ", value, ", expected ", minimum, " to ", maximum),
                    "see trireme run --help");
}

void check_nodes(const RunOptions& options) {
  check_range("--nnodes", options.nodes, 1, kMostNodes);
  if (options.node_rank) check_range("--node-rank", *options.node_rank, 0, options.nodes - 1);
  if (options.master_port) check_range("--master-port", *options.master_port, 1, 65535);
  if (options.nodes == 1) return;
  std::string missing;
  if (!options.processes) missing += " -n";
  if (!options.node_rank) missing += " --node-rank";
  if (!options.master_address) missing += " --master-addr";
  if (!options.master_port) missing += " --master-port";
  if (missing.empty()) return;
  throw ConfigError(join_message("--nnodes is ", options.nodes, ", expected with it:", missing),
                    "give every host the same -n and its own --node-rank from 0, and the address "
                    "and a free port of host 0");
}

void check_restarts(const RunOptions& options) {
  constexpr int kMostRestarts = 1'000'000;
  check_range("--restarts", options.restarts, 0, kMostRestarts);
  if (options.restarts > 0 && options.nodes > 1) {
    throw ConfigError(join_message("--restarts is ", options.restarts, " and --nnodes is ",
                                   options.nodes, ", expected one host"),
                      "leave one of them out: the launchers of several hosts do not start ranks "
                      "again together");
  }
  if (options.place && options.recovery_interval && !options.recovery_folder) {
    throw ConfigError(
        "--recovery-seconds is given without --recovery-dir, so that no state is kept",
        "give a folder that all hosts share, or leave it out");
  }
  if (!options.place && options.restarts == 0 &&
      (options.recovery_folder || options.recovery_interval)) {
    throw ConfigError(
        join_message(options.recovery_folder ? "--recovery-dir" : "--recovery-seconds",
                     " is given without --restarts, so that nothing would be started again"),
        "give --restarts too");
  }
}

void check_variables(const RunOptions& options) {
  for (const auto& [name, value] : options.environment) {
    if (name.empty() || name.find('=') != std::string::npos) {
      throw ConfigError(join_message("--env has the name '", name, "', expected NAME=VALUE"),
                        "for instance --env OMP_NUM_THREADS=2");
    }
    if (name == kSecretVariable) {
      throw ConfigError(join_message("--env sets ", name, ", where every user can read it"),
                        "export it before trireme run, the same on all hosts; on one host leave it "
                        "out: a random one is made");
    }
    if (std::ranges::find(kOwnVariables, name) == kOwnVariables.end()) continue;
    throw ConfigError(join_message("--env sets ", name, " to '", value,
                                   "', which trireme run sets itself for each rank"),
                      "use -n, --nnodes, --node-rank, --master-addr and --master-port");
  }
}

// Whoever asks for encryption must not believe that there is some.
void check_not_encrypted(const Environment& environment) {
  if (!read_tls_files(environment)) return;
  throw ConfigError("TRIREME_TLS is set, but trireme run --nnodes encrypts nothing",
                    "use trireme scheduler and trireme worker, which do; or unset TRIREME_TLS, its "
                    "single files and MS_ENABLE_SSL");
}

// With a role, each of several such commands would start a world of its own.
void check_no_role(const Environment& environment) {
  for (const char* name : {"TRIREME_ROLE", "MS_ROLE"}) {
    if (!environment.has(name)) continue;
    throw ConfigError(join_message("environment variable ", name, " is '", *environment.find(name),
                                   "', but trireme run starts a world without a scheduler"),
                      join_message("unset ", name,
                                   ", or start the ranks of this host by "
                                   "trireme worker"));
  }
}

// Returns the place of ranks whose numbers follow from the options.
RunPlace place_without_scheduler(const RunOptions& options, int count) {
  const int node_rank = options.node_rank.value_or(0);
  return {.first_rank = node_rank * count,
          .world_size = options.nodes * count,
          .local_world_size = count,
          .node_rank = node_rank,
          .nodes = options.nodes,
          .store_address = options.master_address.value_or("127.0.0.1"),
          .store_port = options.master_port.value_or(0)};
}

std::optional<std::string> given_variable(const RunOptions& options, std::string_view name) {
  std::optional<std::string> value;
  for (const auto& [given, text] : options.environment) {
    if (given == name) value = text;
  }
  return value;
}

// Returns the value that ranks find in a variable which the plan does not set.
std::optional<std::string> variable_of(const RunOptions& options, const Environment& environment,
                                       std::string_view name) {
  const auto given = given_variable(options, name);
  return given ? given : environment.find(name);
}

std::chrono::milliseconds timeout_of(const RunOptions& options, const Environment& environment) {
  constexpr const char* kName = "TRIREME_TIMEOUT";
  if (options.timeout) return *options.timeout;
  const auto text = variable_of(options, environment, kName);
  return Settings::from(Environment({{kName, text.value_or("")}})).timeout;
}

// Returns a warning if all ranks together have more threads than cores, otherwise an empty text.
std::string describe_crowding(int count, int threads, int cores, bool are_all_of_this_run) {
  if (static_cast<std::int64_t>(count) * threads <= cores) return "";
  const int fitting = std::max(1, cores / std::max(1, threads));
  return join_message(
      count, count == 1 ? " rank" : " ranks",
      threads == 1 ? "" : join_message(" of ", threads, " threads each (OMP_NUM_THREADS)"), " on ",
      cores, cores == 1 ? " core" : " cores",
      ": they take turns, which is slower than one thread for each core. hint: ",
      count > cores
          ? (are_all_of_this_run ? join_message("-n ", fitting, " fits")
                                 : join_message(fitting, fitting == 1 ? " rank" : " ranks",
                                                " on this host would fit"))
          : join_message("OMP_NUM_THREADS=", std::max(1, cores / count), " fits"));
}

// Returns the share of the cores for `index` of `count` ranks. If there are fewer cores than ranks,
// several ranks share a core.
std::vector<int> share_of_cores(const std::vector<int>& cores, std::size_t index,
                                std::size_t count) {
  if (cores.size() < count) return {cores.at(index % cores.size())};
  const auto begin = cores.begin();
  return {begin + static_cast<std::ptrdiff_t>(index * cores.size() / count),
          begin + static_cast<std::ptrdiff_t>((index + 1) * cores.size() / count)};
}

}  // namespace

RunPlan make_plan(const RunOptions& options, const Environment& environment,
                  const std::vector<int>& allowed_cores, int available_cores) {
  if (options.command.empty()) {
    throw ConfigError("no program to run, expected one after the options",
                      "trireme run -n 2 -- ./my_program arguments");
  }
  const int count = options.processes.value_or(available_cores);
  check_range("-n", count, 1, kMostProcesses);
  check_nodes(options);
  check_restarts(options);
  if (!options.place) check_no_role(environment);
  if (options.nodes > 1) check_not_encrypted(environment);
  check_variables(options);
  if (options.timeout) check_range("--timeout", options.timeout->count(), 1, 31LL * 24 * 3600);

  RunPlan plan;
  plan.program =
      find_program(options.command.front(),
                   given_variable(options, "PATH").value_or(environment.find("PATH").value_or("")));
  plan.command = options.command;
  const RunPlace place = options.place.value_or(place_without_scheduler(options, count));
  plan.world_size = place.world_size;
  plan.hosts_store = !options.place && place.node_rank == 0;
  plan.nodes = place.nodes;
  plan.timeout = timeout_of(options, environment);
  for (int index = 0; index < count; ++index) {
    RankPlan rank{.rank = place.first_rank + index, .variables = {}, .cores = {}};
    const int local_rank = place.first_local_rank + index;
    rank.variables = {{"RANK", std::to_string(rank.rank)},
                      {"WORLD_SIZE", std::to_string(plan.world_size)},
                      {"LOCAL_RANK", std::to_string(local_rank)},
                      {"LOCAL_WORLD_SIZE", std::to_string(place.local_world_size)},
                      {"GROUP_RANK", std::to_string(place.node_rank)},
                      {"GROUP_WORLD_SIZE", std::to_string(place.nodes)},
                      {"MASTER_ADDR", place.store_address},
                      {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                      {"TORCHELASTIC_RESTART_COUNT", "0"}};  // overrides that of an outer torchrun
    if (options.binding == Binding::kCore) {
      rank.cores = share_of_cores(allowed_cores, static_cast<std::size_t>(local_rank),
                                  static_cast<std::size_t>(place.local_world_size));
    }
    plan.ranks.push_back(std::move(rank));
  }
  if (options.timeout)
    add_variable(plan, "TRIREME_TIMEOUT", std::to_string(options.timeout->count()));
  if (options.recovery_interval) {
    add_variable(plan, "TRIREME_RECOVERY_SECONDS",
                 std::to_string(options.recovery_interval->count()));
  }
  const auto add_unless_given = [&](const std::string& name, const std::string& value) {
    if (!variable_of(options, environment, name)) add_variable(plan, name, value);
  };
  const int fair_threads = std::max(1, available_cores / place.local_world_size);
  add_unless_given("OMP_NUM_THREADS", std::to_string(fair_threads));
  // OMP_NUM_THREADS may be a list with a number for each nested level, which is not parsed here.
  const auto given_threads = variable_of(options, environment, "OMP_NUM_THREADS");
  const auto threads = given_threads ? parse_number<int>(*given_threads) : fair_threads;
  if (const auto crowding =
          describe_crowding(place.local_world_size, std::max(1, threads.value_or(1)),
                            available_cores, place.local_world_size == count);
      !crowding.empty()) {
    plan.warnings.push_back(crowding);
  }
  // This makes malloc request huge pages. Without it, if tensors use malloc, each step gets the
  // memory of large gradients from the kernel page by page, which takes as long as computing them.
  add_unless_given("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1");
  for (const auto& [name, value] : options.environment) add_variable(plan, name, value);
  return plan;
}

std::optional<std::string> RunPlan::variable(const std::string& name) const {
  for (const auto& [given, value] : ranks.front().variables) {
    if (given == name) return value;
  }
  return Environment::of_process().find(name);
}

void add_variable(RunPlan& plan, const std::string& name, const std::string& value) {
  for (RankPlan& rank : plan.ranks) {
    std::erase_if(rank.variables, [&](const auto& variable) { return variable.first == name; });
    rank.variables.emplace_back(name, value);
  }
}

std::string describe(const RunPlan& plan) {
  TextWriter text;
  for (const RankPlan& rank : plan.ranks) {
    for (const auto& [name, value] : rank.variables)
      text << name << '=' << shell_quoted(value) << ' ';
    for (std::size_t i = 0; i < rank.cores.size(); ++i)
      text << (i == 0 ? "taskset -c " : ",") << rank.cores[i];
    if (!rank.cores.empty()) text << ' ';
    text << shell_quoted(plan.program);
    for (std::size_t i = 1; i < plan.command.size(); ++i)
      text << ' ' << shell_quoted(plan.command[i]);
    text << '\n';
  }
  return text.str();
}

}  // namespace trireme::launch
