// SPDX-License-Identifier: Apache-2.0
// Modules constructed without memory, whose parameters are cut, and what ranks compare of them.
#include <trireme/base/error.h>
#include <trireme/comm/collectives.h>
#include <trireme/parallel/data_parallel.h>
#include <trireme/parallel/deferred.h>
#include <trireme/parallel/module/agreement.h>

#include <gmock/gmock.h>
#include <tests/ranks/checks.h>
#include <tests/ranks/cut_stack.h>
#include <tests/ranks/thread_ranks.h>
#include <torch/torch.h>

#include <functional>
#include <mutex>
#include <set>

namespace trireme {
namespace {

using comm::Group;
using detail::digest_of;
using test::all_equal;
using test::copies;
using test::cut;
using test::num_whole;
using test::Stack;
using ::testing::HasSubstr;
using testing::run_ranks;
using testing::run_ranks_catching;

// Constructed without memory the module has the same values, and trains to the same bits.
TEST(CutParameters, AreDrawnPartByPartWhereTheModuleWasDeferred) {
  static std::mutex one_at_a_time;  // LibTorch's random generator is the process's
  std::vector<torch::Tensor> expected;
  {
    torch::manual_seed(11);
    Stack net(4);
    expected = copies(*net);
  }
  for (const int zero_level : {0, 1, 3}) {
    run_ranks(2, [&](const Group& group) {
      Stack net{nullptr};
      {
        const std::lock_guard lock(one_at_a_time);
        torch::manual_seed(11 + static_cast<std::uint64_t>(group.rank()));  // rank 0's counts
        net = deferred([] { return Stack(4); });
      }
      Plan plan = cut();
      plan.zero_level = zero_level;
      {
        Parallelized parallelized = parallelize(*net, plan, group);
        if (zero_level == 3) {
          EXPECT_EQ(num_whole(*net), 0);
        }
        EXPECT_TRUE(all_equal(copies(*net), expected));
        torch::optim::SGD optimizer(net->parameters(), 0.1);
        parallelized.shard(optimizer);
        net->forward(torch::ones({4, 32})).sum().backward();
        optimizer.step();
        EXPECT_FALSE(all_equal(copies(*net), expected));
      }
      EXPECT_EQ(num_whole(*net), 8);  // ordinary again, each parameter in memory of its own
    });
  }
}

// Seeds differ between ranks, so that rank 0's numbers count; `change` is what ranks do apart.
Stack deferred_stack(const Group& group, const std::function<void(Stack&)>& change) {
  static std::mutex one_at_a_time;  // LibTorch's random generator is the process's
  const std::lock_guard lock(one_at_a_time);
  torch::manual_seed(11 + static_cast<std::uint64_t>(group.rank()));
  return deferred([&] {
    Stack net(4);
    const torch::NoGradGuard no_grad;
    change(net);
    return net;
  });
}

TEST(CutParameters, AreRankZerosIfWholeWhateverTheConstructorDidThere) {
  for (const int zero_level : {0, 1}) {
    run_ranks(2, [&](const Group& group) {
      Stack net = deferred_stack(group, [&](Stack& made) {
        const torch::Tensor scale = made->register_buffer("scale", torch::rand({32}));
        if (group.rank() != 0) return;
        made->layers[1]->weight.copy_(torch::full({32, 32}, 0.5));
        scale.fill_(2);
      });
      Plan plan = cut();
      plan.zero_level = zero_level;
      const Parallelized parallelized = parallelize(*net, plan, group);
      EXPECT_TRUE(torch::equal(net->layers[1]->weight, torch::full({32, 32}, 0.5)));
      EXPECT_TRUE(torch::equal(net->buffers()[0], torch::full({32}, 2.0)));
      for (const torch::Tensor& parameter : net->parameters()) {
        const torch::Tensor all = torch::empty({2, parameter.numel()});
        comm::all_gather(all, parameter.detach().flatten(), group);
        EXPECT_TRUE(torch::equal(all[0], all[1]));
      }
    });
  }
}

// Those of the group that cuts among itself may agree, as ranks 0 and 1 do here.
TEST(CutParameters, AreRefusedWhereConstructorsGaveThemOtherValues) {
  const auto changed = [](const Group& group) {
    return deferred_stack(group, [&](Stack& made) {
      if (group.rank() < 2) return;
      made->layers[2]->bias.copy_(torch::ones({32}));
      made->layers[3]->weight.copy_(torch::full({32, 32}, 0.5));
    });
  };
  for (const std::int64_t shard_ranks : {0, 2}) {
    Plan plan = cut();
    plan.shard_ranks = shard_ranks;
    const auto thrown = run_ranks_catching(4, [&](const Group& group) {
      Stack net = changed(group);
      static_cast<void>(parallelize(*net, plan, group));
    });
    for (const std::exception_ptr& error : thrown) {
      EXPECT_THAT(testing::message_of<UsageError>(error),
                  ::testing::AllOf(HasSubstr("initial values of a parameter that is cut: rank 0 "
                                             "has 'layer2.bias of digest "),
                                   HasSubstr("rank 2 has 'layer2.bias")));
    }
  }
  run_ranks(4, [&](const Group& group) {  // the caller's affair
    Stack net = changed(group);
    Plan plan = cut();
    plan.broadcast_parameters = false;
    static_cast<void>(parallelize(*net, plan, group));
  });
}

TEST(CutParameters, AreRefusedWhereConstructorsDrawFromOtherGenerators) {
  for (const int zero_level : {0, 3}) {
    const auto thrown = run_ranks_catching(2, [&](const Group& group) {
      Stack net = deferred_stack(group, [&](Stack& made) {
        if (group.rank() == 1) torch::manual_seed(5);
        made->layers[3]->weight.normal_();
      });
      Plan plan = cut();
      plan.zero_level = zero_level;
      static_cast<void>(parallelize(*net, plan, group));
    });
    for (const std::exception_ptr& error : thrown) {
      EXPECT_THAT(testing::message_of<UsageError>(error),
                  HasSubstr("ranks differ in the number of bytes of random states"));
    }
  }
}

TEST(Digest, FollowsFromValuesAndTheirPlaces) {
  for (const auto type : {torch::kFloat, torch::kDouble, torch::kBFloat16, torch::kLong,
                          torch::kByte, torch::kBool, torch::kComplexDouble}) {
    const torch::Tensor eye = torch::eye(600, type);
    EXPECT_EQ(digest_of(eye), digest_of(eye.clone()));
    std::set<std::int64_t> digests = {digest_of(eye)};
    // The same values elsewhere: two rows, two halves, all.
    EXPECT_TRUE(digests.insert(digest_of(eye.flip(0))).second) << type;
    EXPECT_TRUE(digests.insert(digest_of(eye.roll(1, 0))).second) << type;
    EXPECT_TRUE(
        digests.insert(digest_of(torch::cat({eye.slice(0, 300), eye.slice(0, 0, 300)}))).second)
        << type;
    eye[599].zero_();
    EXPECT_TRUE(digests.insert(digest_of(eye)).second) << type;
  }
  const torch::Tensor numbers = torch::arange(600 * 600).view({600, 600});
  EXPECT_EQ(digest_of(numbers.t()), digest_of(numbers));  // by places in memory
  EXPECT_NE(digest_of(numbers.t().contiguous()), digest_of(numbers));
  EXPECT_EQ(digest_of(torch::empty({0, 3})), digest_of(torch::empty({0})));
  EXPECT_EQ(digest_of(torch::tensor(3.0)), digest_of(torch::full({1}, 3.0)));
  EXPECT_NE(digest_of(torch::tensor(0.0)), digest_of(torch::tensor(-0.0)));
}

}  // namespace
}  // namespace trireme
