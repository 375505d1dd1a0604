// SPDX-License-Identifier: Apache-2.0
// Checkpoints of modules with distributed parameters, buffers and optimizer state: they are those
// of one process, and load into any mesh and layouts.
#include <trireme/checkpoint/distributed_checkpoint.h>

#include "tests/ranks/tensor/checkpointed_net.h"
#include "tests/ranks/thread_ranks.h"
#include <trireme/base/error.h>
#include <trireme/checkpoint/async_saver.h>
#include <trireme/checkpoint/convert.h>
#include <trireme/checkpoint/distributed_part.h>
#include <trireme/checkpoint/inspect.h>
#include <trireme/checkpoint/module_state.h>
#include <trireme/checkpoint/optimizer_state.h>
#include <trireme/checkpoint/reader.h>
#include <trireme/comm/collectives.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tests/temporary_folder.h>
#include <torch/torch.h>

#include <filesystem>
#include <functional>
#include <iterator>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace trireme::checkpoint {
namespace {

using comm::Group;
using test::Cut;
using test::CutNet;
using test::message_of;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::run_ranks;
using testing::run_ranks_catching;
namespace fs = std::filesystem;

using MakeOptimizer =
    std::function<std::unique_ptr<torch::optim::Optimizer>(const std::vector<torch::Tensor>&)>;

template <typename Kind, typename Options>
MakeOptimizer made_with(const Options& options) {
  return [options](const std::vector<torch::Tensor>& parameters) {
    return std::make_unique<Kind>(parameters, options);
  };
}

MakeOptimizer adam() {
  return made_with<torch::optim::AdamW>(torch::optim::AdamWOptions(0.01).amsgrad(true));
}

// A net, distributed as a cut says, and its optimizer.
struct Rank {
  Rank(const Group& group, const Cut& cut, int number, const MakeOptimizer& make = adam())
      : net(test::make_cut_net(number)) {
    if (!cut.axes.empty()) {
      mesh = DeviceMesh(group, cut.axes);
      test::distribute_net(net, mesh, cut.layouts);
    }
    optimizer = make(net->parameters());
  }

  fs::path save(const SaveOptions& options, const State& state = {}) {
    return mesh.defined() ? checkpoint::save(options, *net, optimizer.get(), state, mesh)
                          : checkpoint::save(options, *net, optimizer.get(), state);
  }
  State load(const fs::path& path) {
    return mesh.defined() ? checkpoint::load(path, *net, optimizer.get(), mesh)
                          : checkpoint::load(path, *net, optimizer.get());
  }
  void step(int number) { test::step(net, *optimizer, number); }

  CutNet net;
  DeviceMesh mesh;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
};

void expect_equal(const TensorMap& tensors, const TensorMap& expected, const std::string& what) {
  ASSERT_EQ(tensors.size(), expected.size()) << what;
  for (const auto& [name, tensor] : full_tensors(tensors)) {
    ASSERT_TRUE(expected.contains(name)) << what << ": " << name;
    EXPECT_TRUE(torch::equal(tensor, expected.at(name))) << what << ": " << name;
  }
}

// Bit for bit those of a plain rank.
void expect_like(Rank& rank, Rank& plain, const std::string& what) {
  expect_equal(module_tensors(*rank.net), module_tensors(*plain.net), what);
  const OptimizerState state = optimizer_state(*rank.optimizer, *rank.net);
  const OptimizerState expected = optimizer_state(*plain.optimizer, *plain.net);
  expect_equal(state.tensors, expected.tensors, what);
  EXPECT_EQ(state.scalars, expected.scalars) << what;
}

class DistributedCheckpoint : public ::testing::Test {
 protected:
  // What one process would have saved after two steps.
  fs::path save_plain(const MakeOptimizer& make = adam()) {
    Rank rank(Group::self(), {}, 1, make);
    rank.step(1);
    rank.step(2);
    return rank.save({.folder = folder_.path(), .prefix = "plain"}, {.epoch = 1, .step = 2});
  }

