// SPDX-License-Identifier: Apache-2.0
// What is left on the disk where a save fails, or the process or the machine dies, at any of its
// calls.
#include "tests/unit/checkpoint/failing_files.h"
#include <trireme/base/error.h>
#include <trireme/checkpoint/checkpoint.h>
#include <trireme/checkpoint/reader.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tests/temporary_folder.h>
#include <torch/torch.h>

#include <array>
#include <cerrno>
#include <set>
#include <string>

namespace trireme::checkpoint {
namespace {

using test::Crash;
using test::FailingFiles;
using test::TemporaryFolder;
using ::testing::AllOf;
using ::testing::HasSubstr;

// A run that has saved step 1, and saves again.
class FileLayerTest : public ::testing::Test {
 protected:
  TemporaryFolder folder_;
  torch::nn::Linear net_{2, 2};
  torch::optim::SGD optimizer_{net_->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9)};
  SaveOptions options_{.folder = folder_.path(), .prefix = "demo"};

  void SetUp() override {
    net_->forward(torch::ones({1, 2})).sum().backward();
    optimizer_.step();
    save_values(1, 1, nullptr);
  }

  // Every value of the model and the optimizer is `value`.
  void save_values(std::int64_t step, double value, FileLayer* files) {
    const torch::NoGradGuard no_grad;
    for (const auto& parameter : net_->parameters()) {
      parameter.fill_(value);
      static_cast<torch::optim::SGDParamState&>(
          *optimizer_.state().at(parameter.unsafeGetTensorImpl()))
          .momentum_buffer()
          .fill_(value);
    }
    FailingFiles good;
    SaveOptions options = options_;
    options.files = files == nullptr ? &good : files;
    save(options, *net_, &optimizer_,
         {.epoch = 1, .step = step, .entries = {{"value", std::to_string(value)}}});
  }

  // The value of the newest checkpoint, of which every part must be the same one.
  double value_of_latest() {
    const auto path = latest(folder_.path(), "demo");
    if (!path) {
      ADD_FAILURE() << "there is no checkpoint";
      return 0;
    }
    const State state = load(*path, *net_, &optimizer_);
    const double value = std::stod(state.entries.at("value"));
    for (const auto& parameter : net_->parameters()) {
      EXPECT_TRUE(parameter.eq(value).all().item<bool>());
      EXPECT_TRUE(static_cast<torch::optim::SGDParamState&>(
                      *optimizer_.state().at(parameter.unsafeGetTensorImpl()))
                      .momentum_buffer()
                      .eq(value)
                      .all()
                      .item<bool>());
    }
    return value;
  }

  std::int64_t hidden() const {
    std::int64_t count = 0;
    for (const auto& entry : std::filesystem::directory_iterator(folder_.path())) {
      if (entry.path().filename().string().front() == '.') ++count;
    }
    return count;
  }

  // Saves `step` with every call in turn being the one; returns how many there were.
  std::int64_t at_every_call(std::int64_t step, FailingFiles::How how, int error_number) {
    for (std::int64_t call = 0;; ++call) {
      FailingFiles files(how, call, error_number);
      bool is_saved = false;
      std::string message;
      try {
        save_values(step, 2, &files);
        is_saved = true;
      } catch (const Crash&) {
        message.clear();  // nobody is left to say anything
      } catch (const CheckpointError& error) {
        message = error.what();
      }
      const double value = value_of_latest();
      EXPECT_TRUE(value == 1 || value == 2) << value;
      if (is_saved) {
        EXPECT_EQ(value, 2);
      }
      if (!message.empty()) {
        EXPECT_THAT(message, HasSubstr(describe_errno(error_number)));
      }
      // Whatever was left, the run goes on.
      save_values(1, 1, nullptr);
      EXPECT_EQ(value_of_latest(), 1);
      EXPECT_EQ(hidden(), 0) << "call " << call;
      if (::testing::Test::HasFailure() || files.calls() <= call) return call;
    }
  }

