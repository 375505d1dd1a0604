// SPDX-License-Identifier: Apache-2.0
// Steps that are validated afterwards: every bit of loops that wait before they step.
#include <trireme/optim/post_validation.h>

#include <trireme/base/error.h>
#include <trireme/parallel/parallelize.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tests/ranks/allocations.h>
#include <tests/ranks/checks.h>
#include <tests/ranks/parity.h>
#include <tests/ranks/small_net.h>
#include <tests/ranks/stepping.h>
#include <tests/ranks/thread_ranks.h>
#include <torch/torch.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <latch>
#include <numeric>
#include <ostream>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace trireme {
namespace {

using test::Demands;
using test::loss_of;
using test::make_batch;
using test::make_net;
using test::Snapshot;
using test::snapshot_of;
using test::Stepping;
using test::usage_error;
using ::testing::HasSubstr;
using testing::message_of;
using testing::run_ranks;
using testing::run_ranks_catching;

constexpr int kSteps = 12;

struct Case {
  std::string name;
  std::string optimizer;
  Demands demands;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const std::string optimizer :
       {"sgd", "momentum", "adam", "adamw", "rmsprop", "adagrad", "lamb"}) {
    all.push_back({optimizer + "_clipped", optimizer, {.max_norm = 0.5}});
    all.push_back({optimizer + "_skipped", optimizer, {.skip_not_finite = true}});
    all.push_back(
        {optimizer + "_clipped_skipped", optimizer, {.max_norm = 0.5, .skip_not_finite = true}});
    all.push_back({optimizer + "_scaled", optimizer, {.max_norm = 0.5, .has_loss_scale = true}});
  }
  return all;
}

// GoogleTest looks for this name.
// NOLINTNEXTLINE(readability-identifier-naming)
void PrintTo(const Case& test_case, std::ostream* out) { *out << test_case.name; }

class PostValidationOf : public ::testing::TestWithParam<Case> {};

struct Arrangement {
  int ranks = 2;
  int zero_level = 0;
  std::int64_t shard_ranks = 0;
};

struct Trained {
  std::vector<Snapshot> steps;
  std::vector<torch::Tensor> parameters;
  int num_taken_back = 0;
  int num_skipped = 0;
};

Plan plan_of(const Arrangement& arrangement) {
  return {.bucket_bytes = 2000,
          .first_bucket_bytes = 500,
          .zero_level = arrangement.zero_level,
          .shard_ranks = arrangement.shard_ranks};
}

Trained train(const Case& test_case, const Arrangement& arrangement, Stepping::Way way,
              const comm::Group& group) {
  test::Net net = make_net(1);
  const auto optimizer = test::make_optimizer(test_case.optimizer, net->parameters());
  Parallelized parallelized = parallelize(*net, plan_of(arrangement), group);
  parallelized.shard(*optimizer);
  Stepping stepping(*optimizer, test_case.demands, way);
  const bool may_skip = test_case.demands.skip_not_finite || test_case.demands.has_loss_scale;
  Trained run;
  for (int step = 0; step < kSteps; ++step) {
    optimizer->zero_grad();
    (loss_of(net, make_batch(step, group.rank())) * stepping.scale()).backward();
    test::resize_gradients(*optimizer, step, test_case.demands.max_norm.has_value());
    // Of one rank's part alone; without parts all ranks have it. After what no step skips
    // everything is lost.
    const bool spoils = may_skip ? step == 0 || step == 5 || step == 9 : step == kSteps - 2;
    if (spoils && (arrangement.zero_level == 0 || group.rank() % 2 == 1)) {
      test::spoil_a_gradient(*optimizer, /*is_infinite=*/step == 5);
    }
    stepping.step(parallelized.sharing());
    test::set_rates(*optimizer, step);
    if (step % 2 == 0) optimizer->zero_grad();
    run.steps.push_back(stepping.finish());
  }
  parallelized.gather_parameters();
  run.parameters = test::copies(*net);
  run.num_taken_back = stepping.num_taken_back;
  run.num_skipped = stepping.num_skipped;
  return run;
}

