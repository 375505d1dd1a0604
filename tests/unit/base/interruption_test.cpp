// SPDX-License-Identifier: Apache-2.0
#include <trireme/base/interruption.h>

#include <gtest/gtest.h>

#include <string>

namespace {

TEST(Interruption, HasAReasonIfACheckGivesOne) {
  EXPECT_EQ(trireme::interruption_reason(), "");
  trireme::set_interruption_check([] { return std::string("Ctrl-C"); });
  EXPECT_EQ(trireme::interruption_reason(), "Ctrl-C");
  trireme::set_interruption_check(nullptr);
  EXPECT_EQ(trireme::interruption_reason(), "");
}

}  // namespace