  void at_every_call_of_every_save(FailingFiles::How how, int error_number = EIO) {
    // A new name; the same name, which is exchanged; the old one removed.
    EXPECT_GT(at_every_call(2, how, error_number), 15);
    EXPECT_GT(at_every_call(1, how, error_number), 20);
    options_.keep = 1;
    EXPECT_GT(at_every_call(2, how, error_number), 20);
  }
};

TEST_F(FileLayerTest, KilledAtAnyCallLeavesTheOldOrTheNewCheckpoint) {
  at_every_call_of_every_save(FailingFiles::How::kKill);
}

TEST_F(FileLayerTest, PowerLostAtAnyCallLeavesTheOldOrTheNewCheckpoint) {
  at_every_call_of_every_save(FailingFiles::How::kPowerLoss);
}

TEST_F(FileLayerTest, AFullDiskAtAnyCallIsAnErrorAndLeavesTheOldOrTheNewCheckpoint) {
  at_every_call_of_every_save(FailingFiles::How::kFail, ENOSPC);
}

TEST_F(FileLayerTest, NoPermissionAtAnyCallIsAnErrorAndLeavesTheOldOrTheNewCheckpoint) {
  at_every_call_of_every_save(FailingFiles::How::kFail, EACCES);
}

TEST_F(FileLayerTest, ADiskErrorAtAnyCallIsAnErrorAndLeavesTheOldOrTheNewCheckpoint) {
  at_every_call_of_every_save(FailingFiles::How::kFail, EIO);
}

TEST_F(FileLayerTest, WritesOfAFewBytesAndInterruptionsMakeTheSameFiles) {
  struct SlowFiles final : FileLayer {
    ssize_t write(int file, std::span<const std::byte> bytes, std::int64_t offset) override {
      if (++calls % 3 == 0) {
        errno = EINTR;
        return -1;
      }
      return FileLayer::write(file, bytes.first(std::min<std::size_t>(bytes.size(), 7)), offset);
    }
    int calls = 0;
  } files;
  save_values(2, 2, &files);
  EXPECT_GT(files.calls, 100);
  EXPECT_EQ(value_of_latest(), 2);
  EXPECT_TRUE(find_damage(*latest(folder_.path(), "demo")).empty());
}

TEST_F(FileLayerTest, NewFoldersAreFlushedIntoThoseAboveThem) {
  struct NotedFiles final : FileLayer {
    int flush_folder(const std::filesystem::path& folder) override {
      folders.insert(folder);
      return FileLayer::flush_folder(folder);
    }
    std::set<std::filesystem::path> folders;
  } files;
  options_.folder = folder_ / "new" / "deep";
  save_values(2, 2, &files);
  EXPECT_TRUE(files.folders.contains(folder_.path()));
  EXPECT_TRUE(files.folders.contains(folder_ / "new"));
  EXPECT_TRUE(files.folders.contains(folder_ / "new" / "deep"));
}

TEST_F(FileLayerTest, SavesWhereFoldersCannotBeFlushed) {
  struct OtherFiles final : FileLayer {
    int flush_folder(const std::filesystem::path& /*folder*/) override {
      errno = EINVAL;
      return -1;
    }
  } files;
  save_values(2, 2, &files);
  EXPECT_EQ(value_of_latest(), 2);
}

// Nothing that was there before can be removed.
TEST_F(FileLayerTest, WhatCannotBeRemovedIsNoReasonToLoseACheckpoint) {
  struct StickyFiles final : FileLayer {
    int rename(const std::filesystem::path& from, const std::filesystem::path& to) override {
      if (from.filename().string().front() == '.') return FileLayer::rename(from, to);
      errno = EACCES;
      return -1;
    }
    int remove_folder(const std::filesystem::path& /*folder*/) override {
      errno = EACCES;
      return -1;
    }
  } files;
  const auto warning = [&](std::int64_t step) {
    ::testing::internal::CaptureStderr();
    save_values(step, 2, &files);
    return ::testing::internal::GetCapturedStderr();
  };
  options_.keep = 1;
  EXPECT_THAT(warning(2), AllOf(HasSubstr("warning: what was to go"), HasSubstr("cannot remove"),
                                HasSubstr("demo-1_1"), HasSubstr("Permission denied")));
  EXPECT_EQ(value_of_latest(), 2);
  options_.keep = 0;
  const auto left = folder_ / ".demo-1_7.1.tmp";
  std::filesystem::create_directory(left);
  EXPECT_THAT(warning(3), AllOf(HasSubstr("saving goes on"), HasSubstr(left.string())));
  EXPECT_EQ(latest(folder_.path(), "demo"), folder_ / "demo-1_3");
}

TEST_F(FileLayerTest, WhatCannotBeRemovedKeepsNothingElse) {
  struct StickyFiles final : FileLayer {
    int rename(const std::filesystem::path& from, const std::filesystem::path& to) override {
      if (from.filename() != "demo-1_1") return FileLayer::rename(from, to);
      errno = EACCES;
      return -1;
    }
  } files;
  options_.keep = 0;
  for (const std::int64_t step : {2, 3}) save_values(step, 2, nullptr);
  options_.keep = 1;
  ::testing::internal::CaptureStderr();
  save_values(4, 2, &files);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("demo-1_1"));
  EXPECT_EQ(list_checkpoints(folder_.path(), "demo"),
            (std::vector{folder_ / "demo-1_1", folder_ / "demo-1_4"}));
}

TEST_F(FileLayerTest, SaysWhichFileAndWhy) {
  for (std::int64_t call = 0;; ++call) {
    FailingFiles files(FailingFiles::How::kFail, call, ENOSPC);
    try {
      save_values(2, 2, &files);  // also where removing is what failed
      if (files.calls() <= call) break;
    } catch (const CheckpointError& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr(folder_.path().string()),
                                      HasSubstr("No space left on device"), HasSubstr("hint: ")));
    }
  }
}

}  // namespace
}  // namespace trireme::checkpoint
