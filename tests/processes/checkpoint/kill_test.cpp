// SPDX-License-Identifier: Apache-2.0
// Ranks that are killed (SIGKILL) at random times leave complete checkpoints, and runs go on from
// them.
#include <trireme/checkpoint/checkpoint_folder.h>
#include <trireme/checkpoint/reader.h>

#include <gmock/gmock.h>
#include <tests/processes/parallel/run_ranks.h>
#include <torch/torch.h>

#include <csignal>
#include <random>
#include <string>

namespace trireme {
namespace {

using test::Finished;
using ::testing::IsEmpty;

// Every value of every tensor is the step.
void expect_complete(const std::filesystem::path& path) {
  EXPECT_THAT(checkpoint::find_damage(path), IsEmpty());
  checkpoint::Reader reader(path);
  for (const char* section : {"model", "optimizer"}) {
    EXPECT_EQ(reader.section(section).size(), 4U);
    for (const auto& [name, tensor] : reader.section(section)) {
      EXPECT_TRUE(reader.read(section, name).eq(reader.state().step).all().item<bool>())
          << path << ": " << name;
    }
  }
}

TEST(KilledRanks, LeaveTheOldOrTheNewCheckpointWhenever) {
  const test::TemporaryFolder folder;
  std::random_device random;
  std::int64_t last = 0;
  for (int round = 0; round < 24; ++round) {
    const int ranks = 1 + round % 3;
    const int victim = static_cast<int>(random() % static_cast<unsigned>(ranks));
    const auto microseconds = random() % 60'000;
    const Finished finished =
        test::run_ranks(ranks, "CHECKPOINT_KILL_PROGRAM",
                        (folder / "runs").string() + " " + std::to_string(victim) + " " +
                            std::to_string(microseconds) + " " + std::to_string(round % 2));
    EXPECT_EQ(finished.code, 128 + SIGKILL) << finished.output;
    const auto all = checkpoint::list_checkpoints(folder / "runs", "kill");
    ASSERT_FALSE(all.empty()) << finished.output;
    for (const auto& path : all) expect_complete(path);
    const std::int64_t step = checkpoint::read_index(all.back()).state.step;
    EXPECT_GE(step, last) << "round " << round << "\n" << finished.output;
    last = step;
  }
  EXPECT_GT(last, 12);
}

}  // namespace
}  // namespace trireme
