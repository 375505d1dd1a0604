// SPDX-License-Identifier: Apache-2.0
#include <trireme/comm/spawn.h>

#include <trireme/base/environment.h>
#include <trireme/base/error.h>
#include <trireme/base/exception_text.h>
#include <trireme/base/text.h>
#include <trireme/launch/launcher_environment.h>
#include <trireme/launch/process_tree.h>
#include <trireme/launch/store/store_server.h>

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <iterator>
#include <memory>
#include <optional>

namespace trireme {
namespace {

namespace fs = std::filesystem;

// The variable that a worker and its descendants have in their environment. It contains the process
// that called spawn and the number of that call.
constexpr const char* kMark = "TRIREME_SPAWN";

struct Mark {
  int process = 0;
  int call = 0;
};

Mark read_mark(const std::string& text) {
  Mark mark;
  char separator = 0;
  TextReader(text) >> mark.process >> separator >> mark.call;
  return mark;
}

// A worker's parent is the second process of the launcher. The parent of that process called spawn.
bool is_worker_of(int process) {
  const auto above = launch::ancestors();
  return above.size() > 1 && above[1].id == process;
}

[[noreturn]] void work(int rank, const std::function<int(const World&)>& body,
                       const InitOptions& options) {
  std::optional<World> world;
  int code = 1;
  try {
    world = init(options);
    code = body(*world);
  } catch (const std::exception& error) {
    std::cerr << "trireme: rank " << rank << " ended by an exception: " << message_of(error)
              << std::endl;
  } catch (...) {
    std::cerr << "trireme: rank " << rank
              << " ended by an exception that is no std::exception. hint: throw one, which has a "
                 "message"
              << std::endl;
  }
  if ((code & 0xff) == 0 && code != 0) code = 1;  // exit codes have 8 bits
  if (code != 0) {
    // Ranks that wait for a rank which has left fail too, and the launcher might take one of them
    // for the first. So this process keeps its connections and ends before another rank notices.
    std::cout.flush();
    std::fflush(nullptr);
    std::_Exit(code);
  }
  world.reset();
  std::exit(0);  // only the process that called spawn first runs the code after it
}

void check_alone(const launch::Identity& identity) {
  if (identity.world_size == 1) return;
  throw UsageError(
      join_message("spawn was called in rank ", identity.rank, " of ", identity.world_size,
                   ", which ", identity.launcher, " has started"),
      "spawn starts the ranks itself: start the program alone, or call the function that you gave "
      "to spawn without it");
}

// The launcher forks and handles signals, which another thread might receive instead.
void check_single_thread() {
  const auto threads = std::distance(fs::directory_iterator("/proc/self/task"), {});
  if (threads == 1) return;
  throw UsageError(
      join_message("spawn was called in a process of ", threads, " threads, expected 1"),
      "call it first in main: computing with tensors starts threads");
}

pid_t caller = 0;  // the process that called spawn, while spawn runs

// The launcher forks a second process from this one. During the lifetime of this object, that
// process does not run the program's exit handlers and static destructors, which may for example
// remove files.
class ExitsAlone {
 public:
  ExitsAlone() {
    caller = ::getpid();
    // Registered in each call: handlers that the program has registered since the last one would
    // run first otherwise.
    ::on_exit(
        [](int code, void*) {
          if (caller != 0 && caller != ::getpid()) ::_exit(code);
        },
        nullptr);
  }
  ExitsAlone(const ExitsAlone&) = delete;
  ExitsAlone& operator=(const ExitsAlone&) = delete;
  ~ExitsAlone() { caller = 0; }
};

// Runs in a process of its own, a child of the launcher's second process.
std::unique_ptr<launch::RunStore> open_store(launch::StoreAddress place) {
  return std::make_unique<launch::StoreServer>(std::move(place));
}

}  // namespace

int spawn(int processes, int argc, char** argv, const std::function<int(const World&)>& body,
          SpawnOptions options) {
  static int calls = 0;
  const int call = ++calls;
  const Environment environment = Environment::of_process();
  const launch::Identity identity = launch::read_identity(environment);
  if (const auto text = environment.find(kMark)) {
    const Mark mark = read_mark(*text);
    if (is_worker_of(mark.process)) {
      if (call < mark.call) return 0;
      if (call == mark.call) work(identity.rank, body, options.init);
    }
    throw UsageError(join_message("spawn was called inside a worker, rank ", identity.rank, " of ",
                                  identity.world_size),
                     "start all workers by one call, outside of them");
  }
  check_alone(identity);
  if (processes < 1) {
    throw UsageError(join_message("spawn was given ", processes, " processes"), "give 1 or more");
  }
  check_single_thread();
  launch::RunOptions& run = options.run;
  run.command = {fs::read_symlink("/proc/self/exe").string()};
  for (int i = 1; i < argc; ++i) run.command.emplace_back(argv[i]);
  run.processes = processes;
  run.environment.emplace_back(kMark, join_message(::getpid(), ".", call));
  run.open_store = open_store;
  const ExitsAlone exits_alone;
  return launch::run(run);
}

}  // namespace trireme
