// SPDX-License-Identifier: Apache-2.0
#include <apps/trireme/rank_options.h>

#include <trireme/base/environment.h>
#include <trireme/base/error.h>
#include <trireme/cluster/cluster_file.h>

#include <CLI/CLI.hpp>
#include <apps/trireme/command_line.h>

#include <algorithm>
#include <map>
#include <utility>

namespace trireme::apps {
namespace {

const std::map<std::string, launch::Binding> kBindings{{"none", launch::Binding::kNone},
                                                       {"core", launch::Binding::kCore}};
const std::map<std::string, launch::Output> kOutputs{{"first", launch::Output::kFirst},
                                                     {"all", launch::Output::kAll},
                                                     {"none", launch::Output::kNone}};

std::vector<std::pair<std::string, std::string>> split_variables(
    const std::vector<std::string>& texts) {
  std::vector<std::pair<std::string, std::string>> variables;
  for (const std::string& text : texts) {
    const auto equals = text.find('=');
    if (equals == std::string::npos) {
      throw ConfigError(join_message("--env is '", text, "', expected NAME=VALUE"),
                        "for instance --env OMP_NUM_THREADS=2");
    }
    variables.emplace_back(text.substr(0, equals), text.substr(equals + 1));
  }
  return variables;
}

// Names the description to the ranks, if one was given. Reading it here shows its mistakes and
// warnings once, before anything is started.
void give_cluster(const std::string& name, launch::RunOptions& options) {
  if (name.empty()) return;
  static_cast<void>(cluster::read_cluster(name));
  options.environment.emplace_back("TRIREME_CLUSTER", cluster::absolute_cluster_name(name));
}

// Gives the ranks a plan in place of that of their program. A file is read by the ranks.
void give_plan(const std::string& plan, launch::RunOptions& options) {
  if (plan.empty()) return;
  if (plan != "auto" && !std::filesystem::is_regular_file(plan)) {
    throw ConfigError(join_message("--plan is '", plan, "', and there is no file of this name"),
                      "give auto, or a file that trireme plan --save has written");
  }
  options.environment.emplace_back(
      "TRIREME_PLAN", plan == "auto" ? plan : std::filesystem::absolute(plan).string());
}

}  // namespace

void add_rank_options(CLI::App& command, RankOptions& options) {
  command.add_option(
      "--log-dir", options.log_folder,
      "Folder for rank_<r>.log (default: a new one in the temporary directory, removed if "
      "all ranks succeed)");
  command
      .add_option("--bind", options.binding,
                  "Bind each rank to its share of the cores: core or none (default)")
      ->check(one_of({"core", "none"}))
      ->option_text("core|none");
  command
      .add_option("--output", options.output,
                  "Ranks to show: first (default), all (each line with its rank), or none")
      ->check(one_of({"first", "all", "none"}))
      ->option_text("first|all|none");
  command
      .add_option(
          "--timeout", options.timeout_seconds,
          "Timeout in seconds of rendezvous and collectives (default: TRIREME_TIMEOUT, or 300)")
      ->option_text("S");
  command
      .add_option("--grace", options.grace_seconds,
                  "Seconds between SIGTERM and SIGKILL when ranks are stopped (default: 5), and "
                  "for ranks that leave in time to finish a step and save (default: 30)")
      ->option_text("S");
  command
      .add_option("--max-time", options.max_time_seconds,
                  "Running time in seconds after which ranks that train a Model with a Checkpoint "
                  "save and exit with 75 (default: TRIREME_MAX_TIME, or none)")
      ->option_text("S");
  command.add_flag("--resume", options.resumes,
                   "A Model goes on from the newest checkpoint of its Checkpoint, if there is one");
  command
      .add_option("--linger", options.linger_seconds,
                  "Seconds without CPU time after which ranks that continue after others have "
                  "exited are stopped (default: 300; 0: never)")
      ->option_text("S");
  command
      .add_option("--env", options.variables,
                  "Environment variable for all ranks; may be given several times")
      ->option_text("NAME=VALUE")
      ->allow_extra_args(false);
  command
      .add_option(
          "--cluster", options.cluster,
          "Description of the cluster by whose links layouts are chosen, and whose peak FLOP/s "
          "runs record, as for trireme predict: a name, or a TOML file (default: TRIREME_CLUSTER, "
          "or none)")
      ->option_text("NAME");
  command
      .add_option("--plan", options.plan,
                  "Plan of the programs' Model in place of their own: auto, which searches for it "
                  "before the first step, or a TOML file")
      ->option_text("PLAN");
  command
      .add_option("--check-replicas", options.check_replicas,
                  "Steps of a Model after which ranks compare the bits that several of them hold, "
                  "which finds silent corruption (default: TRIREME_CHECK_REPLICAS, or never)")
      ->check(integer_from(0, 1'000'000'000))
      ->option_text("N");
  command
      .add_option("--recovery-dir", options.recovery_folder,
                  "With restarts: folder for the state of trainings, which all hosts must see "
                  "(default of trireme run: one in /dev/shm; of trireme worker: none)")
      ->option_text("DIR");
  command
      .add_option("--recovery-seconds", options.recovery_seconds,
                  "With restarts: seconds between two states that are kept (default: so that "
                  "keeping them costs 0.5 % of the time)")
      ->option_text("S");
}

void apply_rank_options(const CLI::App& command, const RankOptions& options,
                        launch::RunOptions& run) {
  run.log_folder = options.log_folder;
  run.environment = split_variables(options.variables);
  give_cluster(options.cluster, run);
  give_plan(options.plan, run);
  if (command.count("--timeout") > 0) run.timeout = std::chrono::seconds(options.timeout_seconds);
  run.grace = seconds_of("--grace", options.grace_seconds, command.get_name());
  if (command.count("--grace") > 0) {
    run.leave_grace = run.grace;
    run.environment.emplace_back("TRIREME_GRACE",
                                 std::to_string(std::max<std::int64_t>(1, options.grace_seconds)));
  } else {
    run.leave_grace = Settings::from(Environment::of_process()).leave_grace;
  }
  if (command.count("--max-time") > 0) {
    if (seconds_of("--max-time", options.max_time_seconds, command.get_name()).count() == 0) {
      throw ConfigError("--max-time is 0, expected 1 second or more", "leave it out for no limit");
    }
    run.environment.emplace_back("TRIREME_MAX_TIME", std::to_string(options.max_time_seconds));
  }
  if (options.resumes) run.environment.emplace_back("TRIREME_RESUME", "latest");
  run.linger = seconds_of("--linger", options.linger_seconds, command.get_name());
  run.binding = kBindings.at(options.binding);
  run.output = kOutputs.at(options.output);
  if (options.check_replicas) {
    run.environment.emplace_back("TRIREME_CHECK_REPLICAS", std::to_string(*options.check_replicas));
  }
  run.recovery_folder = options.recovery_folder;
  if (options.recovery_seconds) {
    run.recovery_interval =
        seconds_of("--recovery-seconds", *options.recovery_seconds, command.get_name());
  }
}

std::vector<std::string> program_of(const CLI::App& command, const std::vector<std::string>& tail) {
  std::vector<std::string> program = command.remaining();
  if (!program.empty() && program.front().starts_with('-')) {
    refuse_option(command, program.front(), "; options of your program come after its name");
  }
  // A `--` before the program separates it from our options and is dropped; later ones belong to
  // the program.
  const bool mark_is_ours = program.empty() && !tail.empty();
  program.insert(program.end(), tail.begin() + (mark_is_ours ? 1 : 0), tail.end());
  return program;
}

std::chrono::seconds seconds_of(std::string_view option, std::int64_t seconds,
                                std::string_view command) {
  constexpr std::int64_t kOneMonth = 31LL * 24 * 3600;
  if (seconds >= 0 && seconds <= kOneMonth) return std::chrono::seconds(seconds);
  throw ConfigError(
      join_message(option, " is ", seconds, ", expected 0 to ", kOneMonth, " seconds"),
      join_message("see trireme ", command, " --help"));
}

}  // namespace trireme::apps
