// SPDX-License-Identifier: Apache-2.0
#include <apps/trireme/run_command.h>

#include <trireme/base/error.h>
#include <trireme/cluster/cluster_file.h>
#include <trireme/launch/run/run.h>

#include <CLI/CLI.hpp>
#include <apps/trireme/command_line.h>
#include <apps/trireme/horovodrun_options.h>
#include <apps/trireme/torch_parts.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <iostream>
#include <map>
#include <memory>
#include <string_view>

namespace trireme::apps {
namespace {

constexpr const char* kDescription = R"(Run a program in several processes (ranks):
  trireme run [options] [--] program [arguments]

Every rank has RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and
MASTER_PORT in its environment. If a rank fails, all others are stopped and its
last lines are shown. Ctrl-C stops all ranks; a second one kills them at once.)";

constexpr const char* kFooter =
    R"(Exit code: 0 if all ranks exit with 0, otherwise that of the rank that failed first,
or 128 plus the signal that ended it or the run; 1 if output was lost or a rank hung
after the others had exited; 2 if nothing could be started.

Examples:
  trireme run -n 4 -- ./train --epochs 3
  trireme run -n 2 --bind core --output all ./train
  trireme run --nnodes 2 --node-rank 0 --master-addr host0 --master-port 29500 \
      -n 8 -- ./train         # the same on host1 with --node-rank 1)";

const std::map<std::string, launch::Binding> kBindings{{"none", launch::Binding::kNone},
                                                       {"core", launch::Binding::kCore}};
const std::map<std::string, launch::Output> kOutputs{{"first", launch::Output::kFirst},
                                                     {"all", launch::Output::kAll},
                                                     {"none", launch::Output::kNone}};

struct Arguments {
  launch::RunOptions options;
  HorovodrunOptions horovodrun;
  std::string binding = "none";
  std::string output = "first";
  std::int64_t timeout_seconds = 0;
  std::int64_t grace_seconds = 5;
  std::int64_t linger_seconds = 300;
  std::vector<std::string> variables;
  std::string cluster;
  std::string plan;
  bool dry_run = false;
};

void add_options(CLI::App& command, Arguments& arguments) {
  launch::RunOptions& options = arguments.options;
  // The other names are those of other launchers; accept_mpirun_words() handles -np.
  command.add_option("-n,--nproc,--nproc-per-node,--nproc_per_node,--np,--ranks", options.processes,
                     "Ranks on this host (default: one for each available core)");
  command.add_option("--nnodes", options.nodes, "Hosts of the run (default: 1)");
  command.add_option("--node-rank", options.node_rank, "Number of this host, from 0");
  command.add_option("--master-addr", options.master_address,
                     "Name or address of host 0 (default: 127.0.0.1)");
  command.add_option("--master-port", options.master_port,
                     "Port of the store on host 0 (default: a free one)");
  command.add_option(
      "--log-dir", options.log_folder,
      "Folder for rank_<r>.log (default: a new one in the temporary directory, removed if "
      "all ranks succeed)");
  command
      .add_option("--bind", arguments.binding,
                  "Bind each rank to its share of the cores: core or none (default)")
      ->check(one_of({"core", "none"}))
      ->option_text("core|none");
  command
      .add_option("--output", arguments.output,
                  "Ranks to show: first (default), all (each line with its rank), or none")
      ->check(one_of({"first", "all", "none"}))
      ->option_text("first|all|none");
  command
      .add_option(
          "--timeout", arguments.timeout_seconds,
          "Timeout in seconds of rendezvous and collectives (default: TRIREME_TIMEOUT, or 300)")
      ->option_text("S");
  command
      .add_option("--grace", arguments.grace_seconds,
                  "Seconds between SIGTERM and SIGKILL when ranks are stopped (default: 5)")
      ->option_text("S");
  command
      .add_option("--linger", arguments.linger_seconds,
                  "Seconds without CPU time after which ranks that continue after others have "
                  "exited are stopped (default: 300; 0: never)")
      ->option_text("S");
  command
      .add_option("--env", arguments.variables,
                  "Environment variable for all ranks; may be given several times")
      ->option_text("NAME=VALUE")
      ->allow_extra_args(false);
  command
      .add_option("--cluster", arguments.cluster,
                  "Description of the cluster by whose links layouts are chosen, as for trireme "
                  "predict: a name, or a TOML file (default: TRIREME_CLUSTER, or none)")
      ->option_text("NAME");
  command
      .add_option("--plan", arguments.plan,
                  "Plan of the programs' Model in place of their own: auto, which searches for it "
                  "before the first step, or a TOML file")
      ->option_text("PLAN");
  command.add_flag("--dry-run", arguments.dry_run, "Print what would run, without starting it");
  add_horovodrun_options(command, arguments.horovodrun);
}

// Returns the program with its arguments: the words from the first one that CLI11 did not
// recognize, and those after `--`.
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

// Limits a time, so that conversions to smaller units cannot overflow.
std::chrono::seconds seconds_of(std::string_view option, std::int64_t seconds) {
  constexpr std::int64_t kOneMonth = 31LL * 24 * 3600;
  if (seconds >= 0 && seconds <= kOneMonth) return std::chrono::seconds(seconds);
  throw ConfigError(
      join_message(option, " is ", seconds, ", expected 0 to ", kOneMonth, " seconds"),
      "see trireme run --help");
}

}  // namespace

void accept_mpirun_words(std::vector<std::string>& words) {
  if (words.empty() || words.front() != "run") return;
  // Stops at the program, whose words are not ours. A flag has no value; other options have one.
  for (std::size_t i = 1; i < words.size() && words[i].starts_with('-'); ++i) {
    if (words[i] == "-np") words[i] = "-n";
    constexpr std::array<std::string_view, 6> kFlags{"--dry-run", "--help", "-h",
                                                     "--gloo",    "--mpi",  "--verbose"};
    const bool is_flag = std::ranges::find(kFlags, words[i]) != kFlags.end();
    const bool has_value = words[i].find('=') != std::string::npos ||
                           (!words[i].starts_with("--") && words[i].size() > 2);
    if (!is_flag && !has_value) ++i;
  }
}

void add_run_command(CLI::App& app, const std::vector<std::string>& program_tail) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command = app.add_subcommand("run", kDescription);
  command->footer(kFooter);
  command->prefix_command();
  add_options(*command, *arguments);
  command->callback([arguments, command, &program_tail] {
    launch::RunOptions& options = arguments->options;
    options.command = program_of(*command, program_tail);
    options.environment = split_variables(arguments->variables);
    give_cluster(arguments->cluster, options);
    give_plan(arguments->plan, options);
    if (command->count("--timeout") > 0)
      options.timeout = std::chrono::seconds(arguments->timeout_seconds);
    apply_horovodrun_options(arguments->horovodrun, options);
    options.grace = seconds_of("--grace", arguments->grace_seconds);
    options.linger = seconds_of("--linger", arguments->linger_seconds);
    options.binding = kBindings.at(arguments->binding);
    options.output = kOutputs.at(arguments->output);
    options.open_store = store_opener();
    if (arguments->dry_run) {
      std::cout << launch::describe_run(options);
    } else if (const int code = launch::run(options); code != 0) {
      throw CLI::RuntimeError(code);
    }
  });
}

}  // namespace trireme::apps
