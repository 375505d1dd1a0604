// SPDX-License-Identifier: Apache-2.0
// The order of copies beside computation.
#include <trireme/parallel/pipeline/offload/host_copies.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tests/unit/parallel/pipeline/queued_device.h>

#include <stdexcept>
#include <string>

namespace trireme::pipeline {
namespace {

using test::QueuedDevice;
using test::QueuedGuard;
using ::testing::ElementsAre;

C10_REGISTER_GUARD_IMPL(PrivateUse1, QueuedGuard);

class CopyStreams : public ::testing::Test {
 protected:
  void SetUp() override { device_.reset(); }
  QueuedDevice& device_ = QueuedDevice::get();
};

TEST_F(CopyStreams, BeginAfterComputationAndGoOnBesideIt) {
  const CopyStream copies(QueuedDevice::device());
  const auto copy = [&] { device_.log.push_back("copy on " + std::to_string(device_.current)); };
  const StreamPoint first = copies.run({}, copy);
  EXPECT_THAT(device_.log, ElementsAre("stream 0 reaches 1", "stream 1 waits for 1", "copy on 1",
                                       "stream 1 reaches 2"));
  EXPECT_EQ(device_.current, 0);
  device_.log.clear();
  copies.run({&first, 1}, copy);
  EXPECT_THAT(device_.log, ElementsAre("stream 0 reaches 3", "stream 1 waits for 3",
                                       "stream 1 waits for 2", "copy on 1", "stream 1 reaches 4"));
  device_.log.clear();
  first.hold_up_current();
  EXPECT_THAT(device_.log, ElementsAre("stream 0 waits for 2"));
}

TEST_F(CopyStreams, GoBackToTheStreamOfComputationWhenACopyFails) {
  const CopyStream copies(QueuedDevice::device());
  EXPECT_THROW(copies.run({}, [] { throw std::runtime_error("no memory"); }), std::runtime_error);
  EXPECT_EQ(device_.current, 0);
}

TEST_F(CopyStreams, OfTheProcessorCopyAtOnce) {
  const CopyStream copies(c10::kCPU);
  bool is_done = false;
  const StreamPoint point = copies.run({}, [&] { is_done = true; });
  EXPECT_TRUE(is_done);
  point.hold_up_current();
  EXPECT_TRUE(device_.log.empty());
}

}  // namespace
}  // namespace trireme::pipeline
