// SPDX-License-Identifier: Apache-2.0
// Checkpoints that all ranks write together, and that other ranks and plans load.
#include "tests/ranks/checks.h"
#include "tests/ranks/small_net.h"
#include "tests/ranks/thread_ranks.h"
#include "tests/unit/checkpoint/failing_files.h"
#include <trireme/base/error.h>
#include <trireme/checkpoint/async_saver.h>
#include <trireme/checkpoint/consensus.h>
#include <trireme/checkpoint/convert.h>
#include <trireme/checkpoint/inspect.h>
#include <trireme/checkpoint/module_state.h>
#include <trireme/checkpoint/reader.h>
#include <trireme/comm/collectives.h>
#include <trireme/parallel/sharded_state.h>
#include <trireme/parallel/state_dict.h>
#include <trireme/tensor/distributed_tensor.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tests/temporary_folder.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace trireme {
namespace {

using checkpoint::State;
using comm::Group;
using test::make_batch;
using test::make_net;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::run_ranks;
using testing::run_ranks_catching;

struct Cut {
  int ranks;
  int zero_level;
  std::int64_t shard_ranks = 0;
  std::int64_t tensor = 1;  // ranks that work together
  int dim_of_second = 1;    // along which they cut its weight
  bool operator==(const Cut&) const = default;
};
const std::vector<Cut> kCuts = {{1, 0}, {2, 0}, {2, 1}, {3, 2}, {2, 3}, {4, 3}};

Plan plan_of(const Cut& cut) {
  Plan plan{.bucket_bytes = 500, .zero_level = cut.zero_level, .shard_ranks = cut.shard_ranks};
  if (cut.tensor == 1) return plan;
  plan.mesh = {{"data", cut.ranks / cut.tensor}, {"tensor", cut.tensor}};
  plan.layouts = {{"first.*", {{"tensor", Shard{0}}}},
                  {"second.weight", {{"tensor", Shard{cut.dim_of_second}}}}};
  return plan;
}

// A rank with a network, its optimizer and what parallelize put around them.
struct Rank {
  Rank(const Group& group, const Cut& cut, std::uint64_t seed, bool use_all = true)
      : net(make_net(seed)),
        adam(net->parameters(), torch::optim::AdamWOptions(0.01).amsgrad(true)),
        parallel(parallelize(*net, plan_of(cut), group)),
        uses_all(use_all) {
    parallel.shard(adam);
  }
  Rank(const Group& group, int zero_level, std::uint64_t seed, bool use_all = true)
      : Rank(group, Cut{.ranks = group.size(), .zero_level = zero_level}, seed, use_all) {}

  void train(int first, int count) {
    for (int step = first; step < first + count; ++step) {
      adam.zero_grad();
      test::loss_of(net, make_batch(step, parallel.data_group().rank()), uses_all).backward();
      adam.step();
    }
  }

  test::Net net;
  torch::optim::AdamW adam;
  Parallelized parallel;
  bool uses_all;
};

// Copies, on every rank.
std::vector<torch::Tensor> whole_parameters(Rank& rank) {
  rank.parallel.gather_parameters();
  std::vector<torch::Tensor> all;
  for (const torch::Tensor& parameter : rank.net->parameters()) {
    all.push_back(full(parameter.detach()).clone());
  }
  return all;
}

void expect_equal(const checkpoint::TensorMap& a, const checkpoint::TensorMap& b,
                  const std::string& what) {
  ASSERT_EQ(a.size(), b.size()) << what;
  for (const auto& [name, tensor] : a) {
    ASSERT_TRUE(b.contains(name)) << what << ": " << name;
    EXPECT_TRUE(torch::equal(tensor, b.at(name))) << what << ": " << name;
  }
}

std::string to_string(const Cut& cut) {
  return join_message(cut.ranks, " ranks, ZeRO level ", cut.zero_level, ", cut among ",
                      cut.shard_ranks, ", of which work together ", cut.tensor);
}

class Checkpoints : public ::testing::Test {
 protected:
  // Those of each of the one list loaded into each of the other, bit for bit.
  void expect_to_load(const std::vector<Cut>& saving, const std::vector<Cut>& loading);

