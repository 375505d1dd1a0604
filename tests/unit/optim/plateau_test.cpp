// SPDX-License-Identifier: Apache-2.0
// What tests/parity/optim does not compare with torch.
#include <trireme/optim/plateau.h>

#include <trireme/base/error.h>

#include <gmock/gmock.h>
#include <tests/other_locale.h>
#include <tests/temporary_folder.h>

#include <cmath>
#include <limits>
#include <string>
#include <utility>

namespace trireme {
namespace {

TEST(Plateau, LowersAfterMoreThanPatienceScoresWithoutAnImprovement) {
  Plateau plateau({.patience = 2});
  EXPECT_FALSE(plateau.observe(1));
  EXPECT_FALSE(plateau.observe(1));
  EXPECT_FALSE(plateau.observe(std::nan("")));
  EXPECT_TRUE(plateau.observe(1));
  EXPECT_FALSE(plateau.observe(1));
  EXPECT_EQ(plateau.best(), 1);
  EXPECT_DOUBLE_EQ(plateau.lowered(0.5), 0.05);
}

TEST(Plateau, GoesOnFromItsState) {
  for (const bool is_higher_better : {false, true}) {
    const PlateauOptions options{
        .is_higher_better = is_higher_better, .patience = 1, .cooldown = 2};
    Plateau whole(options);
    Plateau first(options);
    Plateau second(options);
    second.restore(first.state());  // of the beginning
    EXPECT_EQ(second.best(), first.best());
    int falls = 0;
    for (int number = 0; number < 20; ++number) {
      const double score = std::sin(number);
      const bool expected = whole.observe(score);
      falls += expected ? 1 : 0;
      EXPECT_EQ(first.observe(score), expected);
      second.restore(first.state());
      std::swap(first, second);
    }
    EXPECT_GT(falls, 2);
  }
}

TEST(Plateau, HasTheSameStateInEveryLocale) {
  Plateau first({.patience = 2000});
  first.observe(0.5);
  for (int number = 0; number < 1500; ++number) first.observe(1);
  const std::string state = first.state();
  const test::CommaLocale locale;
  EXPECT_EQ(first.state(), state);
  Plateau second({.patience = 2000});
  second.restore(state);
  EXPECT_EQ(second.best(), 0.5);
  EXPECT_EQ(second.state(), state);
}

TEST(Plateau, RefusesWhatCannotBe) {
  EXPECT_THROW(Plateau({.factor = 1}), UsageError);
  EXPECT_THROW(Plateau({.factor = -0.1}), UsageError);
  EXPECT_THROW(Plateau({.patience = -1}), UsageError);
  EXPECT_THROW(Plateau({.threshold = std::numeric_limits<double>::infinity()}), UsageError);
  EXPECT_THROW(Plateau({.cooldown = -1}), UsageError);
  EXPECT_THROW(Plateau({.least_rate = -1}), UsageError);
  Plateau plateau;
  for (const char* state : {"", "1 x 0 0", "1 0.5 -1 0", "1 0.5 0"}) {
    EXPECT_THAT(test::message_of<UsageError>([&] { plateau.restore(state); }),
                ::testing::HasSubstr("cannot go on from"));
  }
}

}  // namespace
}  // namespace trireme
