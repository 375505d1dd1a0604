// SPDX-License-Identifier: Apache-2.0
// `trireme predict -- program`: the step of a program as it is written, for a module of 160 GiB.
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

Finished predict(const std::string& options, const std::string& program) {
  return shell("ulimit -v 40000000; '" + variable("TRIREME_BIN") + "/trireme' predict " + options +
               " -- '" + variable("PREDICTED_PROGRAM") + "' " + program);
}

TEST(PredictedProgram, IsPredictedWithItsLoopAndItsOptimizer) {
  const Finished finished = predict("-n 512 --cluster h100-80", "loop");
  EXPECT_EQ(finished.code, 1) << finished.output;  // does not fit
  // SGD with momentum keeps one number for each parameter.
  EXPECT_THAT(finished.output,
              AllOf(HasSubstr("prediction for 512 ranks"), HasSubstr("42.9 billion"),
                    HasSubstr("DOES NOT FIT"), HasSubstr("exchange along data")));
  EXPECT_THAT(finished.output, testing::ContainsRegex("parameters +160.0 GiB"));
  EXPECT_THAT(finished.output, testing::ContainsRegex("optimizer +160.0 GiB"));
  EXPECT_THAT(finished.output, Not(HasSubstr("the end")));
}

TEST(PredictedProgram, IsPredictedWithAnotherPlan) {
  const TemporaryFolder folder;
  const std::string plan = folder.write("plan.toml",
                                        "mesh = [\"data=64\", \"tensor=8\"]\n"
                                        "zero_level = 1\n"
                                        "layouts = [\"*.weight -> Shard(0) on tensor\"]\n");
  const Finished from_file = predict("-n 512 --cluster h100-80 --plan " + plan, "loop");
  const Finished set = predict("-n 512 --cluster h100-80 --plan-set zero_level=3", "loop");
  EXPECT_EQ(set.code, 0) << set.output;
  EXPECT_THAT(set.output, testing::ContainsRegex("parameters +320.0 MiB"));
  EXPECT_THAT(from_file.output,
              AllOf(HasSubstr("layouts"), testing::ContainsRegex("parameters +20.0 GiB")))
      << from_file.output;
}

TEST(PredictedProgram, IsPredictedWithItsStages) {
  const Finished finished = predict("-n 64 --cluster h100-80 --json 2>/dev/null", "step");
  EXPECT_THAT(finished.output, AllOf(HasSubstr("\"pipeline\""), HasSubstr("\"ranks\": 64")))
      << finished.output;
  // Only the prediction, so that the output is JSON.
  EXPECT_EQ(finished.output.front(), '{') << finished.output;
}

TEST(PredictedProgram, IsPredictedWithItsModel) {
  const Finished finished = predict("-n 128 --cluster h100-80", "model");
  EXPECT_EQ(finished.code, 0) << finished.output;
  // Adam keeps two numbers for each parameter, of which a rank has 1/128.
  EXPECT_THAT(finished.output, testing::ContainsRegex("optimizer +2.5 GiB"));
  EXPECT_THAT(finished.output, testing::ContainsRegex("parameters +1.2 GiB"));
}

TEST(PredictedProgram, HasOnlyPlansThatItCouldRun) {
  const std::string pipeline = "-n 8 --plan-set 'mesh=[\"pipe=4\",\"data=2\"]'";
  const Finished model = predict(pipeline + " --cluster h100-80", "model");
  EXPECT_THAT(model.output, HasSubstr("along pipe, the largest")) << model.output;
  const Finished loop = predict(pipeline, "loop");
  EXPECT_EQ(loop.code, 3);
  EXPECT_THAT(loop.output, HasSubstr("the plan has 4 ranks along pipe"));
}

TEST(PredictedProgram, SaysWhatIsWrong) {
  EXPECT_THAT(predict("", "fail"), testing::Field(&Finished::code, 3));
  EXPECT_THAT(predict("", "fail").output, HasSubstr("this program fails"));
  // A program chooses layouts by the links of the cluster.
  EXPECT_THAT(predict("--cluster h100-80", "fail").output, HasSubstr(", on h100-80\n"));
  EXPECT_THAT(predict("", "alone").output, HasSubstr("has ended without a training step"));
  EXPECT_THAT(predict("", "value").output,
              HasSubstr("an operator that needs values before the first training step"));
  EXPECT_THAT(predict("", "second").output, HasSubstr("makes a second module parallel"));
  EXPECT_THAT(predict("--model gpt", "loop").output, HasSubstr("--model has no effect here"));
  EXPECT_THAT(predict("-n 512 --plan-set 'mesh=[\"data=4\"]'", "loop").output,
              HasSubstr("plan: mesh is"));
  EXPECT_THAT(predict("--cluster nowhere", "loop").output, HasSubstr("nowhere"));
  EXPECT_THAT(predict("--plan /nowhere.toml", "loop").output, HasSubstr("/nowhere.toml"));
  const Finished missing =
      shell("'" + variable("TRIREME_BIN") + "/trireme' predict -- /nowhere/program");
  EXPECT_THAT(missing.output, HasSubstr("/nowhere/program"));
}

}  // namespace
}  // namespace trireme::test