  test::TemporaryFolder folder_;
  checkpoint::SaveOptions options_{.folder = folder_.path(), .prefix = "demo", .keep = 0};
};

void Checkpoints::expect_to_load(const std::vector<Cut>& saving, const std::vector<Cut>& loading) {
  for (const Cut& from : saving) {
    FullState saved;
    std::vector<torch::Tensor> end;
    std::filesystem::path path;
    run_ranks(from.ranks, [&](const Group& group) {
      Rank rank(group, from, 1);
      rank.train(0, 3);
      const State state{.epoch = from.ranks,
                        .step = from.zero_level,
                        .entries = {{"plan", "text"}},
                        .own = {{"rank", std::to_string(group.rank())}}};
      const auto written = save_checkpoint(options_, rank.parallel, *rank.net, &rank.adam, state);
      FullState whole = full_state(rank.parallel, *rank.net, rank.adam);
      rank.train(3, 2);
      const auto after = whole_parameters(rank);
      if (group.rank() == 0) {
        path = written;
        saved = std::move(whole);
        end = after;
      }
    });
    EXPECT_TRUE(checkpoint::find_damage(path).empty());
    for (const Cut& to : loading) {
      const std::string what = to_string(from) + " into " + to_string(to);
      run_ranks(to.ranks, [&](const Group& group) {
        Rank rank(group, to, 2);
        rank.train(7, 1);  // state of its own, which has to go
        const State state = load_checkpoint(path, rank.parallel, *rank.net, &rank.adam);
        EXPECT_EQ(state.epoch, from.ranks);
        EXPECT_EQ(state.entries.at("plan"), "text");
        EXPECT_EQ(state.of_ranks.size(), static_cast<std::size_t>(from.ranks));
        EXPECT_EQ(state.own.contains("rank"), group.rank() < from.ranks);
        const FullState whole = full_state(rank.parallel, *rank.net, rank.adam);
        if (group.rank() == 0) {
          expect_equal(whole.module, saved.module, what);
          expect_equal(whole.optimizer.tensors, saved.optimizer.tensors, what);
          EXPECT_EQ(whole.optimizer.scalars, saved.optimizer.scalars) << what;
        }
        // As if it had not been interrupted, also once more: counts of steps go on everywhere.
        rank.train(3, 1);
        const auto again = save_checkpoint({.folder = folder_.path(), .prefix = "again"},
                                           rank.parallel, *rank.net, &rank.adam, {});
        Rank second(group, to, 3);
        load_checkpoint(again, second.parallel, *second.net, &second.adam);
        second.train(4, 1);
        const auto after = whole_parameters(second);
        if (from == to && group.rank() == 0) {
          EXPECT_TRUE(test::all_equal(after, end)) << what;
        }
      });
    }
    // One process without a plan, and one file.
    test::Net alone = make_net(4);
    torch::optim::AdamW adam(alone->parameters());
    checkpoint::load(path, *alone, &adam);
    expect_equal(checkpoint::module_tensors(*alone), saved.module, "one process");
    checkpoint::export_safetensors(path, folder_ / "model.safetensors");
    expect_equal(checkpoint::read_safetensors(folder_ / "model.safetensors").tensors, saved.module,
                 "one file");
  }
}

TEST_F(Checkpoints, LoadIntoAnyNumberOfRanksAndAnyStageBitForBit) { expect_to_load(kCuts, kCuts); }

TEST_F(Checkpoints, OfGroupsThatAreCopiesOfEachOtherLoadBitForBit) {
  const Cut copies{.ranks = 4, .zero_level = 2, .shard_ranks = 2};
  expect_to_load({copies}, {copies, {.ranks = 3, .zero_level = 1}});
  expect_to_load({{.ranks = 3, .zero_level = 1}}, {copies});
}

TEST_F(Checkpoints, OfDataAndTensorParallelRanksLoadBitForBit) {
  const Cut whole{.ranks = 4, .zero_level = 0, .tensor = 2};
  const Cut alone{.ranks = 3, .zero_level = 0, .tensor = 3};
  const Cut optimizers{.ranks = 4, .zero_level = 1, .tensor = 2};
  const Cut all{.ranks = 4, .zero_level = 3, .tensor = 2};
  const Cut plain{.ranks = 3, .zero_level = 2};
  expect_to_load({whole}, {whole, alone, all});
  expect_to_load({alone}, {optimizers});
  expect_to_load({optimizers}, {optimizers, plain});
  expect_to_load({all}, {all, alone});
  expect_to_load({plain}, {optimizers, all});
}

TEST_F(Checkpoints, StatesOfDistributedModulesAreWholeOrOfTheSameLayouts) {
  const Cut cut{.ranks = 4, .zero_level = 0, .tensor = 2};
  const Cut turned{.ranks = 4, .zero_level = 0, .tensor = 2, .dim_of_second = 0};
  FullState saved;
  run_ranks(cut.ranks, [&](const Group& group) {
    Rank rank(group, cut, 1);
    rank.train(0, 2);
    const FullState whole = full_state(rank.parallel, *rank.net, rank.adam);
    const PartialState parts = partial_state(rank.parallel, *rank.net, rank.adam);
    EXPECT_EQ(parts.places.at("first.bias").layout, "[tensor: Shard(0)] on tensor=2");
    Rank same(group, cut, 2);
    load_partial_state(parts, same.parallel, *same.net, same.adam);
    const FullState loaded = full_state(same.parallel, *same.net, same.adam);
    Rank other(group, turned, 2);
    EXPECT_THAT(test::message_of<CheckpointError>(
                    [&] { load_partial_state(parts, other.parallel, *other.net, other.adam); }),
                HasSubstr("the given state has parameter second.weight as [tensor: Shard(1)] on "
                          "tensor=2, and it is [tensor: Shard(0)] on tensor=2 now"));
    if (group.rank() != 0) return;
    expect_equal(loaded.module, whole.module, "parts");
    expect_equal(loaded.optimizer.tensors, whole.optimizer.tensors, "parts");
    saved = whole;
  });
  run_ranks(turned.ranks, [&](const Group& group) {
    Rank rank(group, turned, 3);
    load_full_state(saved, rank.parallel, *rank.net, rank.adam);
    const FullState whole = full_state(rank.parallel, *rank.net, rank.adam);
    if (group.rank() != 0) return;
    expect_equal(whole.module, saved.module, "whole");
    expect_equal(whole.optimizer.tensors, saved.optimizer.tensors, "whole");
    EXPECT_EQ(whole.optimizer.scalars, saved.optimizer.scalars);
  });
}

TEST_F(Checkpoints, OfOneProcessLoadIntoACutAndParametersWithoutGradientsHaveNoState) {
  test::Net net = make_net(1);
  torch::optim::AdamW adam(net->parameters(), torch::optim::AdamWOptions(0.01).amsgrad(true));
  test::loss_of(net, make_batch(0, 0)).backward();
  adam.step();
  const auto path = checkpoint::save(options_, *net, &adam, {.epoch = 1, .step = 1});
  run_ranks(3, [&](const Group& group) {
    Rank rank(group, 3, 2, /*use_all=*/false);
    load_checkpoint(path, rank.parallel, *rank.net, &rank.adam);
    const auto again = save_checkpoint({.folder = folder_.path(), .prefix = "again"}, rank.parallel,
                                       *rank.net, &rank.adam, {.epoch = 1, .step = 1});
    if (group.rank() == 0) {
      EXPECT_THAT(checkpoint::differences(path, again), IsEmpty());
    }
  });
}

TEST_F(Checkpoints, EveryRankWritesItsShareOfWhatIsReplicated) {
  std::filesystem::path path;
  run_ranks(3, [&](const Group& group) {
    Rank rank(group, 0, 1);
    rank.train(0, 1);
    const auto written = save_checkpoint(options_, rank.parallel, *rank.net, &rank.adam, {});
    if (group.rank() == 0) path = written;
  });
  const checkpoint::Reader reader(path);
  std::vector<std::int64_t> bytes(3, 0);
  for (const auto& [name, file] : reader.index().files) {
    bytes[static_cast<std::size_t>(name.at(name.find("-0000") + 5) - '0')] += file.bytes;
  }
  EXPECT_GT(*std::ranges::min_element(bytes), *std::ranges::max_element(bytes) / 3);
  for (const auto& [name, tensor] : reader.section("model")) {
    EXPECT_EQ(tensor.pieces.size(), 1U) << name;
  }
}

struct Rotary : torch::nn::Module {
  at::Tensor weight{register_parameter("weight", torch::randn({5, 3}, at::kComplexFloat))};
  at::Tensor frequencies{register_buffer("frequencies", torch::randn({6}, at::kComplexDouble))};
};

TEST_F(Checkpoints, ComplexTensorsAreSavedByAllRanksAndLoadedByOne) {
  for (const int zero_level : {0, 2}) {
    std::filesystem::path path;
    checkpoint::TensorMap saved;
    run_ranks(2, [&](const Group& group) {
      const auto net = std::make_shared<Rotary>();
      torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
      Parallelized parallel = parallelize(*net, {.zero_level = zero_level}, group);
      parallel.shard(sgd);
      torch::view_as_real(net->weight).square().sum().backward();
      sgd.step();
      const auto written = save_checkpoint(options_, parallel, *net, &sgd, {.epoch = zero_level});
      parallel.gather_parameters();
      if (group.rank() != 0) return;
      path = written;
      saved = {{"weight", net->weight.detach().clone()}, {"frequencies", net->frequencies.clone()}};
    });
    const auto net = std::make_shared<Rotary>();
    torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    checkpoint::load(path, *net, &sgd);
    expect_equal(checkpoint::module_tensors(*net), saved, join_message("ZeRO level ", zero_level));
    EXPECT_TRUE(dynamic_cast<const torch::optim::SGDParamState&>(
                    *sgd.state().at(net->weight.unsafeGetTensorImpl()))
                    .momentum_buffer()
                    .is_complex());
  }
}

TEST_F(Checkpoints, WhatIsLeftOutStaysAsItIsOnEveryRank) {
  options_.leave_out = {"first.*"};
  std::filesystem::path path;
  std::vector<torch::Tensor> saved;
  run_ranks(3, [&](const Group& group) {
    Rank rank(group, 2, 1);
    rank.train(0, 2);
    const auto written =
        save_checkpoint(options_, rank.parallel, *rank.net, &rank.adam, {.epoch = 1});
    const auto all = whole_parameters(rank);
    if (group.rank() != 0) return;
    path = written;
    saved = all;
  });
  EXPECT_FALSE(checkpoint::Reader(path).section("model").contains("first.weight"));
  run_ranks(2, [&](const Group& group) {
    Rank rank(group, 2, 2);
    const auto before = whole_parameters(rank);
    load_checkpoint(path, rank.parallel, *rank.net, &rank.adam);
    const auto after = whole_parameters(rank);
    std::size_t place = 0;
    for (const auto& parameter : rank.net->named_parameters()) {
      const bool is_left_out = parameter.key().starts_with("first.");
      EXPECT_TRUE(torch::equal(after[place], is_left_out ? before[place] : saved[place]))
          << parameter.key();
      ++place;
    }
  });
}

TEST_F(Checkpoints, OneRankThatCannotWriteStopsAllAndPublishesNothing) {
  const auto thrown = run_ranks_catching(3, [&](const Group& group) {
    Rank rank(group, 2, 1);
    rank.train(0, 1);
    test::FailingFiles files(test::FailingFiles::How::kFail, 1, ENOSPC);
    checkpoint::SaveOptions options = options_;
    if (group.rank() == 1) options.files = &files;
    std::string message;
    try {
      save_checkpoint(options, rank.parallel, *rank.net, &rank.adam, {});
    } catch (const CheckpointError& error) {
      message = error.what();
    }
    EXPECT_TRUE(checkpoint::list_checkpoints(folder_.path(), "demo").empty());
    comm::barrier(group);
    // The run goes on, if it likes.
    rank.train(1, 1);
    save_checkpoint(options_, rank.parallel, *rank.net, &rank.adam, {});
    throw CheckpointError(message, "");
  });
  for (const auto& exception : thrown) {
    EXPECT_THAT(
        testing::message_of<CheckpointError>(exception),
        AllOf(HasSubstr("rank 1 cannot save: cannot write"), HasSubstr("No space left on device")));
  }
  EXPECT_EQ(checkpoint::list_checkpoints(folder_.path(), "demo").size(), 1U);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_.path()), {}), 1);
}