  // The same by the ranks of a cut.
  fs::path save_cut(const Cut& cut, const MakeOptimizer& make = adam()) {
    fs::path path;
    run_ranks(cut.ranks(), [&](const Group& group) {
      Rank rank(group, cut, 1, make);
      rank.step(1);
      rank.step(2);
      const fs::path written =
          rank.save({.folder = folder_.path(), .prefix = "cut"}, {.epoch = 1, .step = 2});
      if (group.rank() == 0) path = written;
    });
    return path;
  }

  test::TemporaryFolder folder_;
};

TEST_F(DistributedCheckpoint, AreThoseOfOneProcessAndLoadIntoAnyMeshAndLayouts) {
  const fs::path plain_path = save_plain();
  for (const Cut& from : test::cuts()) {
    const fs::path path = save_cut(from);
    EXPECT_THAT(differences(plain_path, path), IsEmpty()) << from.what;
    EXPECT_THAT(find_damage(path), IsEmpty()) << from.what;
    for (const Cut& to : test::cuts()) {
      const std::string what = from.what + " into " + to.what;
      run_ranks(to.ranks(), [&](const Group& group) {
        Rank plain(Group::self(), {}, 1);
        for (const int number : {1, 2}) plain.step(number);
        Rank rank(group, to, 5);
        rank.step(9);  // state of its own, which has to go
        const State state = rank.load(path);
        EXPECT_EQ(state.step, 2);
        expect_like(rank, plain, what);
        plain.step(3);
        rank.step(3);
        expect_like(rank, plain, what + ", a step later");
      });
    }
  }
}

TEST_F(DistributedCheckpoint, HaveTheStateOfEveryElementwiseOptimizer) {
  const std::vector<MakeOptimizer> kinds = {
      made_with<torch::optim::SGD>(torch::optim::SGDOptions(0.1).momentum(0.9)),
      made_with<torch::optim::Adam>(torch::optim::AdamOptions(0.01)),
      made_with<torch::optim::RMSprop>(
          torch::optim::RMSpropOptions(0.01).momentum(0.5).centered(true)),
      made_with<torch::optim::Adagrad>(torch::optim::AdagradOptions(0.1))};
  const Cut cut = test::cuts().at(3);
  for (const MakeOptimizer& make : kinds) {
    const fs::path plain_path = save_plain(make);
    EXPECT_THAT(differences(plain_path, save_cut(cut, make)), IsEmpty());
    run_ranks(cut.ranks(), [&](const Group& group) {
      Rank plain(Group::self(), {}, 1, make);
      for (const int number : {1, 2, 3}) plain.step(number);
      Rank rank(group, cut, 5, make);
      rank.load(plain_path);
      rank.step(3);
      expect_like(rank, plain, "an optimizer");
    });
  }
}

TEST_F(DistributedCheckpoint, AreWrittenOnceByWhoeverHoldsThem) {
  const fs::path plain_path = save_plain();
  const Cut cut{
      .what = "replicated along data",
      .axes = {{"data", 3}, {"tensor", 2}},
      .layouts = {{"first.weight", {{"tensor", Shard{0}}}}, {"cube", {{"tensor", Shard{1}}}}}};
  const Reader reader(save_cut(cut));
  std::int64_t bytes = 0;
  std::set<std::string> writers;
  for (const auto& [name, file] : reader.index().files) {
    bytes += file.bytes - file.header_bytes;
    writers.insert(name.substr(name.find('-')));
  }
  std::int64_t plain_bytes = 0;
  for (const auto& [name, file] : Reader(plain_path).index().files) {
    plain_bytes += file.bytes - file.header_bytes;
  }
  EXPECT_EQ(bytes, plain_bytes);
  EXPECT_EQ(writers.size(), 6U) << "some rank had nothing to write";
  const auto& pieces = reader.section("model").at("cube").pieces;
  ASSERT_EQ(pieces.size(), 2U);
  std::set<std::string> slices;
  for (const Piece& piece : pieces) slices.insert(describe(piece.slice));
  EXPECT_EQ(slices, (std::set<std::string>{"[0:3, 0:2, 0:5]", "[0:3, 2:4, 0:5]"}));
  EXPECT_EQ(reader.section("optimizer").at("optimizer.cube.exp_avg").pieces.size(), 2U);
  EXPECT_THAT(describe_checkpoint(reader.path()), HasSubstr("[3, 4, 5] in 2 parts"));
}

TEST_F(DistributedCheckpoint, AreSavedWhileTrainingGoesOn) {
  const fs::path plain_path = save_plain();
  const Cut cut = test::cuts().at(4);
  run_ranks(cut.ranks(), [&](const Group& group) {
    Rank rank(group, cut, 1);
    rank.step(1);
    rank.step(2);
    AsyncSaver saver(rank.mesh.group());
    saver.save({.folder = folder_.path()}, [&] {
      Content content{.parts = {}, .state = {.epoch = 1, .step = 2}};
      content.parts = parts_of(*rank.net, rank.optimizer.get(), content.state, rank.mesh);
      return content;
    });
    rank.step(3);
    const auto path = saver.finish();
    ASSERT_TRUE(path);
    if (group.rank() == 0) {
      EXPECT_THAT(differences(plain_path, *path), IsEmpty());
    }
  });
}

TEST_F(DistributedCheckpoint, AreReadByRanksAloneToo) {
  const fs::path path = save_plain();
  const Cut cut = test::cuts().at(2);
  run_ranks(cut.ranks(), [&](const Group& group) {
    Rank plain(Group::self(), {}, 5);
    plain.load(path);
    Rank rank(group, cut, 5);
    if (group.rank() != 0) comm::barrier(group);  // one after the others
    load(path, *rank.net, rank.optimizer.get());
    if (group.rank() == 0) comm::barrier(group);
    expect_like(rank, plain, "alone");
  });
}

TEST_F(DistributedCheckpoint, GiveSomeWeightsUnderOtherNames) {
  const fs::path path = save_plain();
  const Cut cut = test::cuts().at(1);
  run_ranks(cut.ranks(), [&](const Group& group) {
    Rank plain(Group::self(), {}, 5);
    plain.load(path);
    Rank rank(group, cut, 5);
    const auto swap = [](const std::string& name) {
      if (name == "cube") return std::string("image2");
      return name == "first.weight" ? name : std::string();
    };
    const LoadedModel loaded =
        load_model(path, *rank.net, rank.mesh, {.rename = swap, .strict = false});
    EXPECT_THAT(loaded.unexpected, ::testing::ElementsAre("cube"));
    EXPECT_THAT(loaded.missing, ::testing::Contains("second.weight"));
    EXPECT_TRUE(torch::equal(full(rank.net->first->weight.detach()), plain.net->first->weight));
    EXPECT_FALSE(torch::equal(full(rank.net->cube.detach()), plain.net->cube));
  });
}

TEST_F(DistributedCheckpoint, AndSafetensorsFilesOfFullTensors) {
  Rank plain(Group::self(), {}, 1);
  write_safetensors(folder_ / "plain.safetensors", module_tensors(*plain.net));
  const Cut cut = test::cuts().at(4);
  run_ranks(cut.ranks(), [&](const Group& group) {
    Rank rank(group, cut, 1);
    const TensorMap own = module_tensors(*rank.net);
    EXPECT_THAT(
        message_of<UsageError>([&] { write_safetensors(folder_ / "not.safetensors", own); }),
        AllOf(HasSubstr("cannot write tensor 'count' to a safetensors file: it is a distributed "
                        "tensor, Long [5]"),
              HasSubstr("checkpoint::full_tensors")));
    const TensorMap whole = full_tensors(own);
    if (group.rank() == 0) write_safetensors(folder_ / "cut.safetensors", whole);
    comm::barrier(group);
    EXPECT_EQ(test::read_file(folder_ / "cut.safetensors"),
              test::read_file(folder_ / "plain.safetensors"));
    EXPECT_FALSE(fs::exists(folder_ / "not.safetensors"));

    Rank other(group, test::cuts().at(4), 5);
    load_model(folder_ / "plain.safetensors", *other.net, other.mesh);
    expect_equal(module_tensors(*other.net), module_tensors(*plain.net), "from a file");
    Rank third(group, test::cuts().at(4), 6);
    load_module_tensors(read_safetensors(folder_ / "plain.safetensors").tensors, *third.net,
                        "plain.safetensors");
    expect_equal(module_tensors(*third.net), module_tensors(*plain.net), "from whole tensors");
  });
  const fs::path path = save_cut(test::cuts().at(3));
  export_safetensors(path, folder_ / "exported.safetensors");
  Rank read(Group::self(), {}, 5);
  load_module_tensors(read_safetensors(folder_ / "exported.safetensors").tensors, *read.net,
                      "file");
  Rank expected(Group::self(), {}, 5);
  expected.load(path);
  expect_equal(module_tensors(*read.net), module_tensors(*expected.net), "exported");
}

TEST_F(DistributedCheckpoint, AndTorchSaveOfAPlainModuleWithTheFullTensors) {
  const Cut cut = test::cuts().at(1);
  run_ranks(cut.ranks(), [&](const Group& group) {
    Rank rank(group, cut, 1);
    std::stringstream file;
    EXPECT_THAT(message_of<c10::Error>([&] { torch::save(rank.net, file); }),
                AllOf(HasSubstr("a distributed tensor has no memory of its own"),
                      HasSubstr("trireme::save_checkpoint")));
    CutNet plain = test::make_cut_net(5);
    load_module_tensors(full_tensors(module_tensors(*rank.net)), *plain, "this module");
    std::stringstream own;
    torch::save(plain, own);
    CutNet loaded = test::make_cut_net(6);
    torch::load(loaded, own);
    expect_equal(module_tensors(*rank.net), module_tensors(*loaded), "torch::save");
  });
}

TEST_F(DistributedCheckpoint, AreRefusedWhereRanksOfTheMeshAreMissing) {
  const Cut cut{.what = "",
                .axes = {{"data", 2}, {"tensor", 2}},
                .layouts = {{"first.weight", {{"data", Shard{0}}, {"tensor", Shard{1}}}}}};
  run_ranks(4, [&](const Group& group) {
    Rank rank(group, cut, 1);
    const SaveOptions options{.folder = folder_.path(), .prefix = "partly"};
    EXPECT_THAT(
        message_of<UsageError>([&] { save(options, *rank.net, rank.optimizer.get(), {}); }),
        AllOf(
            HasSubstr("tensor 'first.weight' is distributed as [data: Shard(0), tensor: Shard(1)] "
                      "over the mesh data=2, tensor=2, and its axis data is none of the ranks "
                      "that save (one rank)"),
            HasSubstr("save with the mesh that the module is distributed on")));
    const DeviceMesh part = rank.mesh.submesh({"tensor"});
    EXPECT_THAT(message_of<CheckpointError>([&] { save(options, *rank.net, nullptr, {}, part); }),
                HasSubstr("rank 0 cannot save: tensor 'first.weight' is distributed as"));
    // As many ranks, arranged otherwise.
    const DeviceMesh turned(group, {{"tensor", 2}, {"data", 2}});
    EXPECT_THAT(message_of<CheckpointError>([&] { save(options, *rank.net, nullptr, {}, turned); }),
                AllOf(HasSubstr("rank 1 cannot save: tensor 'first.weight'"),
                      HasSubstr("its axis data is not that of the ranks that save "
                                "(tensor=2, data=2)")));
    // Two of the four give what they have.
    State state;
    const auto parts = parts_of(*rank.net, nullptr, state, rank.mesh);
    const std::vector<int> some{0, 1};
    const Group half = group.subgroup(some);
    if (group.rank() < 2) {
      EXPECT_THAT(message_of<CheckpointError>([&] { save_parts(options, parts, state, half); }),
                  AllOf(HasSubstr("cannot save: the part"), HasSubstr("of tensor 'count'"),
                        HasSubstr("held by the ranks [0, 1, 2, 3] of 2")));
      std::vector<TensorPart> own;
      for (const TensorPart& item : parts) {
        if (item.name == "first.weight") own.push_back(item);
      }
      EXPECT_THAT(message_of<CheckpointError>([&] { save_parts(options, own, state, half); }),
                  HasSubstr("has not all of tensor 'first.weight' [10, 7]: 35 of 70 elements are "
                            "missing"));
    }
    comm::barrier(group);
    EXPECT_TRUE(fs::is_empty(folder_.path()));
  });
}

TEST_F(DistributedCheckpoint, AreRefusedOutsideOfTheMesh) {
  const fs::path path = save_plain();
  run_ranks(3, [&](const Group& group) {
    const DeviceMesh mesh(group, {0, 2}, {{"tensor", 2}});
    CutNet net = test::make_cut_net(4);
    if (group.rank() != 1) {
      test::distribute_net(net, mesh, {{"cube", {{"tensor", Shard{2}}}}});
      load(path, *net, nullptr, mesh);
      return;
    }
    const auto outside =
        HasSubstr("this rank is not in the mesh tensor=2 whose ranks save or load a checkpoint");
    EXPECT_THAT(message_of<UsageError>([&] { load(path, *net, nullptr, mesh); }), outside);
    EXPECT_THAT(message_of<UsageError>([&] { load_model(path, *net, mesh); }), outside);
    EXPECT_THAT(
        message_of<UsageError>([&] { save({.folder = folder_.path()}, *net, nullptr, {}, mesh); }),
        outside);
    EXPECT_THAT(message_of<UsageError>([&] { load(path, *net, nullptr, DeviceMesh()); }),
                HasSubstr("not in the mesh (none)"));
    EXPECT_THAT(message_of<UsageError>(
                    [&] { load(path, *net, nullptr, DeviceMesh::unconnected({{"tensor", 2}})); }),
                outside);
  });
}

TEST_F(DistributedCheckpoint, OfOtherShapesAreRefusedBeforeAnythingChanges) {
  torch::nn::Linear other(7, 11);
  const fs::path path =
      checkpoint::save({.folder = folder_.path(), .prefix = "other"}, *other, nullptr, {});
  // The same names with another shape, and state of another shape.
  CutNet wide = test::make_cut_net(1);
  wide->cube.set_data(torch::zeros({3, 5, 4}));
  torch::optim::AdamW wide_optimizer(wide->parameters());
  const fs::path wide_path =
      checkpoint::save({.folder = folder_.path(), .prefix = "wide"}, *wide, &wide_optimizer, {});
  const fs::path sgd_path = save_plain(made_with<torch::optim::SGD>(torch::optim::SGDOptions(0.1)));
  const Cut cut = test::cuts().at(1);
  run_ranks(cut.ranks(), [&](const Group& group) {
    Rank rank(group, cut, 1);
    rank.step(1);
    Rank plain(Group::self(), {}, 1);
    plain.step(1);
    EXPECT_THAT(message_of<CheckpointError>([&] { rank.load(path); }),
                HasSubstr("is of another model"));
    EXPECT_THAT(message_of<CheckpointError>([&] { rank.load(wide_path); }),
                AllOf(HasSubstr("rank 0 cannot load"),
                      HasSubstr("parameter 'cube' has shape [3, 5, 4] there and [3, 4, 5] in the "
                                "model")));
    EXPECT_THAT(message_of<CheckpointError>(
                    [&] { load_model(wide_path, *rank.net, rank.mesh, {.strict = false}); }),
                HasSubstr("'cube' is F32 [3, 5, 4] there and F32 [3, 4, 5] in the model"));
    EXPECT_THAT(message_of<CheckpointError>(
                    [&] { load(sgd_path, *rank.net, rank.optimizer.get(), rank.mesh); }),
                HasSubstr("holds the state of SGD, and the optimizer is AdamW"));
    expect_like(rank, plain, "after loads that failed");
  });
}

TEST_F(DistributedCheckpoint, DamageThatOneRankReadsStopsAllBeforeAnythingChanges) {
  const Cut cut = test::cuts().at(1);
  const fs::path path = save_cut(cut);
  const fs::path file = path / "model-00001-of-00002.safetensors";
  std::string bytes = test::read_file(file);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  test::write_file(file, bytes);
  const auto thrown = run_ranks_catching(cut.ranks(), [&](const Group& group) {
    Rank rank(group, cut, 1);
    Rank plain(Group::self(), {}, 1);
    try {
      rank.load(path);
    } catch (const CheckpointError&) {
      expect_like(rank, plain, "after a load that failed");
      throw;
    }
  });
  for (const auto& exception : thrown) {
    EXPECT_THAT(
        testing::message_of<CheckpointError>(exception),
        AllOf(HasSubstr("cannot load: checkpoint file " + file.string()), HasSubstr("is damaged")));
  }
}

TEST_F(DistributedCheckpoint, AreReadNoFurtherThanARankNeeds) {
  constexpr std::int64_t kBlock = 1 << 20;
  const at::Tensor large = torch::randn({1 << 10, 1 << 10});  // four blocks, of 256 rows each
  const SaveOptions options{.folder = folder_.path()};
  const fs::path path =
      save_parts(options, {replicated("model", "large", large)}, {}, comm::Group::self());
  run_ranks(4, [&](const Group& group) {
    const DeviceMesh mesh(group, {{"tensor", 4}});
    const auto read = [&](const fs::path& from, const Placement& placement) {
      Reader reader(from);
      const at::Tensor like = distribute(large, Layout(mesh, {{"tensor", placement}}));
      const at::Tensor values = read_like(reader, "model", "large", like);
      EXPECT_EQ(layout_of(values), layout_of(like));
      EXPECT_TRUE(torch::equal(to_local(values), to_local(like)));
      return reader.bytes_read();
    };
    EXPECT_EQ(read(path, Shard{0}), kBlock);
    EXPECT_EQ(read(path, Shard{1}), 4 * kBlock) << "every block has columns of all ranks";
    const auto columns = part_of(
        "model", "large", distribute(large, Layout(mesh, {{"tensor", Shard{1}}})), grid_of(mesh));
    const fs::path cut =
        save_parts({.folder = folder_.path(), .prefix = "cut"}, {columns}, {}, group);
    EXPECT_EQ(read(cut, Shard{1}), kBlock);
  });
}

TEST_F(DistributedCheckpoint, PartsAreMadeOfWhatARankHas) {
  run_ranks(2, [&](const Group& group) {
    const DeviceMesh mesh(group, {{"tensor", 2}});
    const at::Tensor tensor = torch::arange(12.).view({3, 4});
    const auto part = [&](const Placement& placement) {
      return part_of("model", "x", distribute(tensor, Layout(mesh, {{"tensor", placement}})),
                     grid_of(mesh));
    };
    EXPECT_EQ(part(Replicate{}).slice, Slice(whole({3, 4})));
    EXPECT_EQ(part(Replicate{}).holders, (std::vector<int>{0, 1}));
    const TensorPart columns = part(Shard{1});
    const std::int64_t first = std::int64_t{2} * group.rank();
    EXPECT_EQ(columns.slice, Slice(Box{.begin = {0, first}, .size = {3, 2}}));
    EXPECT_EQ(columns.holders, std::vector<int>{group.rank()});
    EXPECT_TRUE(torch::equal(columns.local, tensor.narrow(1, first, 2)));
    EXPECT_EQ(part(FlatShard{{{5, 7}, {0, 5}}}).slice,
              Slice(group.rank() == 0 ? FlatRange{.begin = 5, .end = 12}
                                      : FlatRange{.begin = 0, .end = 5}));
    EXPECT_THAT(message_of<UsageError>([&] { part(Partial{}); }),
                HasSubstr("is still to be reduced: no rank has elements of it"));
    const at::Tensor sum = distribute(tensor, Layout(mesh, {{"tensor", Partial{}}}));
    EXPECT_TRUE(torch::equal(to_local(completed(sum)), tensor));
    EXPECT_TRUE(part_of("model", "x", tensor, grid_of(mesh)).is_replicated);
    const auto save_distributed = [&] {
      save_parts({.folder = folder_.path()}, {replicated("model", "x", sum)}, {}, group);
    };
    EXPECT_THAT(message_of<CheckpointError>(save_distributed),
                AllOf(HasSubstr("of tensor 'x' is a distributed tensor, "),
                      HasSubstr("checkpoint::part_of")));
  });
}

}  // namespace
}  // namespace trireme::checkpoint
