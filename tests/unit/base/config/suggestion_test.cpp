// SPDX-License-Identifier: Apache-2.0
#include <trireme/base/config/suggestion.h>

#include <gtest/gtest.h>

#include <vector>

namespace trireme::config {
namespace {

TEST(EditDistance, CountsLettersMissingAddedChangedAndExchanged) {
  EXPECT_EQ(edit_distance("epochs", "epochs"), 0U);
  EXPECT_EQ(edit_distance("epoch", "epochs"), 1U);
  EXPECT_EQ(edit_distance("eepochs", "epochs"), 1U);
  EXPECT_EQ(edit_distance("apochs", "epochs"), 1U);
  EXPECT_EQ(edit_distance("epohcs", "epochs"), 1U);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3U);
  EXPECT_EQ(edit_distance("", "abc"), 3U);
  EXPECT_EQ(edit_distance("abc", ""), 3U);
}

TEST(EditDistance, TakesCapitalsAndHyphensForTheSame) {
  EXPECT_EQ(edit_distance("Batch-Size", "batch_size"), 0U);
}

TEST(Nearest, IsTheFirstOfTheLeastDifferentWithinAThirdOfTheLetters) {
  const std::vector<std::string> words = {"epochs", "seed", "speed", "lr"};
  EXPECT_EQ(closest_match("epoch", words), "epochs");
  EXPECT_EQ(closest_match("sped", words), "seed");
  EXPECT_EQ(closest_match("xyz", words), std::nullopt);
  EXPECT_EQ(closest_match("l", words), "lr");
  EXPECT_EQ(closest_match("anything", {}), std::nullopt);
  EXPECT_EQ(did_you_mean("sead", words), "did you mean 'seed'?");
  EXPECT_EQ(did_you_mean("zzzz", words), "");
}

}  // namespace
}  // namespace trireme::config