void expect_same_bits(const Case& test_case, const Arrangement& arrangement) {
  run_ranks(arrangement.ranks, [&](const comm::Group& group) {
    SCOPED_TRACE(::testing::Message() << "rank " << group.rank() << " of " << group.size()
                                      << ", ZeRO " << arrangement.zero_level);
    const Trained expected = train(test_case, arrangement, Stepping::Way::kWaits, group);
    const Trained got = train(test_case, arrangement, Stepping::Way::kValidates, group);
    for (std::size_t step = 0; step < expected.steps.size(); ++step) {
      test::expect_same_bits(got.steps[step], expected.steps[step], "step " + std::to_string(step));
    }
    for (std::size_t i = 0; i < expected.parameters.size(); ++i) {
      EXPECT_TRUE(test::has_same_bits(got.parameters[i], expected.parameters[i])) << i;
    }
    EXPECT_EQ(got.num_skipped, expected.num_skipped);
    if (arrangement.zero_level == 0) {
      EXPECT_EQ(got.num_taken_back, 0);  // every rank knows before it steps
      return;
    }
    // Those with large gradients, and those with spoiled ones.
    const bool clips = test_case.demands.max_norm.has_value();
    const bool skips = test_case.demands.skip_not_finite || test_case.demands.has_loss_scale;
    EXPECT_EQ(got.num_skipped, skips ? 3 : 0);
    EXPECT_GE(got.num_taken_back, clips ? 4 : 3);
    EXPECT_LE(got.num_taken_back, kSteps - 4);
  });
}

TEST_P(PostValidationOf, HasTheBitsOfALoopThatWaits) {
  for (const int zero_level : {0, 1, 2, 3}) expect_same_bits(GetParam(), {2, zero_level});
}

TEST_P(PostValidationOf, HasThemWhereSomeRanksHaveTheSameParts) {
  expect_same_bits(GetParam(), {.ranks = 4, .zero_level = 2, .shard_ranks = 2});
}

INSTANTIATE_TEST_SUITE_P(Optimizers, PostValidationOf, ::testing::ValuesIn(cases()),
                         [](const auto& param_info) { return param_info.param.name; });

// There the sum goes by an engine that adds in an order of its own.
TEST(PostValidation, HasTheBitsOfALoopThatWaitsOverGloo) {
  testing::engine_of_ranks = "gloo";
  const Case test_case{"gloo", "adam", {.max_norm = 0.5, .skip_not_finite = true}};
  for (const int zero_level : {1, 3})
    expect_same_bits(test_case, {.ranks = 3, .zero_level = zero_level});
  testing::engine_of_ranks = "shm";
}

// A module on ranks that cut it, and its loop.
struct Loop {
  explicit Loop(const comm::Group& ranks, int zero_level = 2)
      : group(ranks), parallelized(parallelize(*net, plan_of({.zero_level = zero_level}), ranks)) {
    parallelized.shard(optimizer);
  }

  void accumulate(int step) { loss_of(net, make_batch(step, group.rank())).backward(); }
  void take(int step) {
    optimizer.zero_grad();
    accumulate(step);
    validation.step(parallelized.sharing());
  }

  comm::Group group;
  test::Net net = make_net(1);
  torch::optim::Adam optimizer{net->parameters(), torch::optim::AdamOptions(0.01)};
  Parallelized parallelized;
  PostValidation validation{optimizer, {.max_norm = 1e-3}};  // which every step exceeds
};

TEST(PostValidation, KeepsTheTensorsOfTheOptimizer) {
  run_ranks(2, [](const comm::Group& group) {
    Loop loop(group);
    const auto stepped = loop.optimizer.param_groups()[0].params();
    auto* const options = &loop.optimizer.param_groups()[0].options();
    std::vector<const void*> memory;
    for (int step = 0; step < 3; ++step) {
      loop.take(step);
      EXPECT_TRUE(loop.validation.is_pending());
      EXPECT_TRUE(loop.validation.validate()->is_taken_back);
      EXPECT_FALSE(loop.validation.is_pending());
      EXPECT_FALSE(loop.validation.validate().has_value());
      EXPECT_EQ(&loop.optimizer.param_groups()[0].options(), options);
      std::vector<const void*> now;
      for (std::size_t i = 0; i < stepped.size(); ++i) {
        EXPECT_TRUE(loop.optimizer.param_groups()[0].params()[i].is_same(stepped[i]));
        const auto found = loop.optimizer.state().find(stepped[i].unsafeGetTensorImpl());
        if (found == loop.optimizer.state().end()) continue;
        for (const torch::Tensor* tensor : detail::fields_of(*found->second).tensors) {
          if (tensor->defined()) now.push_back(tensor->const_data_ptr());
        }
      }
      if (step > 0) {
        EXPECT_EQ(now, memory);
      }
      memory = now;
    }
  });
}

// Of a step that is skipped when it was the first there is no state.
TEST(PostValidation, ForgetsStateThatAStepHadMade) {
  run_ranks(2, [](const comm::Group& group) {
    Loop loop(group);
    torch::optim::SGD optimizer(loop.optimizer.param_groups()[0].params(),
                                torch::optim::SGDOptions(0.1).momentum(0.9));
    loop.accumulate(0);
    if (group.rank() == 1) test::spoil_a_gradient(optimizer, /*is_infinite=*/true);
    PostValidation validation(optimizer, {.skip_not_finite = true});
    validation.step(loop.parallelized.sharing());
    EXPECT_FALSE(optimizer.state().empty());
    const auto outcome = validation.validate();
    EXPECT_TRUE(outcome->is_skipped && outcome->is_taken_back);
    EXPECT_TRUE(optimizer.state().empty());
  });
}

