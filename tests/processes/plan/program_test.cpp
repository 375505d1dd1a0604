// SPDX-License-Identifier: Apache-2.0
// `trireme plan -- program`: the plan of a program as it is written, for a module of 160 GiB.
#include "tests/processes/shell.h"
#include "tests/temporary_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace trireme::test {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;

Finished plan(const std::string& options, const std::string& program) {
  return shell("ulimit -v 40000000; '" + variable("TRIREME_BIN") + "/trireme' plan " + options +
               " -- '" + variable("PREDICTED_PROGRAM") + "' " + program);
}

TEST(PlannedProgram, HasItsPlanFoundAndExplained) {
  const TemporaryFolder folder;
  const std::string file = folder.path() / "plan.toml";
  const Finished finished =
      plan("-n 128 --cluster h100-80 --with tensor=4 --why-not pipe=1 --save " + file, "model");
  EXPECT_EQ(finished.code, 0) << finished.output;
  EXPECT_THAT(finished.output, AllOf(HasSubstr("plan for 128 ranks"), HasSubstr("tensor=4"),
                                     HasSubstr("why not pipe=1")));
  EXPECT_THAT(read_file(file), ContainsRegex("mesh = .*tensor=4"));
  // The plan is one that predictions take.
  const Finished predicted = shell("'" + variable("TRIREME_BIN") + "/trireme' predict -n 128 " +
                                   "--cluster h100-80 --plan " + file + " -- '" +
                                   variable("PREDICTED_PROGRAM") + "' model");
  EXPECT_EQ(predicted.code, 0) << predicted.output;
}

TEST(PlannedProgram, AnswersAsJson) {
  const Finished finished = plan("-n 64 --cluster h100-80 --json 2>/dev/null", "model");
  EXPECT_EQ(finished.output.front(), '{') << finished.output;
  EXPECT_THAT(finished.output, HasSubstr("\"best\""));
}

TEST(PlannedProgram, SaysWhatIsWrong) {
  EXPECT_THAT(plan("-n 64 --cluster h100-80", "loop").output,
              HasSubstr("trireme plan searches for the plan of a Model, and this program trains"));
  EXPECT_THAT(plan("-n 64 --batch 3", "model").output,
              HasSubstr("--batch has no effect here: the plan of a program is searched for"));
  EXPECT_THAT(plan("-n 64 --cluster h100-80 --plan-set zero_level=1", "model").output,
              HasSubstr("--plan-set gives zero_level, which the search finds"));
  const Finished small = plan("-n 2 --cluster v100-16", "model");
  EXPECT_EQ(small.code, 1) << small.output;
  EXPECT_THAT(small.output, HasSubstr("NO PLAN FITS"));
}

}  // namespace
}  // namespace trireme::test
