// SPDX-License-Identifier: Apache-2.0
#include <trireme/launch/role.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>

#include <array>

namespace trireme::launch {
namespace {

constexpr std::string_view kNativeRole = "TRIREME_ROLE";
constexpr std::string_view kMindSporeRole = "MS_ROLE";
constexpr std::string_view kNativeWorkers = "TRIREME_WORKERS";
constexpr std::string_view kMindSporeWorkers = "MS_WORKER_NUM";
constexpr std::string_view kNativeScheduler = "TRIREME_SCHEDULER";
constexpr std::string_view kMindSporeHost = "MS_SCHED_HOST";
constexpr std::string_view kMindSporePort = "MS_SCHED_PORT";
constexpr std::string_view kNativeNode = "TRIREME_NODE_ID";
constexpr std::string_view kMindSporeNode = "MS_NODE_ID";

constexpr std::string_view kCompleteHint =
    "the scheduler needs TRIREME_ROLE=scheduler, TRIREME_WORKERS and TRIREME_SCHEDULER=host:port; "
    "a worker needs TRIREME_ROLE=worker and TRIREME_SCHEDULER. MindSpore's names are MS_ROLE "
    "(MS_SCHED or MS_WORKER), MS_WORKER_NUM, MS_SCHED_HOST and MS_SCHED_PORT";

[[noreturn]] void refuse_contradiction(std::string_view one, std::string_view one_value,
                                       std::string_view other, std::string_view other_value) {
  throw ConfigError(join_message("environment variable ", one, " is '", one_value, "' but ", other,
                                 " is '", other_value, "', expected the same"),
                    join_message("unset one of them; ", one, " is the native name"));
}

std::optional<Role::Kind> native_kind(const Environment& environment) {
  const auto value = environment.find(kNativeRole);
  if (!value) return std::nullopt;
  if (*value == "scheduler") return Role::Kind::kScheduler;
  if (*value == "worker") return Role::Kind::kWorker;
  throw ConfigError(join_message("environment variable ", kNativeRole, " is '", *value,
                                 "', expected scheduler or worker"),
                    "unset it to run alone or under another launcher");
}

std::optional<Role::Kind> mind_spore_kind(const Environment& environment) {
  const auto value = environment.find(kMindSporeRole);
  if (!value) return std::nullopt;
  if (*value == "MS_SCHED") return Role::Kind::kScheduler;
  if (*value == "MS_WORKER") return Role::Kind::kWorker;
  if (*value == "MS_PSERVER") {
    throw ConfigError(
        join_message("environment variable ", kMindSporeRole,
                     " is 'MS_PSERVER': Trireme has no parameter servers, expected MS_SCHED or "
                     "MS_WORKER"),
        "leave the servers out; the workers average gradients among each other, and ZeRO divides "
        "parameters and optimizer state among them");
  }
  throw ConfigError(join_message("environment variable ", kMindSporeRole, " is '", *value,
                                 "', expected MS_SCHED or MS_WORKER"),
                    "unset it to run alone or under another launcher");
}

// Returns the value of a number that has two names.
std::optional<int> read_workers(const Environment& environment) {
  const auto native = environment.find_integer(kNativeWorkers, 1, kMostWorkers);
  const auto mind_spore = environment.find_integer(kMindSporeWorkers, 1, kMostWorkers);
  if (native && mind_spore && *native != *mind_spore) {
    refuse_contradiction(kNativeWorkers, *environment.find(kNativeWorkers), kMindSporeWorkers,
                         *environment.find(kMindSporeWorkers));
  }
  if (!native && !mind_spore) return std::nullopt;
  return static_cast<int>(native ? *native : *mind_spore);
}

// Returns an IPv6 address without the brackets around it, and other text as it is.
std::string_view without_brackets(std::string_view host) {
  const bool has_brackets = host.starts_with('[') && host.ends_with(']') && host.size() > 2;
  return has_brackets ? host.substr(1, host.size() - 2) : host;
}

std::optional<HostAndPort> read_scheduler(const Environment& environment) {
  std::optional<HostAndPort> native;
  if (const auto text = environment.find(kNativeScheduler))
    native = parse_host_and_port(join_message("environment variable ", kNativeScheduler), *text);
  const auto host = environment.find(kMindSporeHost);
  const auto port = environment.find_integer(kMindSporePort, 1, 65535);
  if (host.has_value() != port.has_value()) {
    const std::string_view set = host ? kMindSporeHost : kMindSporePort;
    const std::string_view missing = host ? kMindSporePort : kMindSporeHost;
    throw ConfigError(
        join_message("environment variable ", set, " is '", *environment.find(set), "' but ",
                     missing, " is not set, expected both"),
        join_message("set ", missing, ", the same for the scheduler and all workers"));
  }
  if (!host) return native;
  HostAndPort mind_spore{.host = std::string(without_brackets(*host)),
                         .port = static_cast<int>(*port)};
  if (native && *native != mind_spore) {
    refuse_contradiction(kNativeScheduler, text_of(*native),
                         join_message(kMindSporeHost, ":", kMindSporePort), text_of(mind_spore));
  }
  return mind_spore;
}

std::string read_node_id(const Environment& environment) {
  constexpr std::size_t kLongest = 64;
  const auto native = environment.find(kNativeNode);
  const auto mind_spore = environment.find(kMindSporeNode);
  if (native && mind_spore && *native != *mind_spore)
    refuse_contradiction(kNativeNode, *native, kMindSporeNode, *mind_spore);
  std::string id = native.value_or(mind_spore.value_or(""));
  if (id.size() <= kLongest) return id;
  throw ConfigError(
      join_message("environment variable ", native ? kNativeNode : kMindSporeNode, " has ",
                   id.size(), " characters, expected ", kLongest, " at most"),
      "give each worker a short name of its own, such as its number");
}

// MindSpore's switches for what Trireme does not have. Ignoring them would be dangerous.
struct Switch {
  std::string_view name;
  std::string_view reason;
  std::string_view hint;
};

constexpr std::array kRefusedSwitches{
    Switch{.name = "MS_ENABLE_RECOVERY",
           .reason = "what has started a worker must start it again",
           .hint = "unset it; trireme scheduler --restarts and trireme worker start ranks again, "
                   "or start the run again, which goes on from its last checkpoint"},
    Switch{.name = "MS_SERVER_NUM",
           .reason = "Trireme has no parameter servers",
           .hint = "unset it, and leave the servers out; the workers average gradients among each "
                   "other"},
};

void refuse_switches(const Environment& environment) {
  for (const Switch& one : kRefusedSwitches) {
    const auto value = environment.find(one.name);
    if (!value || value->empty() || *value == "0") continue;
    if (*value == "False" || *value == "false" || *value == "FALSE") continue;
    throw ConfigError(
        join_message("environment variable ", one.name, " is '", *value, "': ", one.reason),
        one.hint);
  }
}

[[noreturn]] void refuse_missing(const Role& role, std::string_view what) {
  throw ConfigError(
      join_message("environment variable ", role.variable, " makes this process a ",
                   role.kind == Role::Kind::kScheduler ? "scheduler" : "worker", ", but ", what),
      kCompleteHint);
}

}  // namespace

HostAndPort parse_host_and_port(std::string_view source, std::string_view text) {
  const auto colon = text.rfind(':');
  if (colon != std::string_view::npos) {
    const std::string_view all = text.substr(0, colon);
    const std::string_view host = without_brackets(all);
    const bool has_brackets = host.size() < all.size();
    const auto port = parse_number<int>(text.substr(colon + 1));
    const bool is_clear = has_brackets || host.find(':') == std::string_view::npos;
    if (!host.empty() && is_clear && port && *port >= 1 && *port <= 65535)
      return {.host = std::string(host), .port = *port};
  }
  throw ConfigError(
      join_message(source, " is '", text, "', expected host:port with a port from 1 to 65535"),
      "for instance host0:29500, 10.0.0.1:29500 or [fd00::1]:29500");
}

std::string text_of(const HostAndPort& place) {
  const bool is_ipv6 = place.host.find(':') != std::string::npos;
  return join_message(is_ipv6 ? "[" : "", place.host, is_ipv6 ? "]:" : ":", place.port);
}

SchedulerVariables read_scheduler_variables(const Environment& environment) {
  refuse_switches(environment);
  return {.workers = read_workers(environment),
          .scheduler = read_scheduler(environment),
          .node_id = read_node_id(environment)};
}

bool has_rank_of_trireme(const Environment& environment) {
  // A run's name alone, such as one that was exported for all runs, does not give a rank.
  return environment.has("RANK") && environment.has("TRIREME_RUN_ID") &&
         environment.has("MASTER_ADDR") &&
         environment.find("TORCHELASTIC_USE_AGENT_STORE") == "True";
}

std::optional<Role> read_role(const Environment& environment) {
  // The ranks that `trireme worker` and `trireme run` start inherit variables of a role.
  if (environment.has("TRIREME_PREDICT") || has_rank_of_trireme(environment)) return std::nullopt;
  const auto native = native_kind(environment);
  const auto mind_spore = mind_spore_kind(environment);
  if (!native && !mind_spore) return std::nullopt;
  if (native && mind_spore && *native != *mind_spore) {
    refuse_contradiction(kNativeRole, *environment.find(kNativeRole), kMindSporeRole,
                         *environment.find(kMindSporeRole));
  }
  Role role{.kind = native ? *native : *mind_spore,
            .variable = std::string(native ? kNativeRole : kMindSporeRole)};
  for (const char* name : {"RANK", "WORLD_SIZE"}) {
    if (!environment.has(name)) continue;
    throw ConfigError(
        join_message("environment variables ", role.variable, " and ", name, " are '",
                     *environment.find(role.variable), "' and '", *environment.find(name),
                     "', expected one of them: a worker gets its rank from its scheduler"),
        join_message("unset RANK and WORLD_SIZE, or unset ", role.variable,
                     " if another launcher has started this process"));
  }
  const SchedulerVariables variables = read_scheduler_variables(environment);
  const bool is_native = native.has_value();
  role.workers = variables.workers;
  role.node_id = variables.node_id;
  if (!variables.scheduler) {
    refuse_missing(role, is_native ? "TRIREME_SCHEDULER is not set, expected host:port"
                                   : "MS_SCHED_HOST and MS_SCHED_PORT are not set");
  }
  role.scheduler = *variables.scheduler;
  if (role.kind == Role::Kind::kScheduler && !role.workers) {
    refuse_missing(role, is_native ? "TRIREME_WORKERS is not set, expected the number of workers"
                                   : "MS_WORKER_NUM is not set, expected the number of workers");
  }
  return role;
}

void check_world_size(const Environment& environment, int world_size, std::string_view launcher) {
  const auto workers = read_workers(environment);
  if (!workers || *workers == world_size) return;
  const std::string_view name =
      environment.has(kNativeWorkers) ? kNativeWorkers : kMindSporeWorkers;
  throw ConfigError(
      join_message("environment variable ", name, " is '", *environment.find(name),
                   "' but the variables of the launcher (", launcher, ") say that the world has ",
                   world_size, world_size == 1 ? " rank" : " ranks", ", expected the same number"),
      join_message("unset ", name,
                   " if that launcher starts all ranks; otherwise unset its "
                   "variables, and start a scheduler and workers: ",
                   kCompleteHint));
}

void refuse_incomplete_role(const Environment& environment) {
  if (const auto table = environment.find("RANK_TABLE_FILE")) {
    throw ConfigError(
        join_message("environment variable RANK_TABLE_FILE is '", *table,
                     "': Trireme does not read rank tables, and this process would train alone"),
        join_message("unset it, and start a scheduler and workers: ", kCompleteHint));
  }
  for (const std::string_view name :
       {kNativeWorkers, kNativeScheduler, kNativeNode, kMindSporeWorkers, kMindSporeHost,
        kMindSporePort, kMindSporeNode}) {
    if (!environment.has(name)) continue;
    throw ConfigError(join_message("environment variable ", name, " is '", *environment.find(name),
                                   "' but neither TRIREME_ROLE nor MS_ROLE is set, and this "
                                   "process would train alone"),
                      join_message(kCompleteHint, ". To run alone unset ", name));
  }
}

}  // namespace trireme::launch
