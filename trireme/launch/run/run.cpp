// SPDX-License-Identifier: Apache-2.0
#include <trireme/launch/run/run.h>

#include <trireme/base/environment.h>
#include <trireme/base/error.h>
#include <trireme/base/machine.h>
#include <trireme/launch/listening_socket.h>
#include <trireme/launch/run/run_plan.h>
#include <trireme/launch/run/supervisor.h>
#include <trireme/launch/run/two_processes.h>

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>

namespace trireme::launch {
namespace {

namespace fs = std::filesystem;

RunPlan plan_for_this_machine(const RunOptions& options) {
  return make_plan(options, Environment::of_process(), allowed_cores(), available_cores());
}

// Whoever starts us with closed standard streams would have their numbers given to files and pipes
// of ours. The ranks inherit these.
void open_standard_streams() {
  for (int fd = ::open("/dev/null", O_RDWR); fd >= 0; fd = ::open("/dev/null", O_RDWR)) {
    if (fd <= 2) continue;
    ::close(fd);
    return;
  }
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

}  // namespace

int run(const RunOptions& options) {
  open_standard_streams();
  RunPlan plan = plan_for_this_machine(options);
  ListeningSocket socket;
  if (plan.hosts_store) {
    socket = listen_on(options.nodes == 1 ? Reach::kLoopback : Reach::kAllInterfaces,
                       options.master_port);
  }
  add_variable(plan, "MASTER_PORT",
               std::to_string(plan.hosts_store ? socket.port : *options.master_port));
  add_variable(plan, "TRIREME_RUN_ID",
               join_message(host_name(), "-", ::getpid(), "-", socket.port));
  const fs::path log_folder = make_log_folder(options);
  // Logs that nobody asked for stay only where something went wrong.
  const auto forget_logs = [&] {
    std::error_code ignored;
    if (!options.log_folder) fs::remove_all(log_folder, ignored);
  };
  // Beside the logs, what each rank did last, should a group fail.
  const auto& given = options.environment;
  if (!Environment::of_process().has("TRIREME_DUMP") &&
      std::none_of(given.begin(), given.end(),
                   [](const auto& variable) { return variable.first == "TRIREME_DUMP"; })) {
    add_variable(plan, "TRIREME_DUMP", log_folder.string());
  }
  try {
    const int code = run_in_two_processes([&](SupervisorSetting setting) {
      return Supervisor(plan, options, log_folder, std::move(socket), std::move(setting)).run();
    });
    if (code == 0) forget_logs();
    return code;
  } catch (const ConfigError&) {
    forget_logs();  // nothing ran that could have written there
    throw;
  }
}

std::string describe_run(const RunOptions& options) {
  RunPlan plan = plan_for_this_machine(options);
  add_variable(plan, "MASTER_PORT",
               options.master_port ? std::to_string(*options.master_port) : "<a free port>");
  return describe(plan);
}

}  // namespace trireme::launch