TEST_F(Checkpoints, WhatOneRankAloneCannotGiveStopsAll) {
  run_ranks(2, [&](const Group& group) {
    const auto error = [](const auto& call) { return test::message_of<CheckpointError>(call); };
    checkpoint::TensorPart part = checkpoint::replicated("model", "x", torch::ones({4}));
    if (group.rank() == 1) part.section = "Model";
    const auto expected = HasSubstr("rank 1 cannot save: tensor 'x' is to go to the section");
    EXPECT_THAT(error([&] { checkpoint::save_parts(options_, {part}, {}, group); }), expected);
    const auto make = [&]() -> checkpoint::Content {
      if (group.rank() == 1) throw std::out_of_range("mine");
      return {.parts = {part}};
    };
    EXPECT_THAT(error([&] { checkpoint::save_parts(options_, make, group); }),
                HasSubstr("rank 1 cannot save: mine"));
    checkpoint::AsyncSaver saver(group);
    saver.save(options_, {part}, {});
    EXPECT_THAT(error([&] { saver.finish(); }), expected);
    saver.save(options_, make);
    EXPECT_THAT(error([&] { saver.finish(); }), HasSubstr("rank 1 cannot save: mine"));
    comm::barrier(group);  // rank 0 has removed what it had begun
    EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
    comm::barrier(group);
    part.section = "model";
    saver.save(options_, {part}, {.epoch = 1});
    EXPECT_EQ(saver.finish(), folder_ / "demo-1_0");
  });
}

