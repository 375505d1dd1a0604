// SPDX-License-Identifier: Apache-2.0
#include <apps/trireme/worker_command.h>

#include <trireme/base/environment.h>
#include <trireme/base/error.h>
#include <trireme/launch/run/run.h>
#include <trireme/launch/run/start_process.h>
#include <trireme/launch/scheduler/program_file.h>
#include <trireme/launch/scheduler/scheduler.h>
#include <trireme/launch/scheduler/worker_control.h>
#include <trireme/launch/secret.h>

#include <CLI/CLI.hpp>
#include <apps/trireme/command_line.h>
#include <apps/trireme/rank_options.h>
#include <apps/trireme/tls_options.h>
#include <apps/trireme/torch_parts.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace trireme::apps {
namespace {

constexpr const char* kWorkerDescription =
    R"(Run a program as ranks of this host in the world of a scheduler:
  trireme worker [options] [--] program [arguments]

Start `trireme scheduler` once, and this on each host. Hosts may have different numbers of ranks.
Output, logs and the ends of ranks are handled as by trireme run.)";

constexpr const char* kWorkerFooter =
    R"(Exit code: 0 if all ranks of this host exit with 0, otherwise that of the rank that failed
first, or 128 plus the signal that ended it or the run; the code that the scheduler gives if a rank
of another host failed; 2 if nothing could be started or the scheduler refuses this worker.

Examples:
  trireme worker -n 4 --scheduler host0:29500 -- ./train --epochs 3
  TRIREME_SCHEDULER=host0:29500 trireme worker ./train)";

struct WorkerArguments {
  launch::RunOptions options;
  RankOptions ranks;
  int processes = 1;
  std::string scheduler;
  std::string node_id;
  launch::TlsOptions tls;
};

// Waits until the world is complete, and gives the ranks their place in it.
void join_world(const WorkerArguments& arguments, launch::RunOptions& options) {
  const Environment environment = Environment::of_process();
  const auto variables = launch::read_scheduler_variables(environment);
  if (options.command.empty()) {
    throw ConfigError("no program to run, expected one after the options",
                      "trireme worker -n 2 -- ./my_program arguments");
  }
  // A worker that comes again names the run that it belongs to.
  const std::string run = options.control && options.place ? options.place->run_id : "";
  // Errors of this host are found before other hosts count on it. In a restart there are none.
  options.place =
      launch::RunPlace{.world_size = std::max(arguments.processes, variables.workers.value_or(0)),
                       .local_world_size = arguments.processes};
  launch::check_run(options);
  const std::string program =
      launch::find_program(options.command.front(), environment.find("PATH").value_or(""));
  const launch::HostAndPort default_place = launch::SchedulerOptions{}.place;
  launch::WorkerConnection connection(
      {.scheduler = arguments.scheduler.empty()
                        ? variables.scheduler.value_or(default_place)
                        : launch::parse_host_and_port("--scheduler", arguments.scheduler),
       .secret = environment.find(launch::kSecretVariable).value_or(""),
       .ranks = arguments.processes,
       .workers = variables.workers,
       .node_id = arguments.node_id.empty() ? variables.node_id : arguments.node_id,
       .run = run,
       .program = launch::describe_program(program),
       .tls = launch::read_tls_files(environment, arguments.tls),
       .timeout = options.timeout ? std::chrono::milliseconds(*options.timeout)
                                  : Settings::from(environment).timeout});
  options.place = launch::place_of(connection);
  options.control = std::make_shared<launch::WorkerControl>(std::move(connection));
}

// Runs the ranks. If that fails, tells the scheduler why; otherwise it would only see that the
// connection is closed.
int run_in_world(const launch::RunOptions& options) {
  try {
    return launch::run(options);
  } catch (const std::exception& failure) {
    options.control->could_not_run(options.place->first_rank, options.processes.value_or(1),
                                   failure.what());
    throw;
  }
}

}  // namespace

void add_worker_command(CLI::App& app, const std::vector<std::string>& program_tail) {
  auto arguments = std::make_shared<WorkerArguments>();
  CLI::App* command = app.add_subcommand("worker", kWorkerDescription);
  command->footer(kWorkerFooter);
  command->prefix_command();
  command
      ->add_option("-n,--nproc,--np,--ranks", arguments->processes,
                   "Ranks on this host (default: 1)")
      ->check(integer_from(1, launch::kMostRanksOfWorker))
      ->option_text("K");
  command
      ->add_option("--scheduler", arguments->scheduler,
                   "Address of the scheduler (default: TRIREME_SCHEDULER, MS_SCHED_HOST and "
                   "MS_SCHED_PORT, or 127.0.0.1:29500)")
      ->option_text("HOST:PORT");
  command
      ->add_option("--node-id", arguments->node_id,
                   "Name of this worker, by which ranks are ordered (default: TRIREME_NODE_ID, "
                   "MS_NODE_ID, or none)")
      ->option_text("NAME");
  add_tls_options(*command, arguments->tls);
  add_rank_options(*command, arguments->ranks);
  command->callback([arguments, command, &program_tail] {
    launch::RunOptions& options = arguments->options;
    options.command = program_of(*command, program_tail);
    options.processes = arguments->processes;
    apply_rank_options(*command, arguments->ranks, options);
    options.open_store = store_opener();
    join_world(*arguments, options);
    options.rejoin = [arguments](launch::RunOptions& own) { join_world(*arguments, own); };
    if (const int code = run_in_world(options); code != 0) throw CLI::RuntimeError(code);
  });
}

}  // namespace trireme::apps
