// SPDX-License-Identifier: Apache-2.0
// One of four ranks of `trireme run` that go through the same cases together and compare each with
// one process: sharded_ranks.cpp, tensor_ranks.cpp, model_ranks.cpp.
#include <trireme/comm/world.h>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdio>
#include <exception>

int main(int count, char** arguments) try {
  testing::InitGoogleTest(&count, arguments);
  torch::set_num_threads(1);
  const trireme::World world = trireme::init();  // the one that init() gives in the cases
  return RUN_ALL_TESTS();
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
