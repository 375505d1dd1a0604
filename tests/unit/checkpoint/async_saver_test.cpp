// SPDX-License-Identifier: Apache-2.0
#include <trireme/checkpoint/async_saver.h>

#include "tests/unit/checkpoint/gated_files.h"
#include <trireme/base/error.h>
#include <trireme/checkpoint/consensus.h>
#include <trireme/checkpoint/reader.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tests/temporary_folder.h>
#include <torch/torch.h>

#include <cerrno>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace trireme::checkpoint {
namespace {

using test::GatedFiles;
using test::message_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class AsyncSaverTest : public ::testing::Test {
 protected:
  test::TemporaryFolder folder_;
  torch::nn::Linear net_{4, 3};
  torch::optim::SGD optimizer_{net_->parameters(), 0.1};
  GatedFiles files_;
  SaveOptions options_{.folder = folder_.path(), .prefix = "demo", .keep = 0, .files = &files_};

  bool save_at(AsyncSaver& saver, std::int64_t step) {
    State state{.epoch = 1, .step = step};
    const auto parts = parts_of(*net_, &optimizer_, state);
    return saver.save(options_, parts, state);
  }

  void fill(double value) {
    const torch::NoGradGuard no_grad;
    net_->weight.fill_(value);
  }

  double saved_value(std::int64_t step) {
    load(folder_ / checkpoint_name("demo", 1, step), *net_, &optimizer_);
    return net_->weight[0][0].item<double>();
  }
};

TEST_F(AsyncSaverTest, SavesWhatWasThereWhateverHappensNext) {
  AsyncSaver saver{comm::Group::self()};
  fill(1);
  EXPECT_TRUE(save_at(saver, 1));
  fill(2);
  files_.wait_until_it_waits();
  EXPECT_TRUE(saver.is_busy());
  EXPECT_EQ(latest(folder_.path(), "demo"), std::nullopt);
  files_.open();
  EXPECT_EQ(saver.finish(), folder_ / "demo-1_1");
  EXPECT_FALSE(saver.is_busy());
  EXPECT_EQ(saved_value(1), 1);
  fill(3);
  EXPECT_TRUE(save_at(saver, 2));
  EXPECT_EQ(saver.finish(), folder_ / "demo-1_2");
  EXPECT_EQ(saved_value(2), 3);
}

// Every rank used to save alone, into one folder.
TEST_F(AsyncSaverTest, AnEmptyGroupIsAnError) {
  EXPECT_THAT(message_of<UsageError>([] { AsyncSaver saver{comm::Group{}}; }),
              HasSubstr("AsyncSaver was given an empty group"));
  EXPECT_THAT(message_of<UsageError>([&] { save_parts(options_, {}, {}, comm::Group{}); }),
              HasSubstr("save_parts was given an empty group"));
  EXPECT_THROW(agree(comm::Group{}, "cannot save", [] { return std::string(); }), UsageError);
  EXPECT_TRUE(list_checkpoints(folder_.path(), "demo").empty());
}

TEST_F(AsyncSaverTest, LeavesASaveOutWhereAskedToWhileOneIsUnderWay) {
  AsyncSaver saver(comm::Group::self(), {.when_busy = WhenBusy::kSkip});
  EXPECT_TRUE(save_at(saver, 1));
  files_.wait_until_it_waits();
  EXPECT_FALSE(save_at(saver, 2));
  files_.open();
  saver.finish();
  EXPECT_TRUE(save_at(saver, 3));
  saver.finish();
  EXPECT_THAT(list_checkpoints(folder_.path(), "demo"),
              ElementsAre(folder_ / "demo-1_1", folder_ / "demo-1_3"));
}

TEST_F(AsyncSaverTest, WaitsForTheSaveBefore) {
  AsyncSaver saver{comm::Group::self()};
  save_at(saver, 1);
  files_.wait_until_it_waits();
  std::thread opener([&] { files_.open(); });
  EXPECT_TRUE(save_at(saver, 2));
  opener.join();
  EXPECT_EQ(saver.finish(), folder_ / "demo-1_2");
  EXPECT_EQ(list_checkpoints(folder_.path(), "demo").size(), 2U);
}

TEST_F(AsyncSaverTest, ReportsAFailureOnceByTheNextCall) {
  AsyncSaver saver{comm::Group::self()};
  files_.open(ENOSPC);
  save_at(saver, 1);
  EXPECT_THAT(message_of<CheckpointError>([&] { save_at(saver, 2); }),
              HasSubstr("No space left on device"));
  EXPECT_EQ(saver.finish(), std::nullopt) << "the second was not begun, the first is reported";
  save_at(saver, 3);
  EXPECT_THAT(message_of<CheckpointError>([&] { saver.finish(); }), HasSubstr("demo-1_3"));
  files_.open();
  EXPECT_TRUE(save_at(saver, 4));
  EXPECT_EQ(saver.finish(), folder_ / "demo-1_4");
}

TEST_F(AsyncSaverTest, TellsOfAFailureBeforeItIsReported) {
  AsyncSaver saver{comm::Group::self()};
  EXPECT_NO_THROW(saver.check());
  save_at(saver, 1);
  files_.wait_until_it_waits();
  EXPECT_NO_THROW(saver.check());
  files_.open(ENOSPC);
  while (saver.is_busy()) std::this_thread::yield();
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(message_of<CheckpointError>([&] { saver.check(); }), HasSubstr("demo-1_1"));
  }
  EXPECT_THROW(saver.finish(), CheckpointError);
  EXPECT_NO_THROW(saver.check());
}

