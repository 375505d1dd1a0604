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
#include <apps/trireme/status_options.h>
#include <apps/trireme/tls_options.h>
#include <apps/trireme/torch_parts.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <system_error>

namespace trireme::apps {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSchedulerDescription =
    R"(Form the world of workers, and watch them until they end:
  trireme scheduler --workers N [options]

Each `trireme worker`, and each program with TRIREME_ROLE=worker, connects to it and gets its
rank. The scheduler does not train. If a worker fails, the others are ended, or all start again
(--restarts). With a journal, a scheduler that was killed is started again with the same
options, and takes up its run.)";

constexpr const char* kSchedulerFooter =
    R"(Exit code: 0 if all ranks exit with 0, otherwise that of the rank that failed first, or 128
plus the signal by which the scheduler was ended; 1 if the world was not complete in time or a
worker disappeared; 2 if the port cannot be served.

Examples:
  trireme scheduler --workers 4
  trireme scheduler --workers 16 --host 10.0.0.1 --port 29500 --timeout 60
  trireme scheduler --workers 8 --restarts 3 --run-dir run --status 8080)";

struct SchedulerArguments {
  std::string workers;
  std::optional<std::string> host;
  std::optional<int> port;
  std::int64_t timeout_seconds = 0;
  std::int64_t grace_seconds = 5;
  int restarts = 0;
  std::int64_t replace_seconds = 30;
  launch::TlsOptions tls;
  StatusOptions status;
  std::optional<fs::path> run_folder;
  int most_host_failures = 0;
  bool excludes_slow = false;
  bool excludes_faulty = false;
};

// A folder for the address of the status, removed with this object.
class StatusFolder {
 public:
  StatusFolder() {
    std::error_code failure;
    std::string name = (fs::temp_directory_path(failure) / "trireme-scheduler-XXXXXX").string();
    if (failure || ::mkdtemp(name.data()) == nullptr) {
      throw ConfigError(
          "cannot make a folder for the address of the status under the temporary "
          "directory",
          "set TMPDIR to a folder that may be written to, or give --run-dir");
    }
    path_ = name;
  }
  ~StatusFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  StatusFolder(const StatusFolder&) = delete;
  StatusFolder& operator=(const StatusFolder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

// Sets what can be seen of the run, and where it keeps its files.
void give_files(const CLI::App& command, const SchedulerArguments& arguments,
                launch::SchedulerOptions& options) {
  options.monitor = monitor_options_of(command, arguments.status);
  options.most_host_failures = arguments.most_host_failures;
  options.excludes_slow = arguments.excludes_slow;
  options.excludes_faulty = arguments.excludes_faulty;
  if (options.excludes_slow && options.monitor.slow_factor == 0) {
    throw ConfigError("--exclude-slow has no effect without --slow-factor",
                      "give both, such as --slow-factor 2 --exclude-slow");
  }
  const bool excludes =
      options.excludes_slow || options.excludes_faulty || options.most_host_failures > 0;
  if (excludes && options.restarts == 0) {
    throw ConfigError(join_message(options.excludes_slow     ? "--exclude-slow"
                                   : options.excludes_faulty ? "--exclude-faulty"
                                                             : "--max-host-failures",
                                   " has no effect without --restarts"),
                      "without restarts the first failure ends the run");
  }
  if (arguments.run_folder) {
    std::error_code failure;
    fs::create_directories(*arguments.run_folder, failure);
    if (failure) {
      throw ConfigError(join_message("cannot make the folder of the run ",
                                     arguments.run_folder->string(), ": ", failure.message()),
                        "give another one by --run-dir");
    }
    options.folder = fs::absolute(*arguments.run_folder);
    if (!options.monitor.journal) options.monitor.journal = options.folder / "journal.jsonl";
  }
  if (options.monitor.journal) {
    options.state_file = fs::absolute(*options.monitor.journal).string() + ".state";
    if (options.folder.empty()) options.folder = options.state_file.parent_path();
  }
}

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
  give_files(command, arguments, options);
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
  command
      ->add_option("--run-dir", arguments->run_folder,
                   "Folder of the run, for its journal, its state and the address of its status "
                   "(default: none)")
      ->option_text("DIR");
  add_status_options(*command, arguments->status, "journal.jsonl in --run-dir");
  command
      ->add_option("--max-host-failures", arguments->most_host_failures,
                   "Failures after which a host takes part no more, if workers of others can take "
                   "its places (default: no limit)")
      ->check(integer_from(1, 1'000'000))
      ->option_text("K");
  command->add_flag("--exclude-slow", arguments->excludes_slow,
                    "Let the host of a slow rank (--slow-factor) take part no more, if workers of "
                    "others can take its places");
  command->add_flag("--exclude-faulty", arguments->excludes_faulty,
                    "Let the host of a rank whose values differ from those of its replicas "
                    "(trireme worker --check-replicas) take part no more");
  add_tls_options(*command, arguments->tls);
  command->callback([arguments, command] {
    launch::SchedulerOptions options = options_of(*command, *arguments);
    std::optional<StatusFolder> temporary;
    if (options.monitor.status && options.folder.empty())
      options.folder = temporary.emplace().path();
    if (const int code = launch::run_scheduler(options); code != 0) throw CLI::RuntimeError(code);
  });
}

}  // namespace trireme::apps
