// SPDX-License-Identifier: Apache-2.0
#include <trireme/schedule/action.h>

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace trireme::schedule {
namespace {

TEST(Action, IsReadBackFromItsText) {
  for (const Action& written :
       {Action{ActionKind::kForward, 0, 3}, Action{ActionKind::kBackward, 12, 345},
        Action{ActionKind::kBackwardInput, 1, 0}, Action{ActionKind::kBackwardWeight, 2, 1},
        Action{ActionKind::kSend, 0, 3, 1}, Action{ActionKind::kReceive, 0, 3, 1},
        Action{ActionKind::kGather, 4}, Action{ActionKind::kFree, 4},
        Action{ActionKind::kReduce, 4}, Action{ActionKind::kReduce, 4, 2},
        Action{ActionKind::kRecompute, 0, 1}, Action{ActionKind::kOffload, 0, 1},
        Action{ActionKind::kLoad, 0, 1}, Action{ActionKind::kStep, 7}}) {
    EXPECT_EQ(parse_action(to_text(written)), written) << to_text(written);
  }
}

TEST(Action, HasOneText) {
  EXPECT_EQ(to_text({ActionKind::kForward, 0, 3}), "F0.3");
  EXPECT_EQ(to_text({ActionKind::kSend, 0, 3, 1}), "S0.3>1");
  EXPECT_EQ(to_text({ActionKind::kReceive, 1, 3, 0}), "R1.3<0");
  EXPECT_EQ(to_text({ActionKind::kReduce, 2}), "reduce2");
  EXPECT_EQ(to_text({ActionKind::kReduce, 2, 5}), "reduce2.5");
}

TEST(Action, IsNotReadFromOtherText) {
  for (const char* text : {"",
                           "F",
                           "F0",
                           "F0.",
                           "F.0",
                           "0.1",
                           "f0.1",
                           "F0.1x",
                           "F-1.0",
                           "F0.-1",
                           "F0.1>2",
                           "S0.1",
                           "S0.1<1",
                           "R0.1>1",
                           "S0.1>",
                           "S1.0>1",
                           "gather",
                           "gather0.1",
                           "step0.0",
                           "free0.2",
                           "X0.1",
                           "F99999999999.0",
                           "F0.99999999999",
                           "reduce",
                           "load0",
                           "F0..1",
                           "F+1.0",
                           "F 0.1"}) {
    EXPECT_FALSE(parse_action(text).has_value()) << text;
  }
}

TEST(Action, CarriesGradientsToEarlierStages) {
  EXPECT_FALSE(carries_gradients({ActionKind::kSend, 0, 3, 1}));
  EXPECT_FALSE(carries_gradients({ActionKind::kReceive, 1, 3, 0}));
  EXPECT_TRUE(carries_gradients({ActionKind::kSend, 1, 3, 0}));
  EXPECT_TRUE(carries_gradients({ActionKind::kReceive, 0, 3, 1}));
}

TEST(Action, IsDescribedInWords) {
  const std::vector<std::pair<Action, std::string>> described = {
      {{ActionKind::kForward, 0, 3}, "forward of micro-batch 3 in stage 0"},
      {{ActionKind::kBackwardInput, 1, 2}, "input backward of micro-batch 2 in stage 1"},
      {{ActionKind::kSend, 0, 3, 1},
       "send of the activations of micro-batch 3 from stage 0 to stage 1"},
      {{ActionKind::kReceive, 0, 3, 1},
       "receive of the gradients of micro-batch 3 from stage 1 to stage 0"},
      {{ActionKind::kGather, 2}, "gathering of parameters of stage 2"},
      {{ActionKind::kReduce, 2}, "reduction of gradients of stage 2"}};
  for (const auto& [action, words] : described) EXPECT_EQ(describe(action), words);
}

}  // namespace
}  // namespace trireme::schedule
