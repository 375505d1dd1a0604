// SPDX-License-Identifier: Apache-2.0
// State of cut modules and optimizers, whole and in parts.
#include <trireme/base/error.h>
#include <trireme/comm/collectives.h>
#include <trireme/parallel/data_parallel.h>
#include <trireme/parallel/state_dict.h>

#include <gmock/gmock.h>
#include <tests/ranks/checks.h>
#include <tests/ranks/small_net.h>
#include <tests/ranks/thread_ranks.h>
#include <torch/torch.h>

namespace trireme {
namespace {

using comm::Group;
using test::all_equal;
using test::copies;
using test::loss_of;
using test::make_batch;
using test::make_net;
using ::testing::HasSubstr;
using testing::run_ranks;

class StateOf : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(ZeroLevels, StateOf, ::testing::Values(0, 1, 2, 3));

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
    const auto start = [&](test::Net& net, torch::optim::Optimizer& optimizer, int zero_level) {
      Parallelized made =
          parallelize(*net, {.bucket_bytes = 3000, .zero_level = zero_level}, group);
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
    const FullState expected = full_state(plain_parallel, *plain, plain_adam);

    test::Net net = make_net(1);
    auto adam = adam_of(net);
    Parallelized parallel = start(net, adam, GetParam());
    train(net, adam, 0, group);
    const FullState whole = full_state(parallel, *net, adam);
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
    const FullState again = full_state(parallel, *net, adam);
    if (group.rank() == 0) {
      expect_equal_tensors(again.module, expected.module);
      expect_equal_tensors(again.optimizer.tensors, expected.optimizer.tensors);
    }
    train(net, adam, 2, group);
    train(plain, plain_adam, 2, group);
    EXPECT_TRUE(all_equal(copies(*net), copies(*plain)));

    // The whole state into another cut.
    FullState given;
    {
      test::Net source = make_net(1);
      auto source_adam = adam_of(source);
      train(source, source_adam, 0, Group::self());
      Parallelized alone = parallelize(*source, {}, Group::self());
      given = full_state(alone, *source, source_adam);
    }
    load_full_state(given, parallel, *net, adam);
    const FullState loaded = full_state(parallel, *net, adam);
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
    Parallelized parallel = parallelize(*net, {.zero_level = 3}, group);
    parallel.shard(optimizer);
    PartialState parts = partial_state(parallel, *net, optimizer);
    parts.places.at("first.weight").offset += 1;
    try {
      load_partial_state(parts, parallel, *net, optimizer);
      ADD_FAILURE() << "parts of another place were loaded";
    } catch (const CheckpointError& error) {
      EXPECT_THAT(error.what(), HasSubstr("first.weight"));
    }
    EXPECT_THROW(static_cast<void>(full_state(parallel, *net, optimizer, 2)), UsageError);
  });
}

}  // namespace
}  // namespace trireme