TEST_F(Checkpoints, RanksAgreeOnExceptionsOfAnyType) {
  run_ranks(2, [&](const Group& group) {
    const auto work = [&]() -> std::string {
      if (group.rank() == 0) return {};
      throw test::Crash();  // NOLINT(bugprone-std-exception-baseclass): what is tested
    };
    EXPECT_THAT(test::message_of<CheckpointError>(
                    [&] { checkpoint::agree(group, "cannot do this", work); }),
                HasSubstr("rank 1 cannot do this: an exception that is no std::exception"));
  });
}

TEST_F(Checkpoints, DamageThatOneRankSeesStopsAllBeforeAnythingChanges) {
  std::filesystem::path path;
  run_ranks(2, [&](const Group& group) {
    Rank rank(group, 3, 1);
    rank.train(0, 1);
    const auto written = save_checkpoint(options_, rank.parallel, *rank.net, &rank.adam, {});
    if (group.rank() == 0) path = written;
  });
  // The last byte of what rank 1 wrote belongs to a slice that rank 1 alone reads.
  const auto file = path / "optimizer-00001-of-00002.safetensors";
  std::string bytes = test::read_file(file);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  test::write_file(file, bytes);
  const auto thrown = run_ranks_catching(2, [&](const Group& group) {
    Rank rank(group, 3, 2);
    rank.train(0, 1);
    const FullState before = full_state(rank.parallel, *rank.net, rank.adam);
    try {
      load_checkpoint(path, rank.parallel, *rank.net, &rank.adam);
    } catch (const CheckpointError&) {
      const FullState after = full_state(rank.parallel, *rank.net, rank.adam);
      expect_equal(before.module, after.module, "after a failed load");
      expect_equal(before.optimizer.tensors, after.optimizer.tensors, "after a failed load");
      throw;
    }
  });
  for (const auto& exception : thrown) {
    EXPECT_THAT(testing::message_of<CheckpointError>(exception),
                AllOf(HasSubstr("rank 1 cannot load: checkpoint file " + file.string()),
                      HasSubstr("is damaged")));
  }
}

