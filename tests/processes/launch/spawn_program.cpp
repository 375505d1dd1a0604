// SPDX-License-Identifier: Apache-2.0
// Spawns workers that do what the first argument says; for the tests.
#include <trireme/base/error.h>
#include <trireme/comm/collectives.h>
#include <trireme/comm/spawn.h>
#include <trireme/comm/world.h>

#include <ATen/ops/full.h>
#include <c10/util/Exception.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <optional>
#include <string>
#include <thread>

namespace {

// Notes in a file, if there is one, which processes ended in the ordinary way.
struct Farewell {
  std::string path;
  ~Farewell() {
    if (!path.empty()) std::ofstream(path, std::ios::app) << "bye\n";
  }
};
Farewell farewell;

// Ranks other than 1 wait for it for ever.
int work(const std::string& mode, const trireme::World& world, int argc, char** argv) {
  if (mode == "sum") {
    const at::Tensor sum = at::full({1}, world.rank, at::kLong);
    trireme::comm::all_reduce(sum, world.group);
    std::cout << "rank " << world.rank << " of " << world.size << ", sum "
              << sum.item<std::int64_t>() << ", arguments";
    for (int i = 1; i < argc; ++i) std::cout << " <" << argv[i] << ">";
    std::cout << std::endl;
    return 0;
  }
  if (mode == "hang") std::cout << "ready" << std::endl;
  if (mode == "earlier") std::cout << "parent " << ::getppid() << " end" << std::endl;
  if (mode == "hang" || mode == "earlier" || world.rank != 1) {
    trireme::comm::barrier(world.group);
    while (true) ::pause();
  }
  if (mode == "code") return 7;
  if (mode == "large code") return 256;
  if (mode == "throw number") throw 5;  // NOLINT(bugprone-std-exception-baseclass): is tested
  if (mode == "kill") ::raise(SIGKILL);
  if (mode == "torch") TORCH_CHECK(false, "no such sample");
  if (mode == "nested")
    return trireme::spawn(2, argc, argv, [](const trireme::World&) { return 0; });
  if (mode == "below") {
    const std::string again = std::string(argv[2]) + " sum";
    return std::system(again.c_str()) == 0 ? 0 : 8;  // NOLINT(bugprone-command-processor)
  }
  throw std::runtime_error("no such sample");
}

// Children that this process had before it called spawn: one that has ended and one that goes on.
class EarlierChildren {
 public:
  EarlierChildren() {
    if (ended_ == 0) ::_exit(5);
    going_ = ::fork();
    if (going_ == 0) {
      while (true) ::pause();
    }
  }
  EarlierChildren(const EarlierChildren&) = delete;
  EarlierChildren& operator=(const EarlierChildren&) = delete;
  ~EarlierChildren() {
    int status = 0;
    const bool is_there = ::waitpid(ended_, &status, 0) == ended_ && WEXITSTATUS(status) == 5;
    const bool is_going = ::waitpid(going_, &status, WNOHANG) == 0;
    int is_subreaper = -1;
    ::prctl(PR_GET_CHILD_SUBREAPER, &is_subreaper);
    std::cout << "of earlier children, one has ended: " << is_there << ", one goes on: " << is_going
              << ", subreaper: " << is_subreaper << std::endl;
    ::kill(going_, SIGKILL);
    ::waitpid(going_, &status, 0);
  }

 private:
  pid_t ended_ = ::fork();
  pid_t going_ = 0;
};

int run(const std::string& mode, int argc, char** argv) {
  std::optional<EarlierChildren> earlier;
  if (mode == "earlier" && std::getenv("TRIREME_SPAWN") == nullptr) earlier.emplace();
  std::thread thread;
  if (mode == "thread") {
    thread = std::thread([] { ::pause(); });
    thread.detach();
  }
  if (mode == "farewell") farewell.path = argv[2];
  if (mode == "twice") {
    // A worker that ends with an error has the others ended: not before rank 0 has spoken.
    const auto say = [](const trireme::World& world, const char* text) {
      std::cout << text << std::endl;
      trireme::comm::barrier(world.group);
    };
    const int first = trireme::spawn(2, argc, argv, [&](const trireme::World& world) {
      say(world, "the first");
      return 3;
    });
    std::cout << "between, after " << first << std::endl;
    return trireme::spawn(2, argc, argv, [&](const trireme::World& world) {
      say(world, "the second");
      return 4;
    });
  }
  const int processes = mode == "none" ? 0 : 3;
  trireme::SpawnOptions options;
  if (mode == "sum") options.run.output = trireme::launch::Output::kAll;
  if (mode == "farewell" && argc > 3) options.run.log_folder = argv[3];
  if (mode == "second node") {
    farewell.path = argv[2];
    options.run.nodes = 2;
    options.run.node_rank = 1;
    options.run.master_address = "127.0.0.1";
    options.run.master_port = 1;  // where nobody answers
    options.run.timeout = std::chrono::seconds(1);
  }
  const int code = trireme::spawn(
      processes, argc, argv,
      [&](const trireme::World& world) {
        return mode == "farewell" ? 0 : work(mode, world, argc, argv);
      },
      options);
  std::cout << "spawn returned " << code << std::endl;
  return code;
}

}  // namespace

int main(int argc, char** argv) try {
  return run(argc > 1 ? argv[1] : "", argc, argv);
} catch (const trireme::Error& error) {
  std::cerr << "refused: " << error.what() << std::endl;
  return 9;
}
