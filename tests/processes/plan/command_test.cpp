// SPDX-License-Identifier: Apache-2.0
// `trireme plan` as a user types it.
#include "tests/processes/shell.h"
#include "tests/temporary_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace trireme::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr const char* kGpt =
    "--model gpt --set layers=4 --set hidden=256 --set heads=4 --set sequence=128 ";

Finished plan(const std::string& arguments) {
  return shell("'" + variable("TRIREME_BIN") + "/trireme' plan " + arguments);
}

TEST(PlanCommand, FindsAPlanThatPredictReads) {
  const TemporaryFolder folder;
  const std::string file = folder / "plan.toml";
  const Finished found =
      plan(std::string(kGpt) + "-n 16 --batch 64 --cluster h100-80 --save '" + file + "'");
  EXPECT_EQ(found.code, 0) << found.output;
  EXPECT_THAT(found.output, AllOf(HasSubstr("plan for 16 ranks"), HasSubstr("the best plans"),
                                  HasSubstr("searched"), HasSubstr("one device takes")));
  const Finished predicted = shell("'" + variable("TRIREME_BIN") + "/trireme' predict " + kGpt +
                                   "-n 16 --cluster h100-80 --plan '" + file + "'");
  EXPECT_EQ(predicted.code, 0) << predicted.output;
  EXPECT_THAT(predicted.output, HasSubstr("prediction for 16 ranks"));
}

TEST(PlanCommand, ExplainsAlternatives) {
  const Finished found = plan(std::string(kGpt) +
                              "-n 8 --batch 64 --with pipe=1 --why-not tensor=8 --why-not pipe=2 "
                              "--why-not zero_level=9");
  EXPECT_NE(found.code, 0);
  EXPECT_THAT(found.output, HasSubstr("a level from 0 to 3"));
  const Finished again = plan(
      std::string(kGpt) + "-n 8 --batch 64 --with 'pipe<=2' --why-not tensor=8 --why-not pipe=2");
  EXPECT_EQ(again.code, 0) << again.output;
  EXPECT_THAT(again.output, AllOf(HasSubstr("why not tensor=8"), HasSubstr("why not pipe=2")));
}

TEST(PlanCommand, PlansEveryFamily) {
  const std::string text = " --set layers=2 --set hidden=256 --set heads=4 --set sequence=128 ";
  // Images of 32 by 32 leave one value per channel, of which batch norm needs more than one.
  for (const std::string& model :
       {"--model llama --set feed_forward=512" + text, "--model bert" + text,
        "--model mixture --set experts=4" + text, std::string("--model vit --set layers=2 "),
        std::string("--model resnet "), std::string("--model resnet --set size=32 ")}) {
    const Finished found = plan(model + "-n 4 --batch 16");
    EXPECT_EQ(found.code, 0) << model << found.output;
    EXPECT_THAT(found.output, Not(HasSubstr("defect"))) << model;
  }
}

TEST(PlanCommand, ExitsWithOneIfNothingFits) {
  const Finished found =
      plan("--model gpt --set layers=96 --set hidden=12288 --set heads=96 -n 2 --batch 2");
  EXPECT_EQ(found.code, 1) << found.output;
  EXPECT_THAT(found.output, AllOf(HasSubstr("NO PLAN FITS"), HasSubstr("take more devices")));
}

TEST(PlanCommand, RefusesBadInput) {
  const std::string small = std::string(kGpt) + "-n 8 --batch 64 ";
  EXPECT_THAT(plan(small + "--plan-set zero_level=3").output, HasSubstr("--with zero_level=1"));
  EXPECT_THAT(plan(small + "--plan-set activation_bytes=1000000").output,
              HasSubstr("which the search does not choose"));
  EXPECT_THAT(plan(small + "--json --why-not tensor=2").output, HasSubstr("--why-not"));
  EXPECT_THAT(plan(small + "--save /nowhere/plan.toml").output,
              HasSubstr("no folder that can be written to"));
  EXPECT_THAT(plan("--model resnet -n 2 --batch 64 --megatron").output,
              HasSubstr("layouts of Megatron-LM"));
  EXPECT_THAT(plan(std::string(kGpt) + "-n 8").output, HasSubstr("--batch"));
  EXPECT_THAT(plan(std::string(kGpt) + "-n 8 --batch 64 --with tenser=2").output,
              HasSubstr("did you mean 'tensor'?"));
  EXPECT_THAT(plan(std::string(kGpt) + "-n 8 --batch 64 --with tensor=3").output,
              HasSubstr("no plan for 8 ranks"));
  EXPECT_THAT(plan(std::string(kGpt) + "-n 8 --batch 64 --plan-set 'mesh=[\"data=8\"]'").output,
              HasSubstr("which the search finds"));
}

}  // namespace
}  // namespace trireme::test
