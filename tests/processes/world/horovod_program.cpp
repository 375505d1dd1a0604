// SPDX-License-Identifier: Apache-2.0
// Meets the other ranks four times by Horovod's interface.
#include <trireme/parallel/horovod.h>

#include <torch/torch.h>

#include <iostream>
#include <string>

int main() {
  namespace hvd = trireme::hvd;
  int sum = 0;
  int rank = 0;
  for (int time = 0; time < 4; ++time) {
    hvd::init();
    rank = hvd::rank();
    sum = hvd::allreduce(torch::full({1}, hvd::rank(), torch::kInt), hvd::Sum).item<int>();
    hvd::shutdown();
  }
  std::cout << "rank " + std::to_string(rank) + " met 4 times, sum " + std::to_string(sum) + "\n"
            << std::flush;
}