TEST_F(Checkpoints, OfAnotherModelOrOptimizerAreRefusedByAllRanks) {
  std::filesystem::path path;
  run_ranks(2, [&](const Group& group) {
    Rank rank(group, 1, 1);
    rank.train(0, 1);
    const auto written = save_checkpoint(options_, rank.parallel, *rank.net, &rank.adam, {});
    if (group.rank() == 0) path = written;
  });
  run_ranks(2, [&](const Group& group) {
    torch::nn::Linear other(3, 2);
    torch::optim::SGD sgd(other->parameters(), 0.1);
    Parallelized parallel = parallelize(*other, plan_of({.ranks = 2, .zero_level = 3}), group);
    parallel.shard(sgd);
    EXPECT_THAT(
        test::message_of<CheckpointError>([&] { load_checkpoint(path, parallel, *other, &sgd); }),
        HasSubstr("is of another model"));
    test::Net net = make_net(1);
    torch::optim::SGD of_net(net->parameters(), 0.1);
    Parallelized same = parallelize(*net, plan_of({.ranks = 2, .zero_level = 2}), group);
    same.shard(of_net);
    EXPECT_THAT(
        test::message_of<CheckpointError>([&] { load_checkpoint(path, same, *net, &of_net); }),
        HasSubstr("holds the state of AdamW, and the optimizer is SGD"));
  });
}