TEST_F(AsyncSaverTest, ThrowsWhatCannotBeSavedAtOnceWhereThereIsOneRank) {
  AsyncSaver saver{comm::Group::self()};
  TensorPart part = replicated("model", "x", torch::ones({2}));
  part.local = at::Tensor();
  EXPECT_THAT(message_of<UsageError>([&] { saver.save(options_, {part}, {}); }),
              HasSubstr("the part [0, 2) of tensor 'x' is an undefined tensor"));
  EXPECT_THROW(saver.save(options_, []() -> Content { throw std::out_of_range("mine"); }),
               std::out_of_range);
  EXPECT_EQ(saver.finish(), std::nullopt);
}

TEST_F(AsyncSaverTest, SaysHowLongASaveTook) {
  AsyncSaver saver{comm::Group::self()};
  const auto began = std::chrono::steady_clock::now();
  files_.open();
  save_at(saver, 1);
  saver.finish();
  EXPECT_GT(saver.seconds().count(), 0);
  EXPECT_LE(saver.seconds(), std::chrono::steady_clock::now() - began);
}

TEST_F(AsyncSaverTest, HandsFailuresOverAndGoesOn) {
  std::vector<std::string> failures;
  const AsyncOptions options{
      .on_failure = [&](const std::string& what) { failures.push_back(what); }};
  {
    AsyncSaver saver(comm::Group::self(), options);
    files_.open(EIO);
    save_at(saver, 1);
    EXPECT_TRUE(save_at(saver, 2));
    EXPECT_EQ(failures.size(), 1U);
  }
  EXPECT_THAT(failures, ElementsAre(HasSubstr("demo-1_1"), HasSubstr("demo-1_2")));
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
}

TEST_F(AsyncSaverTest, SaysAtTheEndWhatNobodyAskedFor) {
  ::testing::internal::CaptureStderr();
  {
    AsyncSaver saver{comm::Group::self()};
    files_.open(EIO);
    save_at(saver, 1);
  }
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr("warning: saving a checkpoint failed: cannot flush"));
}

// A file has one write for each block of 1 MiB, then its header.
class LateCopies : public ::testing::Test {
 protected:
  static constexpr std::int64_t kBlock = (std::int64_t{1} << 20) / 4;  // elements

  static TensorPart part(const std::string& name, const at::Tensor& tensor) {
    return replicated("model", name, tensor);
  }

  bool save(AsyncSaver& saver, FileLayer& files, const std::vector<TensorPart>& parts) {
    const SaveOptions options{.folder = folder_.path(), .prefix = "demo", .files = &files};
    return saver.save(options, parts, {.epoch = 1, .step = ++step_}, Copying::kBeforeChange);
  }

