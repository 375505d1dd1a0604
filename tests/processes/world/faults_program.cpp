// SPDX-License-Identifier: Apache-2.0
// Ranks of which the test stops or kills one: `reduce` adds numbers for ever and says `rank 1 is
// process 7` when it has begun; `subgroup` stops rank 1 by itself before it makes a subgroup.
#include <trireme/base/error.h>
#include <trireme/comm/collectives.h>
#include <trireme/comm/world.h>

#include <ATen/ops/zeros.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <iostream>
#include <string>

int main(int count, char** arguments) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // nothing is left over if the test is killed
  const std::string mode = count > 1 ? arguments[1] : "reduce";
  try {
    const trireme::World world = trireme::init();
    if (mode == "subgroup") {
      if (world.rank == 1) ::raise(SIGSTOP);
      const auto all = world.group.subgroup(std::array{2, 1, 0});
      return 0;
    }
    const at::Tensor sum = at::zeros({4});
    for (int step = 0;; ++step) {
      trireme::comm::all_reduce(sum, world.group);
      if (step == 5) {
        // One write, so that lines of ranks are not mixed.
        std::cout << "rank " + std::to_string(world.rank) + " is process " +
                         std::to_string(::getpid()) + ".\n"
                  << std::flush;
      }
    }
  } catch (const trireme::CommError& error) {
    std::cerr << std::string("failed: peer ") + std::to_string(error.failure().peer) + ": " +
                     error.what() + "\n(end)\n"
              << std::flush;
    return 3;
  }
}
