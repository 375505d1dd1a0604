// SPDX-License-Identifier: Apache-2.0
// Joins its run, adds the ranks up and prints what it found; `--never-init` and the like misbehave
// for the tests.
#include <trireme/base/error.h>
#include <trireme/comm/collectives.h>
#include <trireme/comm/world.h>

#include <ATen/ops/full.h>
#include <unistd.h>

#include <cstdlib>
#include <iostream>
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

bool is_rank_one() {
  const char* rank = std::getenv("RANK");  // NOLINT(concurrency-mt-unsafe): one thread
  return rank != nullptr && std::string(rank) == "1";
}

}  // namespace

int main(int count, char** arguments) try {
  const std::string mode = count > 1 ? arguments[1] : "";
  if (mode == "--rank-1-leaves" && is_rank_one()) return 0;
  if (mode == "--rank-1-sleeps" && is_rank_one()) {
    while (true) ::pause();
  }
  return join();
} catch (const trireme::Error& error) {
  std::cerr << error.what() << std::endl;
  return 1;
}
