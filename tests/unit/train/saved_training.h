// SPDX-License-Identifier: Apache-2.0
// A small training, and the checkpoints that it leaves.
#pragma once

#include "tests/unit/train/small_problem.h"
#include <trireme/checkpoint/checkpoint_folder.h>
#include <trireme/train/model.h>

#include <gtest/gtest.h>
#include <tests/temporary_folder.h>

#include <string>
#include <vector>

namespace trireme::testing {

class SavedTraining : public ::testing::Test {
 protected:
  struct Trained {
    torch::nn::Sequential network = small_network();
    torch::optim::SGD optimizer = momentum(*network);
    Model model{network, CrossEntropy(), optimizer};
  };

  data::DataLoader batches(const comm::Group& group = {}) const {
    data::DataLoader data = points_;
    data.shard({.index = group.rank(), .count = group.size()}).batch(4);
    return data;
  }

  // Names of checkpoints, the oldest first.
  std::vector<std::string> saved(const std::string& prefix = "checkpoint") const {
    std::vector<std::string> names;
    for (const auto& path : checkpoint::list_checkpoints(folder_.path(), prefix)) {
      names.push_back(path.filename());
    }
    return names;
  }

  test::TemporaryFolder folder_;
  data::DataLoader points_ = points(16);  // 4 steps alone
};

}  // namespace trireme::testing
