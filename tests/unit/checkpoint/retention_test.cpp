// SPDX-License-Identifier: Apache-2.0
#include <trireme/checkpoint/retention.h>

#include <trireme/base/error.h>
#include <trireme/checkpoint/checkpoint.h>
#include <trireme/checkpoint/index.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tests/temporary_folder.h>

#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace trireme::checkpoint {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class RetentionTest : public ::testing::Test {
 protected:
  test::TemporaryFolder folder_;

  void save(std::int64_t step, std::optional<double> score, std::int64_t keep_best = 0,
            bool higher_is_better = false) {
    save_parts({.folder = folder_.path(),
                .prefix = "demo",
                .keep = keep_best > 0 ? 1 : 0,
                .keep_best = keep_best,
                .higher_is_better = higher_is_better,
                .score = score},
               {}, {.epoch = 1, .step = step}, comm::Group::self());
  }

  // As if it had been written then.
  void set_minute(std::int64_t step, std::int64_t minute) {
    const auto path = folder_ / checkpoint_name("demo", 1, step);
    Index index = read_index(path);
    index.written_at = 60 * minute;
    test::write_file(path / kIndexFile, write_index(index));
  }

  std::vector<std::int64_t> steps() const {
    std::vector<std::int64_t> all;
    for (const auto& path : list_checkpoints(folder_.path(), "demo")) {
      all.push_back(read_index(path).state.step);
    }
    return all;
  }
};

TEST_F(RetentionTest, KeepsTheBestBesideTheLast) {
  const std::vector<std::optional<double>> scores = {0.5, 0.2, std::nullopt, 0.9, 0.3, 0.4};
  std::int64_t step = 0;
  for (const auto& score : scores) save(++step, score, 2);
  EXPECT_THAT(steps(), ElementsAre(2, 5, 6));
}

TEST_F(RetentionTest, OfEqualScoresTheNewestStays) {
  for (std::int64_t step = 1; step <= 4; ++step) save(step, step == 4 ? 0.1 : 0.9, 2, true);
  EXPECT_THAT(steps(), ElementsAre(2, 3, 4));
}

TEST_F(RetentionTest, AScoreThatIsNoNumberCountsAsNone) {
  save(1, std::numeric_limits<double>::quiet_NaN());
  save(2, 0.5);
  save(3, 0.7);
  keep(folder_.path(), "demo", {.last = 1, .best = 1});
  EXPECT_THAT(steps(), ElementsAre(2, 3));
}

// Infinite scores used to be lost with the index, and the best checkpoint with them.
TEST_F(RetentionTest, AnInfiniteScoreIsAScore) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  save(1, -kInfinity);
  save(2, kInfinity);
  save(3, 0.7);
  save(4, 0.5);
  EXPECT_EQ(read_index(folder_ / "demo-1_1").score, -kInfinity);
  EXPECT_EQ(read_index(folder_ / "demo-1_2").score, kInfinity);
  const auto would_go =
      keep(folder_.path(), "demo", {.last = 1, .best = 1, .higher_is_better = true}, system_files(),
           /*dry_run=*/true);
  EXPECT_THAT(would_go, ElementsAre(folder_ / "demo-1_1", folder_ / "demo-1_3"));
  keep(folder_.path(), "demo", {.last = 1, .best = 1});
  EXPECT_THAT(steps(), ElementsAre(1, 4));
}

TEST_F(RetentionTest, KeepsTheFirstOfEachSpanOfMinutes) {
  for (std::int64_t step = 1; step <= 7; ++step) save(step, std::nullopt);
  const std::vector<std::int64_t> minutes = {1, 4, 11, 19, 20, 41, 42};
  for (std::size_t i = 0; i < minutes.size(); ++i) {
    set_minute(static_cast<std::int64_t>(i) + 1, minutes[i]);
  }
  const auto would_go =
      keep(folder_.path(), "demo", {.last = 1, .every = std::chrono::minutes(10)}, system_files(),
           /*dry_run=*/true);
  EXPECT_THAT(would_go, ElementsAre(folder_ / "demo-1_2", folder_ / "demo-1_4"));
  EXPECT_EQ(steps().size(), 7U);
  EXPECT_EQ(keep(folder_.path(), "demo", {.last = 1, .every = std::chrono::minutes(10)}), would_go);
  EXPECT_THAT(steps(), ElementsAre(1, 3, 5, 6, 7));
}

TEST_F(RetentionTest, TakesAnySpanOfMinutes) {
  for (std::int64_t step = 1; step <= 3; ++step) save(step, std::nullopt);
  // So many that they are no number of seconds.
  for (const auto every :
       {std::chrono::minutes::max(), std::chrono::minutes(std::int64_t{1} << 62)}) {
    EXPECT_THAT(keep(folder_.path(), "demo", {.last = 1, .every = every}, system_files(),
                     /*dry_run=*/true),
                ElementsAre(folder_ / "demo-1_2"));
  }
}

TEST_F(RetentionTest, KeepsAllWhereAskedForAllAndRefusesNegativeNumbers) {
  for (std::int64_t step = 1; step <= 3; ++step) save(step, std::nullopt);
  EXPECT_THAT(keep(folder_.path(), "demo", {.last = 0}), IsEmpty());
  EXPECT_THAT(keep(folder_.path(), "demo", {.last = 5, .best = 1}), IsEmpty());
  EXPECT_THAT(test::message_of<UsageError>([&] { keep(folder_.path(), "demo", {.best = -2}); }),
              HasSubstr("asked to keep -2 checkpoints"));
}

TEST_F(RetentionTest, ADamagedIndexHasNoScore) {
  for (std::int64_t step = 1; step <= 3; ++step) save(step, 0.1 * static_cast<double>(step));
  test::write_file(folder_ / "demo-1_1" / "index.json", "{");
  keep(folder_.path(), "demo", {.last = 1, .best = 1});
  EXPECT_THAT(steps(), ElementsAre(2, 3));
}

}  // namespace
}  // namespace trireme::checkpoint
