// SPDX-License-Identifier: Apache-2.0
// Joins its run, adds the ranks up and prints what it found; `--never-init` and the like misbehave
// for the tests. `--locale` before others: in a locale of decimal commas and groups of digits.
#include <trireme/base/error.h>
#include <trireme/comm/collectives.h>
#include <trireme/comm/world.h>

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <tests/other_locale.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <optional>
#include <string>

namespace {

int join() {
  const trireme::World world = trireme::init();
  const at::Tensor sum = at::full({1}, world.rank, at::kLong);
  trireme::comm::all_reduce(sum, world.group);
  const trireme::comm::Group kept = trireme::init().group;
  const trireme::World again = trireme::init();
  std::cout << "rank " << world.rank << " of " << world.size << ", local " << world.local_rank
            << " of " << world.local_size << ", by " << world.launcher << ", sum "
            << sum.item<std::int64_t>() << ", same "
            << (again.group.backend() == world.group.backend()) << std::endl;
  return 0;
}

std::int64_t sum_of_ranks(const trireme::World& world) {
  const at::Tensor sum = at::full({1}, world.rank, at::kLong);
  trireme::comm::all_reduce(sum, world.group);
  return sum.item<std::int64_t>();
}

int meet_again() {
  std::int64_t sum = 0;
  int rank = 0;
  for (int time = 0; time < 4; ++time) {
    const trireme::World world = trireme::init();
    rank = world.rank;
    sum = sum_of_ranks(world);
  }
  std::cout << "rank " + std::to_string(rank) + " met 4 times, sum " + std::to_string(sum) + "\n"
            << std::flush;
  return 0;
}

// While it has no handle of the world, its fork ends as programs do, by exit().
int fork_between_meetings() {
  const int rank = trireme::init().rank;
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(60);   // should it hang
    std::exit(0);  // NOLINT(concurrency-mt-unsafe): one thread
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  const std::int64_t sum = sum_of_ranks(trireme::init());
  std::cout << "fork of rank " + std::to_string(rank) + " ended with " + std::to_string(status) +
                   ", sum " + std::to_string(sum) + "\n"
            << std::flush;
  return 0;
}

int give_other_options() {
  const trireme::World world = trireme::init();
  const std::string engine = world.size > 1 ? world.group.engine() : "auto";
  trireme::InitOptions same;
  same.engine = engine;
  const trireme::World again = trireme::init(same);
  std::cout << "same options pass" << std::endl;
  trireme::InitOptions other;
  other.engine = "gloo";
  other.timeout = std::chrono::seconds(7);
  const trireme::World never = trireme::init(other);
  return 0;
}

// Joins, and waits for a signal. A child that lives longer has no part in the run.
int wait_for_ever(bool forks) {
  const trireme::World world = trireme::init();
  if (forks && ::fork() == 0) {
    ::alarm(60);  // should it not be noticed that its parent has died
    while (true) ::pause();
  }
  std::cout << "rank " + std::to_string(world.rank) + " waits\n" << std::flush;
  while (true) ::pause();
}

// The child of a child keeps its descriptors, though one has the number of the connection to the
// scheduler, which children close.
int fork_twice() {
  const int rank = trireme::init().rank;
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(60);  // should it hang
    std::array<int, 64> opened{};
    for (int& fd : opened) fd = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    const pid_t grandchild = ::fork();
    int closed = 0;
    for (const int fd : opened) closed += ::fcntl(fd, F_GETFD) < 0 ? 1 : 0;
    if (grandchild == 0) ::_exit(closed);
    int status = -1;
    ::waitpid(grandchild, &status, 0);
    ::_exit(status == 0 ? 0 : 1);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  std::cout << "forks of rank " + std::to_string(rank) + " ended with " + std::to_string(status) +
                   "\n"
            << std::flush;
  return 0;
}

bool is_rank_one() {
  const char* rank = std::getenv("RANK");  // NOLINT(concurrency-mt-unsafe): one thread
  return rank != nullptr && std::string(rank) == "1";
}

int run(int count, char** arguments) try {
  const std::string mode = count > 1 ? arguments[1] : "";
  if (mode == "--rank-1-leaves" && is_rank_one()) return 0;
  if (mode == "--rank-1-sleeps" && is_rank_one()) {
    while (true) ::pause();
  }
  if (mode == "--again") return meet_again();
  if (mode == "--waits" || mode == "--forks-and-waits") return wait_for_ever(mode != "--waits");
  if (mode == "--exits-with-5") {
    const trireme::World world = trireme::init();
    return 5;
  }
  if (mode == "--forks-twice") return fork_twice();
  if (mode == "--forks") return fork_between_meetings();
  if (mode == "--other-options") return give_other_options();
  if (mode == "--no-group") {
    std::cout << "a group of " << trireme::group_or_self({}, "Trainer").size() << std::endl;
    return 0;
  }
  return join();
} catch (const trireme::Error& error) {
  std::cerr << error.what() << std::endl;
  return 1;
}

// As in a program without a handler.
int fail_uncaught() {
  const trireme::World world = trireme::init();
  at::ones({2}).add_(at::ones({3}));
  return world.rank;
}

}  // namespace

int main(int count, char** arguments) {
  std::optional<trireme::test::CommaLocale> locale;
  if (count > 1 && std::string(arguments[1]) == "--locale") {
    locale.emplace();
    ++arguments;
    --count;
  }
  const bool is_uncaught = count > 1 && std::string(arguments[1]) == "--uncaught";
  return is_uncaught ? fail_uncaught() : run(count, arguments);
}
