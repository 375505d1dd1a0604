// SPDX-License-Identifier: Apache-2.0
#include <apps/trireme/run_command.h>

#include <trireme/launch/run/run.h>

#include <CLI/CLI.hpp>
#include <apps/trireme/horovodrun_options.h>
#include <apps/trireme/rank_options.h>
#include <apps/trireme/status_options.h>
#include <apps/trireme/torch_parts.h>

#include <algorithm>
#include <array>
#include <iostream>
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
or 128 plus the signal that ended it or the run; 75 if the ranks were asked to leave
(SIGTERM, SIGUSR1, --max-time) and have saved; 1 if output was lost or a rank hung
after the others had exited; 2 if nothing could be started.

Examples:
  trireme run -n 4 -- ./train --epochs 3
  trireme run -n 2 --bind core --output all ./train
  trireme run --nnodes 2 --node-rank 0 --master-addr host0 --master-port 29500 \
      -n 8 -- ./train         # the same on host1 with --node-rank 1)";

struct Arguments {
  launch::RunOptions options;
  HorovodrunOptions horovodrun;
  RankOptions ranks;
  StatusOptions status;
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
  command.add_option("--restarts", options.restarts,
                     "Times that all ranks are started again after one fails (default: 0)");
  add_rank_options(command, arguments.ranks);
  add_status_options(command, arguments.status, "none");
  command.add_flag("--dry-run", arguments.dry_run, "Print what would run, without starting it");
  add_horovodrun_options(command, arguments.horovodrun);
}

}  // namespace

void accept_mpirun_words(std::vector<std::string>& words) {
  if (words.empty() || (words.front() != "run" && words.front() != "worker")) return;
  // Stops at the program, whose words are not ours. A flag has no value; other options have one.
  for (std::size_t i = 1; i < words.size() && words[i].starts_with('-'); ++i) {
    if (words[i] == "-np") words[i] = "-n";
    constexpr std::array<std::string_view, 7> kFlags{"--dry-run", "--help",    "-h",      "--gloo",
                                                     "--mpi",     "--verbose", "--resume"};
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
    apply_rank_options(*command, arguments->ranks, options);
    options.monitor = monitor_options_of(*command, arguments->status);
    apply_horovodrun_options(arguments->horovodrun, options);
    if (command->count("--nnodes") == 0) {
      launch::complete_from_slurm(Environment::of_process(), options);
    }
    options.open_store = store_opener();
    if (arguments->dry_run) {
      std::cout << launch::describe_run(options);
    } else if (const int code = launch::run(options); code != 0) {
      throw CLI::RuntimeError(code);
    }
  });
}

}  // namespace trireme::apps
