// SPDX-License-Identifier: Apache-2.0
// Text of files cannot steer the terminal that a warning is written to.
#include <trireme/base/warning.h>

#include <gtest/gtest.h>

namespace trireme {
namespace {

TEST(Warning, KeepsLinesAndReplacesControlCharacters) {
  testing::internal::CaptureStderr();
  warn("the file \x1b[31mred\x1b[0m\r is damaged\n  hint: restore it");
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "trireme: warning: the file ?[31mred?[0m? is damaged\n  hint: restore it\n");
}

}  // namespace
}  // namespace trireme
