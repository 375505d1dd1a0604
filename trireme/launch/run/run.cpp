// SPDX-License-Identifier: Apache-2.0
#include <trireme/launch/run/run.h>

#include <trireme/base/environment.h>
#include <trireme/base/error.h>
#include <trireme/base/machine.h>
#include <trireme/launch/launcher_environment.h>
#include <trireme/launch/listening_socket.h>
#include <trireme/launch/role.h>
#include <trireme/launch/run/exit_report.h>
#include <trireme/launch/run/restarts.h>
#include <trireme/launch/run/run_plan.h>
#include <trireme/launch/run/two_processes.h>
#include <trireme/launch/secret.h>

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <iterator>

namespace trireme::launch {
namespace {

namespace fs = std::filesystem;

RunPlan plan_for_this_machine(const RunOptions& options) {
  return make_plan(options, Environment::of_process(), allowed_cores(), available_cores());
}

// Opens /dev/null in place of standard streams that are closed. Otherwise files and pipes would get
// their numbers, and the ranks would inherit them as standard streams.
void open_standard_streams() {
  for (int fd = ::open("/dev/null", O_RDWR); fd >= 0; fd = ::open("/dev/null", O_RDWR)) {
    if (fd <= 2) continue;
    ::close(fd);
    return;
  }
}

// Returns the address of the store. Host 0 of several listens on all its interfaces and does not
// need to know its own name.
StoreAddress place_of(const RunPlan& plan, const RunOptions& options, const ListeningSocket& socket,
                      const std::string& secret) {
  if (options.place) {
    return {.listening_socket = {},
            .address = options.place->store_address,
            .port = options.place->store_port,
            .timeout = plan.timeout,
            .secret = secret,
            .attempt = options.place->restart};
  }
  const bool is_named = !plan.hosts_store || options.nodes == 1;
  return {.listening_socket = copy_of_descriptor(socket.fd),
          .address = is_named ? options.master_address.value_or("127.0.0.1") : "127.0.0.1",
          .port = plan.hosts_store ? socket.port : *options.master_port,
          .timeout = plan.timeout,
          .secret = secret};
}

// Throws ConfigError if there are not enough open files. The supervisor needs a few descriptors per
// rank, and the store's process two connections per rank: its own and that of its watch. Only the
// hard limit matters, because both processes raise their soft limit to it.
void check_open_files(const RunPlan& plan, const RunOptions& options) {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  constexpr std::size_t kForEndingAndReading = 32;
  const std::size_t of_a_rank = options.output == Output::kAll ? 4 : 2;
  const std::size_t open_now =
      static_cast<std::size_t>(std::distance(fs::directory_iterator("/proc/self/fd"), {}));
  const std::size_t for_status = options.monitor.status ? 160 : 0;
  const std::size_t needed =
      for_status + open_now + kForEndingAndReading +
      std::max(of_a_rank * plan.ranks.size(), 2 * static_cast<std::size_t>(plan.world_size));
  if (needed <= limit.rlim_max) return;
  throw ConfigError(join_message(plan.ranks.size(), " ranks of ", plan.world_size, " need ", needed,
                                 " open files in the launcher, the hard limit is ", limit.rlim_max),
                    "raise it (ulimit -Hn, LimitNOFILE, limits.conf), or start fewer ranks");
}

// Returns the secret of the run. With several hosts it must be given, because launchers have no
// secure way to tell each other one. A scheduler gives one over an encrypted connection.
std::string secret_of(const RunOptions& options) {
  if (options.place && !options.place->secret.empty()) return options.place->secret;
  const auto given = Environment::of_process().find(kSecretVariable);
  if (!given) return options.nodes == 1 && !options.place ? make_secret() : "";
  check_secret(*given);
  return *given;
}

fs::path make_log_folder(const RunOptions& options) {
  std::error_code failure;
  if (options.log_folder) {
    fs::create_directories(*options.log_folder, failure);
    if (!failure) return fs::absolute(*options.log_folder);
    throw ConfigError(join_message("cannot make the log folder ", options.log_folder->string(),
                                   ": ", failure.message()),
                      "give another one by --log-dir");
  }
  std::string folder = (fs::temp_directory_path(failure) / "trireme-XXXXXX").string();
  if (failure || ::mkdtemp(folder.data()) == nullptr) {
    throw ConfigError(join_message("cannot make a folder for logs under the temporary directory: ",
                                   failure ? failure.message() : describe_errno(errno)),
                      "set TMPDIR to a folder that may be written to, or give --log-dir");
  }
  return folder;
}

// Returns true if no rank has written a log. Ranks may have run for long until the store turned out
// to be missing, and the logs of such a run are kept.
bool is_silent(const fs::path& folder) {
  std::error_code failure;
  for (fs::directory_iterator entry(folder, failure), end; !failure && entry != end;
       entry.increment(failure)) {
    std::error_code unreadable;
    if (entry->file_size(unreadable) > 0) return false;
  }
  return !failure;
}

// Opens the socket of the store, for the ranks of this host and of others.
ListeningSocket listen_for(const RunOptions& options) {
  ListeningSocket socket = [&] {
    if (options.nodes > 1) return listen_on(Reach::kAllInterfaces, options.master_port);
    if (options.master_address) return listen_at(*options.master_address, options.master_port);
    return listen_on(Reach::kLoopback, options.master_port);
  }();
  check_reachable(socket);
  return socket;
}

// Returns true if the user has said where ranks write their last operations if a group fails.
bool is_dump_folder_given(const RunOptions& options) {
  return Environment::of_process().has("TRIREME_DUMP") ||
         std::ranges::any_of(options.environment,
                             [](const auto& variable) { return variable.first == "TRIREME_DUMP"; });
}

std::string run_id_of(const RunOptions& options, const ListeningSocket& socket) {
  if (options.place) return options.place->run_id;
  return join_message(host_name(), "-", ::getpid(), "-", socket.port);
}

// A scheduler adds the number of the attempt from the first restart on.
std::string name_of_all_attempts(const RunOptions& options, const ListeningSocket& socket) {
  std::string name = run_id_of(options, socket);
  if (!options.place || options.place->restart == 0) return name;
  const std::string suffix = join_message("-", options.place->restart);
  if (name.ends_with(suffix)) name.resize(name.size() - suffix.size());
  return name;
}

PreparedRun prepare_run(const RunOptions& options, const ListeningSocket& socket,
                        const fs::path& log_folder, const fs::path& recovery_folder) {
  RunPlan plan = plan_for_this_machine(options);
  const int port = plan.hosts_store ? socket.port
                   : options.place  ? options.place->store_port
                                    : *options.master_port;
  add_variable(plan, "MASTER_PORT", std::to_string(port));
  add_variable(plan, "TRIREME_RUN_ID", run_id_of(options, socket));
  if (!is_dump_folder_given(options)) add_variable(plan, "TRIREME_DUMP", log_folder.string());
  const std::string secret = secret_of(options);
  if (secret.empty() && !options.place) {
    plan.warnings.push_back(join_message(
        "whoever reaches port ", options.master_port.value_or(0), " of ",
        options.master_address.value_or(""), " can mislead the ranks. hint: set ", kSecretVariable,
        " to the same random text on all hosts, for instance from: openssl rand -hex 16"));
  }
  if (!secret.empty()) add_variable(plan, kSecretVariable, secret);
  // A run below another one does not get its folder.
  constexpr const char* kFolder = "TRIREME_RECOVERY_FOLDER";
  if (!recovery_folder.empty() || Environment::of_process().has(kFolder))
    add_variable(plan, kFolder, recovery_folder.string());
  if (options.place && options.place->restarts == 0 && !recovery_folder.empty()) {
    plan.warnings.emplace_back(
        "--recovery-dir has no effect: the scheduler was started without --restarts");
  }
  StoreAddress place = place_of(plan, options, socket, secret);
  return {.plan = std::move(plan), .place = std::move(place)};
}

}  // namespace

int run(const RunOptions& options) {
  open_standard_streams();
  ListeningSocket socket;
  check_open_files(plan_for_this_machine(options), options);
  if (!options.place && options.node_rank.value_or(0) == 0) socket = listen_for(options);
  const fs::path log_folder = make_log_folder(options);
  // Those of an earlier run would be taken for the ones of this run.
  if (!is_dump_folder_given(options)) {
    std::error_code ignored;
    for (const fs::path& dump : find_dumps(log_folder)) fs::remove(dump, ignored);
  }
  const RecoveryFolder recovery(options, name_of_all_attempts(options, socket));
  const Preparation prepare = [&](const RunOptions& own) {
    return prepare_run(own, socket, log_folder, recovery.path());
  };
  const PreparedRun first = prepare(options);
  try {
    return run_in_two_processes([&](const SupervisorSetting& setting) {
      const int code = supervise_with_restarts(first, prepare, options, log_folder, setting);
      recovery.remove();  // the other process may have been killed
      return code;
    });
  } catch (const ConfigError&) {
    std::error_code ignored;
    if (!options.log_folder && is_silent(log_folder)) fs::remove_all(log_folder, ignored);
    throw;
  }
}

void complete_from_slurm(const Environment& environment, RunOptions& options) {
  // A role is refused later.
  const bool has_role = environment.has("TRIREME_ROLE") || environment.has("MS_ROLE");
  if (options.nodes != 1 || options.node_rank || has_rank_of_trireme(environment) || has_role ||
      !environment.has("SLURM_PROCID")) {
    return;
  }
  const Identity identity = read_identity(environment);
  if (identity.launcher != "slurm" || identity.world_size == 1) return;
  if (identity.local_world_size != 1) {
    throw ConfigError(
        join_message("srun has started trireme run ", identity.local_world_size,
                     " times on this node, as ", identity.world_size,
                     " tasks: each would run alone"),
        "start it once on each node (srun --ntasks-per-node=1), or the program itself without "
        "trireme run; to run each alone, use env -u SLURM_STEP_ID trireme run");
  }
  options.nodes = identity.world_size;
  options.node_rank = identity.rank;
  if (!options.master_address) options.master_address = identity.master_address;
  if (!options.master_port) options.master_port = identity.master_port;
}

void check_run(const RunOptions& options) {
  check_open_files(plan_for_this_machine(options), options);
  const fs::path log_folder = make_log_folder(options);
  std::error_code ignored;
  if (!options.log_folder) fs::remove(log_folder, ignored);
}

std::string describe_run(const RunOptions& options) {
  RunPlan plan = plan_for_this_machine(options);
  add_variable(plan, "MASTER_PORT",
               options.master_port ? std::to_string(*options.master_port) : "<a free port>");
  return describe(plan);
}

}  // namespace trireme::launch