TEST(PostValidation, ClipsTheGradientsThemselves) {
  run_ranks(2, [](const comm::Group& group) {
    Loop loop(group);
    loop.take(0);
    const double norm = global_norm(loop.optimizer, loop.parallelized.sharing());
    EXPECT_EQ(loop.validation.validate()->norm, norm);
    EXPECT_NEAR(global_norm(loop.optimizer, loop.parallelized.sharing()), 1e-3, 1e-6);
    loop.take(1);
    loop.optimizer.zero_grad();
    EXPECT_TRUE(loop.validation.validate()->is_taken_back);
    for (const torch::Tensor& stepped : loop.optimizer.param_groups()[0].params()) {
      EXPECT_FALSE(stepped.grad().defined());
    }
  });
}

TEST(PostValidation, SaysWhatItKeeps) {
  run_ranks(2, [](const comm::Group& group) {
    Loop loop(group);
    EXPECT_EQ(loop.validation.kept_bytes(), 0);
    loop.take(0);
    std::int64_t bytes = 0;
    std::set<const void*> seen;  // a tied one is listed twice
    for (const torch::Tensor& stepped : loop.optimizer.param_groups()[0].params()) {
      const bool is_new = seen.insert(stepped.unsafeGetTensorImpl()).second;
      if (is_new && stepped.grad().defined()) bytes += static_cast<std::int64_t>(stepped.nbytes());
    }
    EXPECT_EQ(loop.validation.kept_bytes(), bytes);  // there was no state
    loop.validation.validate();
    for (int step = 1; step < 3; ++step) {
      loop.take(step);
      EXPECT_EQ(loop.validation.kept_bytes(), 3 * bytes);
      loop.validation.validate();
    }
    EXPECT_EQ(loop.validation.kept_bytes(), 3 * bytes);
  });
}

// Copies have their memory from the step before; a step of Adam allocates for itself.
TEST(PostValidation, AllocatesLittleFromTheThirdStepOn) {
  run_ranks(2, [](const comm::Group& group) {
    Loop loop(group);
    PostValidation validation(loop.optimizer, {.max_norm = 1e6});
    const auto bytes_of = [](const std::vector<std::int64_t>& all) {
      return std::accumulate(all.begin(), all.end(), std::int64_t{0});
    };
    for (int step = 0; step < 4; ++step) {
      loop.optimizer.zero_grad();
      loop.accumulate(step);
      const Sharing sharing = loop.parallelized.sharing();
      const auto expected = test::allocations_of([&] {
        clip_by_global_norm(loop.optimizer, 1e6, sharing);
        const Snapshot before = snapshot_of(loop.optimizer);  // which allocates what is kept
        loop.optimizer.step();
      });
      const auto got = test::allocations_of([&] {
        validation.step(sharing);
        validation.validate();
      });
      if (step < 2) continue;
      constexpr std::int64_t kWords = 2048;  // of a sum of squares
      EXPECT_LE(bytes_of(got), bytes_of(expected) - validation.kept_bytes() + kWords);
    }
  });
}

TEST(PostValidation, TakesStepsBackThatAnOptimizerCannotEnd) {
  struct Failing : torch::optim::SGD {
    using SGD::SGD;
    torch::Tensor step(LossClosure closure) override {
      SGD::step(std::move(closure));
      if (fails) throw std::runtime_error("in the middle");
      return {};
    }
    bool fails = false;
  };
  run_ranks(2, [](const comm::Group& group) {
    Loop loop(group);
    Failing optimizer(loop.optimizer.param_groups()[0].params(),
                      torch::optim::SGDOptions(0.1).momentum(0.9));
    PostValidation validation(optimizer, {.max_norm = 1e6});
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      loop.accumulate(step);
      const Snapshot before = snapshot_of(optimizer);
      optimizer.fails = step != 1;
      if (optimizer.fails) {
        EXPECT_THROW(validation.step(loop.parallelized.sharing()), std::runtime_error);
        test::expect_same_bits(snapshot_of(optimizer), before, "step " + std::to_string(step));
        EXPECT_FALSE(validation.is_pending());
      } else {
        validation.step(loop.parallelized.sharing());
        EXPECT_FALSE(validation.validate()->is_taken_back);
      }
    }
  });
}