  at::Tensor saved(const std::string& name) {
    return Reader(*latest(folder_.path(), "demo")).read("model", name);
  }

  test::TemporaryFolder folder_;
  std::int64_t step_ = 0;
};

// The writer has written the first block of `a` when both tensors change.
TEST_F(LateCopies, AreMadeOfWhatIsNotWritten) {
  const at::Tensor a = torch::randn({2 * kBlock + 5});
  const at::Tensor b = torch::randn({7, 3}).t();
  const at::Tensor a_before = a.clone();
  const at::Tensor b_before = b.clone();
  AsyncSaver saver{comm::Group::self()};
  test::GatedWrites files(2);
  save(saver, files, {part("a", a), part("b", b), part("tied", a)});
  files.wait_until_it_waits();
  saver.before_change();
  a.zero_();
  b.zero_();
  files.open();
  saver.finish();
  EXPECT_TRUE(torch::equal(saved("a"), a_before));
  EXPECT_TRUE(torch::equal(saved("tied"), a_before));
  EXPECT_TRUE(torch::equal(saved("b"), b_before));
  saver.before_change();  // nothing is left
}

TEST_F(LateCopies, AreNotMadeOfWhatIsWritten) {
  const at::Tensor a = torch::randn({kBlock});
  const at::Tensor before = a.clone();
  AsyncSaver saver{comm::Group::self()};
  test::GatedWrites files(2);  // the header, after all values
  save(saver, files, {part("a", a)});
  files.wait_until_it_waits();
  saver.before_change();
  a.zero_();
  files.open();
  saver.finish();
  EXPECT_TRUE(torch::equal(saved("a"), before));
}

TEST_F(LateCopies, AreMadeAtOnceOfWhatChangesAnyTime) {
  const at::Tensor buffer = torch::zeros({2}, torch::kLong);
  TensorPart changing = part("buffer", buffer);
  changing.changes_any_time = true;
  AsyncSaver saver{comm::Group::self()};
  test::GatedWrites files(1);
  save(saver, files, {changing, part("a", torch::ones({3}))});
  buffer.add_(1);
  files.open();
  saver.finish();
  EXPECT_EQ(saved("buffer").sum().item<std::int64_t>(), 0);
}

TEST_F(LateCopies, FailIfATensorWasChangedBefore) {
  const at::Tensor a = torch::ones({2 * kBlock});  // whose second block is read after the change
  AsyncSaver saver{comm::Group::self()};
  for (const bool copies : {false, true}) {
    test::GatedWrites files(1);
    save(saver, files, {part("a", a)});
    files.wait_until_it_waits();
    a.add_(1);
    if (copies) saver.before_change();
    files.open();
    EXPECT_THAT(message_of<UsageError>([&] { saver.finish(); }),
                HasSubstr("tensor 'a' was changed while a checkpoint was being written"));
  }
  EXPECT_EQ(latest(folder_.path(), "demo"), std::nullopt);
}

TEST_F(LateCopies, KeepAModuleWithBuffersAsItWas) {
  torch::nn::BatchNorm1d norm(4);
  torch::optim::Adam optimizer(norm->parameters(), 0.1);
  const auto step = [&](bool is_saving, AsyncSaver* saver) {
    optimizer.zero_grad();
    norm->forward(torch::randn({5, 4})).square().sum().backward();
    if (is_saving) saver->before_change();
    optimizer.step();
  };
  step(false, nullptr);
  const at::Tensor mean = norm->running_mean.clone();
  const at::Tensor weight = norm->weight.detach().clone();
  AsyncSaver saver{comm::Group::self()};
  test::GatedWrites files(1);
  State state{.epoch = 1, .step = 1};
  const auto parts = parts_of(*norm, &optimizer, state);
  saver.save({.folder = folder_.path(), .prefix = "demo", .files = &files}, parts, state,
             Copying::kBeforeChange);
  step(true, &saver);
  files.open();
  saver.finish();
  EXPECT_TRUE(torch::equal(saved("running_mean"), mean));
  EXPECT_TRUE(torch::equal(saved("weight"), weight));
}

}  // namespace
}  // namespace trireme::checkpoint
