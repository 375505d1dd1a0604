// SPDX-License-Identifier: Apache-2.0
#include <trireme/report/console.h>

#include "tests/unit/report/recorded_output.h"

#include <gmock/gmock.h>

namespace trireme::report {
namespace {

using testing::ElementsAre;

TEST(Console, WritesPlainLinesAndNoStatusWhereThereIsNoTerminal) {
  RecordedOutput output(0);
  Console console(output);
  console.status("half way");
  console.line("done");
  console.clear_status();
  EXPECT_EQ(output.written(), "done\n");
}

TEST(Console, DrawsTheStatusOverTheOneBefore) {
  RecordedOutput output(20);
  Console console(output);
  console.status("a long status");
  console.status("short");
  EXPECT_EQ(output.written(), "\ra long status\x1b[K\rshort\x1b[K");
  EXPECT_THAT(output.screen(), ElementsAre("short"));
}

TEST(Console, PrintsLinesAboveTheStatus) {
  RecordedOutput output(20);
  Console console(output);
  console.status("a long status");
  console.line("line");
  EXPECT_THAT(output.screen(), ElementsAre("line", "a long status"));
  console.clear_status();
  console.line("next");
  EXPECT_THAT(output.screen(), ElementsAre("line", "next", ""));
}

TEST(Console, CutsAStatusBeforeTheLastColumn) {
  RecordedOutput output(8);
  Console console(output);
  console.status("0123456789");
  EXPECT_THAT(output.screen(), ElementsAre("0123456"));
}

}  // namespace
}  // namespace trireme::report
