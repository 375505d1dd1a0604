// SPDX-License-Identifier: Apache-2.0
#include <trireme/base/error.h>

#include <gmock/gmock.h>
#include <tests/temporary_folder.h>

namespace trireme {
namespace {

using test::message_of;

TEST(Error, PutsTheHintOnALineOfItsOwn) {
  EXPECT_STREQ(UsageError("x is 3, expected 4", "make it 4").what(),
               "x is 3, expected 4\n  hint: make it 4");
  EXPECT_STREQ(UsageError("x is 3, expected 4", "").what(), "x is 3, expected 4");
}

TEST(Error, KnowsWhereItWasThrown) {
  const ConfigError error("message", "");
  EXPECT_THAT(error.where().file_name(), testing::EndsWith("error_test.cpp"));
}

TEST(Error, EveryClassIsAnError) {
  EXPECT_THROW(throw DataError("x", ""), Error);
  EXPECT_THROW(throw CommError("x", ""), Error);
  EXPECT_THROW(throw TrainingError("x", ""), Error);
  EXPECT_THROW(throw CheckpointError("x", ""), std::runtime_error);
}

TEST(Error, DescribesErrno) { EXPECT_EQ(describe_errno(EPIPE), "Broken pipe (errno 32)"); }

TEST(Check, NamesBothOperands) {
  const std::string message = message_of<InternalError>([] { TRIREME_CHECK_EQ(1 + 1, 3); });
  EXPECT_THAT(message, testing::StartsWith("expected 1 + 1 == 3, got 2 and 3"));
  EXPECT_NO_THROW(TRIREME_CHECK_EQ(2, 2));
}

TEST(Check, NamesTheCondition) {
  EXPECT_THAT(message_of<InternalError>([] { TRIREME_CHECK(1 > 2); }),
              testing::StartsWith("expected 1 > 2"));
  EXPECT_NO_THROW(TRIREME_CHECK(2 > 1));
}

}  // namespace
}  // namespace trireme
