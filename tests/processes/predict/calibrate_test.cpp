// SPDX-License-Identifier: Apache-2.0
// `trireme calibrate` as a user types it. It measures for half a minute and more.
#include "tests/processes/shell.h"
#include "tests/temporary_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace trireme::test {
namespace {

using testing::HasSubstr;

Finished run(const std::string& arguments) {
  return shell("'" + variable("TRIREME_BIN") + "/trireme' " + arguments);
}

TEST(CalibrateCommand, DescribesThisHost) {
  const TemporaryFolder folder;
  const std::string file = folder / "host.toml";
  const Finished finished = run("calibrate --ranks 2 -o " + file);
  ASSERT_EQ(finished.code, 0) << finished.output;
  EXPECT_THAT(finished.output, HasSubstr("2 ranks, each with"));
  const std::string text = read_file(file);
  for (const char* part : {"name = \"aten::addmm\"", "name = \"aten::convolution\"",
                           "name = \"aten::native_layer_norm\"", "name = \"all_reduce\"",
                           "name = \"message\"", "name = \"adam\"", "devices = 2"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
  const Finished predicted = run(
      "predict --model gpt --set layers=4 --set hidden=256 --set heads=4 --set sequence=128 -n 2 "
      "--dtype float32 --cluster " +
      file);
  EXPECT_EQ(predicted.code, 0) << predicted.output;
  EXPECT_THAT(predicted.output, HasSubstr("prediction for 2 ranks on this host with 2 ranks"));
}

}  // namespace
}  // namespace trireme::test
