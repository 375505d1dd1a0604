// SPDX-License-Identifier: Apache-2.0
#include <apps/trireme/scheduler_command.h>

#include <trireme/base/environment.h>
#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/launch/scheduler/scheduler.h>
#include <trireme/launch/secret.h>

#include <CLI/CLI.hpp>
#include <apps/trireme/command_line.h>
#include <apps/trireme/rank_options.h>
#include <apps/trireme/tls_options.h>
#include <apps/trireme/torch_parts.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace trireme::apps {
namespace {

constexpr const char* kSchedulerDescription =
    R"(Form the world of workers, and watch them until they end:
  trireme scheduler --workers N [options]

Each `trireme worker`, and each program with TRIREME_ROLE=worker, connects to it and gets its
rank. The scheduler does not train. If a worker fails, the others are ended.)";

constexpr const char* kSchedulerFooter =
    R"(Exit code: 0 if all ranks exit with 0, otherwise that of the rank that failed first, or 128
plus the signal by which the scheduler was ended; 1 if the world was not complete in time or a
worker disappeared; 2 if the port cannot be served.

Examples:
  trireme scheduler --workers 4
  trireme scheduler --workers 16 --host 10.0.0.1 --port 29500 --timeout 60)";

struct SchedulerArguments {
  std::string workers;
  std::optional<std::string> host;
  std::optional<int> port;
  std::int64_t timeout_seconds = 0;
  std::int64_t grace_seconds = 5;
  int restarts = 0;
  std::int64_t replace_seconds = 30;
  launch::TlsOptions tls;
};

int count_of(const std::string& text, const std::string& part) {
  const auto count = parse_number<int>(part);
  if (count && *count >= 1 && *count <= launch::kMostWorkers) return *count;
  throw ConfigError(join_message("--workers is '", text, "', expected a number from 1 to ",
                                 launch::kMostWorkers, ", or two as in 4:8"),
                    "see trireme scheduler --help");
}

// Reads `8`, or `4:8` for 8 ranks and at least 4.
void give_workers(const std::string& text, std::optional<int> of_variable,
                  launch::SchedulerOptions& options) {
  if (text.empty() && !of_variable) {
    throw ConfigError("trireme scheduler was given no number of workers, expected --workers N",
                      "N is the number of ranks in the world; TRIREME_WORKERS sets it too");
  }
  const auto colon = text.find(':');
  if (text.empty()) {
    options.workers = *of_variable;
  } else if (colon == std::string::npos) {
    options.workers = count_of(text, text);
  } else {
    options.fewest_workers = count_of(text, text.substr(0, colon));
    options.workers = count_of(text, text.substr(colon + 1));
    if (options.fewest_workers > options.workers) {
      throw ConfigError(join_message("--workers is '", text, "', and its first number is larger"),
                        "give the smaller number first, as in 4:8");
    }
  }
}

launch::SchedulerOptions options_of(const CLI::App& command, const SchedulerArguments& arguments) {
  const Environment environment = Environment::of_process();
  const auto variables = launch::read_scheduler_variables(environment);
  launch::SchedulerOptions options;
  options.place = variables.scheduler.value_or(options.place);
  if (arguments.host) options.place.host = *arguments.host;
  if (arguments.port) options.place.port = *arguments.port;
  give_workers(arguments.workers, variables.workers, options);
  options.timeout = command.count("--timeout") > 0
                        ? seconds_of("--timeout", arguments.timeout_seconds, command.get_name())
                        : Settings::from(environment).timeout;
  options.grace = seconds_of("--grace", arguments.grace_seconds, command.get_name());
  options.restarts = arguments.restarts;
  options.replace_timeout =
      seconds_of("--replace-timeout", arguments.replace_seconds, command.get_name());
  if (command.count("--replace-timeout") > 0 &&
      (options.restarts == 0 || options.fewest_workers == 0)) {
    throw ConfigError("--replace-timeout has no effect without --restarts and --workers MIN:MAX",
                      "give both, or leave it out; --timeout is the time for all workers to come");
  }
  options.secret = environment.find(launch::kSecretVariable).value_or("");
  options.tls = launch::read_tls_files(environment, arguments.tls);
  const launch::StoreOpener open = store_opener();
  if (!open) {
    throw ConfigError("this program was built without LibTorch, and cannot serve the store",
                      "build it with LibTorch: make build");
  }
  options.start_store = launch::serve_in_own_process(open);
  return options;
}

}  // namespace

void add_scheduler_command(CLI::App& app) {
  auto arguments = std::make_shared<SchedulerArguments>();
  CLI::App* command = app.add_subcommand("scheduler", kSchedulerDescription);
  command->footer(kSchedulerFooter);
  command
      ->add_option("-n,--workers", arguments->workers,
                   "Ranks in the world, or MIN:MAX to go on with fewer at a deadline (default: "
                   "TRIREME_WORKERS or MS_WORKER_NUM)")
      ->option_text("N");
  command
      ->add_option("--host", arguments->host,
                   "Name or address of this host to listen at; 0.0.0.0 for all of them (default: "
                   "that of TRIREME_SCHEDULER, MS_SCHED_HOST, or 127.0.0.1)")
      ->option_text("A");
  command
      ->add_option("--port", arguments->port,
                   "Port to listen at (default: that of TRIREME_SCHEDULER, MS_SCHED_PORT, or "
                   "29500)")
      ->check(integer_from(1, 65535))
      ->option_text("P");
  command
      ->add_option("--timeout", arguments->timeout_seconds,
                   "Seconds until all workers must have come (default: TRIREME_TIMEOUT, or 300)")
      ->check(integer_from(1, 31LL * 24 * 3600))
      ->option_text("S");
  command
      ->add_option("--grace", arguments->grace_seconds,
                   "Seconds between SIGTERM and SIGKILL when workers are ended (default: 5)")
      ->option_text("S");
  command
      ->add_option("--restarts", arguments->restarts,
                   "Times that all workers are asked to come again after one fails (default: 0)")
      ->check(integer_from(0, 1'000'000))
      ->option_text("N");
  command
      ->add_option("--replace-timeout", arguments->replace_seconds,
                   "With --restarts and --workers MIN:MAX: seconds after which a run goes on with "
                   "fewer ranks (default: 30)")
      ->option_text("S");
  add_tls_options(*command, arguments->tls);
  command->callback([arguments, command] {
    if (const int code = launch::run_scheduler(options_of(*command, *arguments)); code != 0)
      throw CLI::RuntimeError(code);
  });
}

}  // namespace trireme::apps