TEST_F(Checkpoints, ThatDifferBetweenRanksAreRefused) {
  test::Net net = make_net(1);
  const auto one = checkpoint::save(options_, *net, nullptr, {.epoch = 1, .step = 1});
  const auto two = checkpoint::save(options_, *net, nullptr, {.epoch = 1, .step = 2});
  run_ranks(2, [&](const Group& group) {
    Rank rank(group, 1, 1);
    EXPECT_THAT(
        test::message_of<CheckpointError>([&] {
          load_checkpoint(group.rank() == 0 ? one : two, rank.parallel, *rank.net, nullptr);
        }),
        AllOf(HasSubstr("ranks found different checkpoints"), HasSubstr("step 2, number 2")));
  });
}

TEST_F(Checkpoints, GiveACutModelSomeWeightsUnderOtherNames) {
  torch::nn::Linear pretrained(13, 13);
  checkpoint::write_safetensors(folder_ / "pretrained.safetensors",
                                checkpoint::module_tensors(*pretrained));
  run_ranks(3, [&](const Group& group) {
    Rank rank(group, 3, 1);
    rank.train(0, 1);
    const FullState before = full_state(rank.parallel, *rank.net, rank.adam);
    const auto loaded = load_model(
        folder_ / "pretrained.safetensors", rank.parallel, *rank.net,
        {.rename = [](const std::string& name) { return "second." + name; }, .strict = false});
    EXPECT_TRUE(loaded.unexpected.empty());
    EXPECT_THAT(loaded.missing, ::testing::Contains("first.weight"));
    const FullState after = full_state(rank.parallel, *rank.net, rank.adam);
    if (group.rank() != 0) return;
    EXPECT_TRUE(torch::equal(after.module.at("second.weight"), pretrained->weight));
    EXPECT_TRUE(torch::equal(after.module.at("first.weight"), before.module.at("first.weight")));
  });
}

TEST_F(Checkpoints, AreSavedWhileTrainingGoesOn) {
  run_ranks(2, [&](const Group& group) {
    Rank rank(group, 2, 1);
    checkpoint::AsyncSaver saver(group);
    std::vector<FullState> expected;
    for (int step = 0; step < 4; ++step) {
      rank.train(step, 1);
      expected.push_back(full_state(rank.parallel, *rank.net, rank.adam));
      State state{.epoch = 1, .step = step};
      const auto parts = parts_to_save(rank.parallel, *rank.net, &rank.adam, state);
      EXPECT_TRUE(saver.save(options_, parts, state));
    }
    EXPECT_EQ(saver.finish(), folder_ / "demo-1_3");
    for (int step = 0; step < 4; ++step) {
      load_checkpoint(folder_ / checkpoint::checkpoint_name("demo", 1, step), rank.parallel,
                      *rank.net, &rank.adam);
      const FullState loaded = full_state(rank.parallel, *rank.net, rank.adam);
      const auto& [module, optimizer] = expected[static_cast<std::size_t>(step)];
      expect_equal(loaded.module, module, "step");
      expect_equal(loaded.optimizer.tensors, optimizer.tensors, "step");
    }
  });
}

TEST_F(Checkpoints, AFailureWhileSavingReachesAllRanks) {
  run_ranks(2, [&](const Group& group) {
    Rank rank(group, 1, 1);
    std::vector<std::string> failures;
    checkpoint::AsyncSaver saver(
        group, {.when_busy = checkpoint::WhenBusy::kSkip,
                .on_failure = [&](const std::string& what) { failures.push_back(what); }});
    test::FailingFiles files(test::FailingFiles::How::kFail, 1, EIO);
    checkpoint::SaveOptions options = options_;
    if (group.rank() == 1) options.files = &files;
    State state{.epoch = 1, .step = 1};
    saver.save(options, parts_to_save(rank.parallel, *rank.net, &rank.adam, state), state);
    EXPECT_EQ(saver.finish(), std::nullopt);
    EXPECT_THAT(failures, ElementsAre(HasSubstr("rank 1 cannot save")));
  });
}

}  // namespace
}  // namespace trireme
