// SPDX-License-Identifier: Apache-2.0
// One rank of a group over shared memory, for tests that kill, stop and confuse it:
//
//     shm_rank FOLDER RANK SIZE SEED TIMEOUT_MS [by-name] [ACTION:NUMBER]
//
// Runs random collectives that check themselves until somebody makes the file FOLDER/stop, and says
// `ready` after the first twenty. ACTION is what it does instead of operation NUMBER: `exit` ends
// the process, `return` leaves the group, `throw` is an exception nobody catches, `barrier` calls a
// barrier, `compute` is busy for longer than a stopped rank is noticed in, `listen` says
// `listening` and waits for a message of the last rank, or of rank 0 there. Exit status: 0 when all
// went well, 3 after a CommError, which is printed.
#include <trireme/base/error.h>
#include <trireme/comm/engines/shm/communicator.h>

#include <sys/prctl.h>
#include <tests/processes/comm/file_rendezvous.h>
#include <tests/ranks/shm/checked_operation.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <string>
#include <vector>

namespace trireme::shm {
namespace {

using Clock = std::chrono::steady_clock;

struct Arguments {
  std::filesystem::path folder;
  int rank = 0;
  int size = 1;
  std::uint64_t seed = 0;
  std::chrono::milliseconds timeout{};
  bool by_name = false;
  std::string action;
  std::uint64_t action_at = 0;
};

Arguments parse(const std::vector<std::string>& words) {
  Arguments arguments{.folder = words.at(0),
                      .rank = std::stoi(words.at(1)),
                      .size = std::stoi(words.at(2)),
                      .seed = std::stoull(words.at(3)),
                      .timeout = std::chrono::milliseconds(std::stoll(words.at(4))),
                      .action = "",
                      .action_at = 0};
  for (std::size_t i = 5; i < words.size(); ++i) {
    const std::size_t colon = words[i].find(':');
    if (colon == std::string::npos) {
      arguments.by_name = words[i] == "by-name";
    } else {
      arguments.action = words[i].substr(0, colon);
      arguments.action_at = std::stoull(words[i].substr(colon + 1));
    }
  }
  return arguments;
}

// Whether to go on; the group has to agree on that.
bool go_on(Communicator& group, const std::filesystem::path& folder) {
  char stops = group.rank() == 0 && std::filesystem::exists(folder / "stop") ? 1 : 0;
  group.broadcast(&stops, 1, 0, "whether to stop");
  return stops == 0;
}

int run(const Arguments& arguments) {
  test::FileRendezvousStore store(arguments.folder, arguments.by_name);
  Options options;
  options.name = "tested";
  options.timeout = arguments.timeout;
  options.cache_folder = arguments.folder.parent_path();
  const auto group = Communicator::connect(arguments.rank, arguments.size, store, options);
  test::Random random(arguments.seed);
  for (std::uint64_t number = 1; go_on(*group, arguments.folder); ++number) {
    test::Plan plan = test::random_plan(random, arguments.size, 30'000);
    plan.label = join_message("operation ", number);
    if (number == arguments.action_at) {
      if (arguments.action == "exit") std::exit(0);
      if (arguments.action == "return") return 0;
      if (arguments.action == "throw") throw std::runtime_error("out of luck");
      if (arguments.action == "listen") {
        std::cout << "listening" << std::endl;
        const int last = arguments.size - 1;
        std::array<std::byte, 8> data = {};
        PointToPoint& mail = group->point_to_point();
        mail.wait(*mail.receive(data.data(), data.size(), arguments.rank == last ? 0 : last, 1));
      }
      if (arguments.action == "barrier") {
        plan.kind = plan.kind == Kind::kBarrier ? Kind::kAllReduce : Kind::kBarrier;
      }
      if (arguments.action == "compute") {
        for (const auto end = Clock::now() + std::chrono::milliseconds(1500); Clock::now() < end;) {
        }
      }
    }
    const std::string wrong = test::run_checked(*group, plan);
    if (!wrong.empty()) {
      std::cout << "wrong: " << wrong << std::endl;
      return 1;
    }
    if (number == 20) std::cout << "ready" << std::endl;
  }
  return 0;
}

}  // namespace
}  // namespace trireme::shm

int main(int argc, char** argv) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // nothing is left over if the test is killed
  const auto arguments = trireme::shm::parse({argv + 1, argv + argc});
  try {
    return trireme::shm::run(arguments);
  } catch (const trireme::CommError& error) {
    std::cout << "failed: peer " << error.failure().peer << ": " << error.what() << "\n(end)"
              << std::endl;
    return 3;
  }
}