TEST(PostValidation, IsMadeUpForWhenItGoes) {
  run_ranks(2, [](const comm::Group& group) {
    Loop loop(group);
    torch::optim::SGD optimizer(loop.optimizer.param_groups()[0].params(), 0.1);
    loop.accumulate(0);
    test::spoil_a_gradient(optimizer, /*is_infinite=*/false);
    const Snapshot before = snapshot_of(optimizer);
    {
      PostValidation validation(optimizer, {.skip_not_finite = true});
      validation.step(loop.parallelized.sharing());
    }
    test::expect_same_bits(snapshot_of(optimizer), before, "after");
  });
}

// -- what is refused ----------------------------------------------------------------------------

TEST(PostValidation, RefusesAStepBeforeTheLastIsValidated) {
  run_ranks(2, [](const comm::Group& group) {
    Loop loop(group);
    loop.take(0);
    EXPECT_THAT(usage_error([&] { loop.take(1); }),
                HasSubstr("the step before this one has not been validated"));
  });
}

class PostValidationAtZeroLevel : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(ZeroLevels, PostValidationAtZeroLevel, ::testing::Values(1, 2, 3));

// Those of the step are gone: their memory has those of the next.
TEST_P(PostValidationAtZeroLevel, RefusesToValidateAfterTheNextBackward) {
  for (const bool resets : {false, true}) {
    run_ranks(2, [&](const comm::Group& group) {
      Loop loop(group, GetParam());
      for (int step = 0; step < 2; ++step) {
        loop.take(step);
        loop.validation.validate();
      }
      loop.take(2);
      if (resets) loop.optimizer.zero_grad();
      loop.accumulate(3);
      EXPECT_THAT(usage_error([&] { loop.validation.validate(); }),
                  HasSubstr("the gradient of a parameter of shape"));
      EXPECT_FALSE(loop.validation.is_pending());
    });
  }
}

TEST(PostValidation, RefusesToValidateWhatHasChanged) {
  const std::vector<std::pair<std::function<void(Loop&)>, std::string>> changes = {
      {[](Loop& loop) { loop.optimizer.zero_grad(/*set_to_none=*/false); },
       "the gradient of a parameter of shape"},
      {[](Loop& loop) {
         const torch::NoGradGuard no_grad;
         for (const torch::Tensor& stepped : loop.optimizer.param_groups()[0].params()) {
           if (stepped.grad().defined()) stepped.mul_(2);
         }
       },
       "the values of a parameter of shape"},
      {[](Loop& loop) { loop.optimizer.state().clear(); },
       "the optimizer's state of a parameter of shape"}};
  for (const auto& [change, message] : changes) {
    run_ranks(2, [&](const comm::Group& group) {
      Loop loop(group);
      loop.take(0);
      change(loop);
      EXPECT_THAT(usage_error([&] { loop.validation.validate(); }), HasSubstr(message));
      EXPECT_FALSE(loop.validation.validate().has_value());
    });
  }
}

// The others have what they had before the step.
TEST(PostValidation, TakesAStepBackWhereARankFails) {
  const auto thrown = run_ranks_catching(3, [](const comm::Group& group) {
    Loop loop(group);
    loop.take(0);
    loop.validation.validate();
    loop.optimizer.zero_grad();
    loop.accumulate(1);
    if (group.rank() == 1) throw std::runtime_error("reading data");
    const Snapshot before = snapshot_of(loop.optimizer);
    loop.validation.step(loop.parallelized.sharing());
    try {
      loop.validation.validate();
    } catch (const CommError&) {
      test::expect_same_bits(snapshot_of(loop.optimizer), before, "after");
      EXPECT_FALSE(loop.validation.is_pending());
      throw;
    }
  });
  EXPECT_THAT(message_of<CommError>(thrown[0]), HasSubstr("rank 1"));
  EXPECT_THAT(message_of<CommError>(thrown[2]), HasSubstr("rank 1"));
}

TEST(PostValidation, KeepsTheDeadlineOfTheGroup) {
  std::latch others_have_thrown(1);
  const auto thrown = run_ranks_catching(
      2,
      [&](const comm::Group& group) {
        Loop loop(group);
        loop.optimizer.zero_grad();
        loop.accumulate(0);
        if (group.rank() == 1) return others_have_thrown.wait();
        loop.validation.step(loop.parallelized.sharing());
        try {
          loop.validation.validate();
        } catch (...) {
          others_have_thrown.count_down();
          throw;
        }
        others_have_thrown.count_down();
      },
      std::chrono::seconds(2));
  EXPECT_THAT(message_of<CommError>(thrown[0]), HasSubstr("validation of a step"));
}

}  // namespace
}  // namespace trireme
