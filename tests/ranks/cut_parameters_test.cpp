// SPDX-License-Identifier: Apache-2.0
// Stage 3 besides its bits, which parity_test.cpp compares: how much is whole at a time, what may
// be done with a parameter that is not, modules constructed without memory, and state in parts.
#include <trireme/base/error.h>
#include <trireme/comm/collectives.h>
#include <trireme/parallel/agreement.h>
#include <trireme/parallel/data_parallel.h>
#include <trireme/parallel/deferred.h>
#include <trireme/parallel/state.h>

#include <gmock/gmock.h>
#include <tests/ranks/checks.h>
#include <tests/ranks/small_net.h>
#include <tests/ranks/thread_ranks.h>
#include <torch/torch.h>

#include <algorithm>
#include <functional>
#include <mutex>
#include <set>

namespace trireme {
namespace {

using comm::Group;
using detail::digest_of;
using test::all_equal;
using test::copies;
using test::loss_of;
using test::make_batch;
using test::make_net;
using ::testing::HasSubstr;
using testing::run_ranks;
using testing::run_ranks_catching;

// A stack of layers, each a bucket of its own.
struct StackImpl : torch::nn::Module {
  explicit StackImpl(int depth) {
    for (int i = 0; i < depth; ++i) {
      layers.emplace_back(register_module("layer" + std::to_string(i), torch::nn::Linear(32, 32)));
    }
  }
  torch::Tensor forward(torch::Tensor x) {
    for (auto& layer : layers) x = torch::tanh(layer(x));
    return x;
  }
  std::vector<torch::nn::Linear> layers;
};
TORCH_MODULE(Stack);

constexpr std::int64_t kLayerBytes = 33L * 32 * 4;

Plan cut(std::int64_t gathered_buckets = 3) {
  return {.bucket_bytes = kLayerBytes,
          .first_bucket_bytes = kLayerBytes,
          .zero_stage = 3,
          .gathered_buckets = gathered_buckets};
}

std::size_t num_whole(const torch::nn::Module& module) {
  std::set<const void*> whole;
  for (const torch::Tensor& parameter : module.parameters()) {
    if (parameter.storage().nbytes() > 0) whole.insert(parameter.storage().unsafeGetStorageImpl());
  }
  return whole.size();
}

TEST(CutParameters, AreWholeAFewAtATime) {
  run_ranks(2, [](const Group& group) {
    for (const std::int64_t gathered_buckets : {2, 3, 5}) {
      Stack net(8);
      torch::optim::SGD optimizer(net->parameters(), 0.1);
      Parallelized parallelized = parallelize(*net, cut(gathered_buckets), group);
      parallelized.shard(optimizer);
      EXPECT_EQ(num_whole(*net), 0);
      for (int step = 0; step < 3; ++step) {
        const torch::Tensor y = net->forward(torch::ones({4, 32}));
        EXPECT_LE(num_whole(*net), gathered_buckets);
        y.sum().backward();
        EXPECT_LE(num_whole(*net), gathered_buckets);
        optimizer.step();
      }
      parallelized.fetch();
      EXPECT_EQ(num_whole(*net), 8);
      net->forward(torch::ones({4, 32})).sum().backward();
      EXPECT_EQ(num_whole(*net), 8);  // until the next step
      optimizer.step();
      net->forward(torch::ones({4, 32}));
      EXPECT_LE(num_whole(*net), gathered_buckets);
    }
  });
}

TEST(CutParameters, StayWholeFromForwardToBackwardWhereThePlanKeepsThem) {
  run_ranks(2, [](const Group& group) {
    Stack net(6);
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    Parallelized parallelized = parallelize(*net, cut(0), group);
    parallelized.shard(optimizer);
    net->forward(torch::ones({4, 32})).sum().backward();
    EXPECT_EQ(num_whole(*net), 6);
    optimizer.step();
    static_cast<void>(net->layers[5]->bias.sum());
    EXPECT_LE(num_whole(*net), 2);  // it, and the one foretold
  });
}

// One operator that is given all parameters at once, and views that are older than a step.
TEST(CutParameters, AreWholeForWhateverTouchesThem) {
  run_ranks(2, [](const Group& group) {
    Stack net(5);
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    Parallelized parallelized = parallelize(*net, cut(2), group);
    parallelized.shard(optimizer);
    const auto before = copies(*net);
    const torch::Tensor old_view = net->layers[1]->weight.detach().t();
    std::vector<torch::Tensor> flattened;
    for (const torch::Tensor& parameter : net->parameters()) {
      flattened.push_back(parameter.flatten());
    }
    torch::Tensor loss = torch::cat(flattened).square().sum();
    loss.backward();
    optimizer.step();
    const auto after = copies(*net);
    for (std::size_t i = 0; i < after.size(); ++i) {
      EXPECT_TRUE(torch::allclose(after[i], before[i] * 0.8, 1e-5, 1e-7));
    }
    EXPECT_TRUE(torch::equal(old_view, after[2].t()));
  });
}

TEST(CutParameters, KeepWhatIsWrittenIntoThem) {
  run_ranks(3, [](const Group& group) {
    Stack net(6);
    torch::optim::SGD optimizer(net->parameters(), 0.5);
    Parallelized parallelized = parallelize(*net, cut(2), group);
    parallelized.shard(optimizer);
    {
      const torch::NoGradGuard no_grad;
      for (auto& layer : net->layers) layer->weight.fill_(0.01).t().select(0, 3).fill_(2);
    }
    for (const auto& layer : net->layers) {
      EXPECT_EQ(layer->weight.sum().item<double>(), layer->weight.sum().item<double>());
      EXPECT_NEAR(layer->weight.detach()[4][3].item<double>(), 2, 0);
      EXPECT_NEAR(layer->weight.detach()[31][30].item<double>(), 0.01, 1e-7);
    }
    // And an optimizer steps what was written.
    net->layers[2]->weight.sum().backward();
    {
      const torch::NoGradGuard no_grad;
      net->layers[2]->weight.add_(1);
    }
    optimizer.step();
    EXPECT_NEAR(net->layers[2]->weight.detach()[4][3].item<double>(), 2.5, 1e-6);
  });
}

TEST(CutParameters, KeepWhatIsWrittenIntoThemWhereOptimizersStepInHostMemory) {
  run_ranks(2, [](const Group& group) {
    for (const int stage : {1, 2, 3}) {
      Stack net(4);
      torch::optim::SGD optimizer(net->parameters(), 0.5);
      Plan plan = cut(2);
      plan.zero_stage = stage;
      plan.offload_optimizer = true;
      Parallelized parallelized = parallelize(*net, plan, group);
      parallelized.shard(optimizer);
      {
        const torch::NoGradGuard no_grad;
        for (auto& layer : net->layers) layer->weight.fill_(2);
      }
      net->layers[1]->weight.sum().backward();
      optimizer.step();
      EXPECT_TRUE(torch::equal(net->layers[1]->weight.detach(), torch::full({32, 32}, 1.5)));
      EXPECT_TRUE(torch::equal(net->layers[3]->weight.detach(), torch::full({32, 32}, 2.0)));
    }
  });
}

TEST(CutParameters, OfRecurrentNetworksTrain) {
  run_ranks(2, [](const Group& group) {
    std::vector<std::vector<torch::Tensor>> ends;
    for (const int stage : {0, 3}) {
      torch::nn::LSTM net(torch::nn::LSTMOptions(6, 16).num_layers(3).bidirectional(true));
      {
        auto generator = at::detail::createCPUGenerator(4);
        const torch::NoGradGuard no_grad;
        for (auto& parameter : net->parameters()) {
          parameter.copy_(torch::rand(parameter.sizes(), generator, parameter.options()) - 0.5);
        }
      }
      torch::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(0.01));
      Plan plan = cut(2);
      plan.zero_stage = stage;
      plan.bucket_bytes = plan.first_bucket_bytes = 1000;
      Parallelized parallelized = parallelize(*net, plan, group);
      parallelized.shard(optimizer);
      for (int step = 0; step < 3; ++step) {
        optimizer.zero_grad();
        const auto input = torch::full({5, 2, 6}, 0.1 * (step + group.rank()));
        std::get<0>(net(input)).square().mean().backward();
        optimizer.step();
      }
      ends.push_back(copies(*net));
    }
    EXPECT_TRUE(all_equal(ends[0], ends[1]));
  });
}

// What one rank does alone with what is whole must not make it foretell other buckets.
TEST(CutParameters, MayBeLookedAtByOneRankWhileAllAreWhole) {
  run_ranks(2, [](const Group& group) {
    Stack net(6);
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    Parallelized parallelized = parallelize(*net, cut(), group);
    parallelized.shard(optimizer);
    for (int step = 0; step < 3; ++step) {
      net->forward(torch::ones({4, 32})).sum().backward();
      optimizer.step();
      parallelized.fetch();
      if (group.rank() != 0) continue;
      for (const std::size_t layer : {3U, 0U, 5U, 1U}) {
        EXPECT_GT(net->layers[layer]->weight.norm().item<double>(), 0);
      }
    }
    net->forward(torch::ones({4, 32})).sum().backward();
  });
}

TEST(CutParameters, TellRanksThatNeedOthersThanTheRest) {
  const auto thrown = run_ranks_catching(
      2,
      [](const Group& group) {
        Stack net(6);
        Parallelized parallelized = parallelize(*net, cut(), group);
        static_cast<void>(net->layers[group.rank() == 0 ? 1 : 4]->weight.sum());
        static_cast<void>(net->layers[2]->weight.sum());
      },
      std::chrono::seconds(20));
  const std::string message = testing::message_of<CommError>(thrown[0]);
  EXPECT_THAT(message, ::testing::AllOf(HasSubstr("parameters from layer1.bias"),
                                        HasSubstr("parameters from layer4.bias")));
}

// Constructed without memory the module has the same values, and trains to the same bits.
TEST(CutParameters, AreDrawnPartByPartWhereTheModuleWasDeferred) {
  static std::mutex one_at_a_time;  // LibTorch's random generator is the process's
  std::vector<torch::Tensor> expected;
  {
    torch::manual_seed(11);
    Stack net(4);
    expected = copies(*net);
  }
  for (const int stage : {0, 1, 3}) {
    run_ranks(2, [&](const Group& group) {
      Stack net{nullptr};
      {
        const std::lock_guard lock(one_at_a_time);
        torch::manual_seed(11 + static_cast<std::uint64_t>(group.rank()));  // rank 0's counts
        net = deferred([] { return Stack(4); });
      }
      Plan plan = cut();
      plan.zero_stage = stage;
      {
        Parallelized parallelized = parallelize(*net, plan, group);
        if (stage == 3) {
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
  for (const int stage : {0, 1}) {
    run_ranks(2, [&](const Group& group) {
      Stack net = deferred_stack(group, [&](Stack& made) {
        const torch::Tensor scale = made->register_buffer("scale", torch::rand({32}));
        if (group.rank() != 0) return;
        made->layers[1]->weight.copy_(torch::full({32, 32}, 0.5));
        scale.fill_(2);
      });
      Plan plan = cut();
      plan.zero_stage = stage;
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
  for (const int stage : {0, 3}) {
    const auto thrown = run_ranks_catching(2, [&](const Group& group) {
      Stack net = deferred_stack(group, [&](Stack& made) {
        if (group.rank() == 1) torch::manual_seed(5);
        made->layers[3]->weight.normal_();
      });
      Plan plan = cut();
      plan.zero_stage = stage;
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

class StateOf : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Stages, StateOf, ::testing::Values(0, 1, 2, 3));

template <typename Map>
void expect_equal_tensors(const Map& a, const Map& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, tensor] : a) {
    ASSERT_TRUE(b.contains(name)) << name;
    EXPECT_TRUE(torch::equal(tensor.flatten(), b.at(name).flatten())) << name;
  }
}

void train(test::Net& net, torch::optim::Optimizer& optimizer, int first, const Group& group) {
  for (int step = first; step < first + 2; ++step) {
    optimizer.zero_grad();
    loss_of(net, make_batch(step, group.rank()), /*use_all=*/true).backward();
    optimizer.step();
  }
}

TEST_P(StateOf, CutThingsIsThatOfOneProcess) {
  run_ranks(3, [](const Group& group) {
    const auto start = [&](test::Net& net, torch::optim::Optimizer& optimizer, int stage) {
      Parallelized made = parallelize(*net, {.bucket_bytes = 3000, .zero_stage = stage}, group);
      made.shard(optimizer);
      return made;
    };
    const auto adam_of = [](test::Net& net) {
      return torch::optim::Adam(net->parameters(), torch::optim::AdamOptions(0.01).amsgrad(true));
    };
    test::Net plain = make_net(1);
    auto plain_adam = adam_of(plain);
    Parallelized plain_parallel = start(plain, plain_adam, 0);
    train(plain, plain_adam, 0, group);
    const WholeState expected = whole_state(plain_parallel, *plain, plain_adam);

    test::Net net = make_net(1);
    auto adam = adam_of(net);
    Parallelized parallel = start(net, adam, GetParam());
    train(net, adam, 0, group);
    const WholeState whole = whole_state(parallel, *net, adam);
    if (group.rank() == 0) {
      expect_equal_tensors(whole.module, expected.module);
      expect_equal_tensors(whole.optimizer.tensors, expected.optimizer.tensors);
      EXPECT_EQ(whole.optimizer.scalars, expected.optimizer.scalars);
    } else {
      EXPECT_TRUE(whole.module.empty());
    }

    // In parts: taken, copied, trained away from, and put back.
    PartialState parts = partial_state(parallel, *net, adam);
    for (auto& [name, tensor] : parts.parameters) tensor = tensor.clone();
    for (auto& [name, tensor] : parts.buffers) tensor = tensor.clone();
    for (auto& [name, tensor] : parts.optimizer.tensors) tensor = tensor.clone();
    train(net, adam, 5, group);
    load_partial_state(parts, parallel, *net, adam);
    const WholeState again = whole_state(parallel, *net, adam);
    if (group.rank() == 0) {
      expect_equal_tensors(again.module, expected.module);
      expect_equal_tensors(again.optimizer.tensors, expected.optimizer.tensors);
    }
    train(net, adam, 2, group);
    train(plain, plain_adam, 2, group);
    EXPECT_TRUE(all_equal(copies(*net), copies(*plain)));

    // The whole state into another cut.
    WholeState given;
    {
      test::Net source = make_net(1);
      auto source_adam = adam_of(source);
      train(source, source_adam, 0, Group());
      Parallelized alone = parallelize(*source, {}, Group());
      given = whole_state(alone, *source, source_adam);
    }
    load_whole_state(given, parallel, *net, adam);
    const WholeState loaded = whole_state(parallel, *net, adam);
    if (group.rank() == 0) {
      expect_equal_tensors(loaded.module, given.module);
      expect_equal_tensors(loaded.optimizer.tensors, given.optimizer.tensors);
    }
  });
}

TEST(CutParameters, RefuseStateThatDoesNotFit) {
  run_ranks(2, [](const Group& group) {
    test::Net net = make_net(1);
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    Parallelized parallel = parallelize(*net, {.zero_stage = 3}, group);
    parallel.shard(optimizer);
    PartialState parts = partial_state(parallel, *net, optimizer);
    parts.places.at("first.weight").offset += 1;
    try {
      load_partial_state(parts, parallel, *net, optimizer);
      ADD_FAILURE() << "parts of another place were loaded";
    } catch (const CheckpointError& error) {
      EXPECT_THAT(error.what(), HasSubstr("first.weight"));
    }
    EXPECT_THROW(static_cast<void>(whole_state(parallel, *net, optimizer, 2)), UsageError);
  });
}

TEST(CutParameters, WorkWithSynchronisedBatchNorm) {
  run_ranks(2, [](const Group& group) {
    std::vector<std::vector<torch::Tensor>> ends;
    for (const int stage : {0, 3}) {
      test::Net net = make_net(1);
      torch::optim::SGD optimizer(net->parameters(), 0.1);
      Parallelized parallel = parallelize(
          *net, {.bucket_bytes = 500, .zero_stage = stage, .sync_batch_norm = true}, group);
      parallel.shard(optimizer);
      train(net, optimizer, 0, group);
      ends.push_back(copies(*net));
      const auto means = comm::all_gather_text(
          std::to_string(net->norm->running_mean.sum().item<double>()), group);
      EXPECT_EQ(means[0], means[1]);
    }
    EXPECT_TRUE(all_equal(ends[0], ends[1]));
  });
}

}  // namespace
}  // namespace trireme
