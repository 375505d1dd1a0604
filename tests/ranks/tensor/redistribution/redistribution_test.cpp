// SPDX-License-Identifier: Apache-2.0
// What redistribution promises beside right values: order of sums, memory, formats, errors, several
// tensors at once. Values of all pairs of layouts are in redistribution_pairs_test.cpp.
#include <trireme/tensor/redistribution/redistribution.h>

#include <trireme/base/error.h>
#include <trireme/comm/collectives.h>
#include <trireme/comm/engines/shm/communicator.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <gmock/gmock.h>
#include <tests/ranks/tensor/redistribution/held_tensors.h>
#include <tests/ranks/thread_ranks.h>

#include <limits>

namespace trireme::tensor {
namespace {

using test::Lengths;
using test::same_bits;
using ::testing::AllOf;
using ::testing::HasSubstr;
using trireme::testing::message_of;
using trireme::testing::run_ranks;
using trireme::testing::run_ranks_catching;

using Placements = std::vector<Placement>;

Redistribution path_of(const DeviceMesh& mesh, const Placements& from, const Placements& to,
                       const Lengths& sizes, at::ScalarType dtype = at::kFloat) {
  return {sizes, dtype, Layout(mesh, from), Layout(mesh, to)};
}

DeviceMesh line(const comm::Group& group) { return {group, {{"a", group.size()}}}; }

// One tensor a rank, the same on all of them.
std::vector<at::Tensor> random_terms(int ranks, const Lengths& sizes) {
  std::vector<at::Tensor> terms;
  for (int rank = 0; rank < ranks; ++rank) terms.push_back(at::randn(sizes));
  return terms;
}

TEST(Redistribution, AddsInRankOrder) {
  const std::vector<at::Tensor> terms = random_terms(3, {31, 17});
  const at::Tensor sum = (terms[0] + terms[1]) + terms[2];
  run_ranks(3, [&](const comm::Group& group) {
    const DeviceMesh mesh = line(group);
    const at::Tensor& term = terms[static_cast<std::size_t>(group.rank())];
    EXPECT_TRUE(same_bits(path_of(mesh, {Partial{}}, {Replicate{}}, {31, 17})(term), sum));
    for (const int dim : {0, 1}) {
      const Layout cut(mesh, {Shard{dim}});
      EXPECT_TRUE(same_bits(path_of(mesh, {Partial{}}, {Shard{dim}}, {31, 17})(term),
                            test::slice_of(sum, cut, mesh.coordinate())));
    }
  });
}

TEST(Redistribution, LeavesWhatItIsGivenAsItIs) {
  const std::vector<at::Tensor> terms = random_terms(2, {6, 4});
  run_ranks(2, [&](const comm::Group& group) {
    const DeviceMesh mesh = line(group);
    const at::Tensor local = terms[static_cast<std::size_t>(group.rank())].clone();
    const at::Tensor before = local.clone();
    const Placements all = {Partial{}, Replicate{}, Shard{0}, Shard{1}};
    for (const Placement& from : all) {
      for (const Placement& to : all) {
        if (from.is_shard() || from == to) continue;
        const at::Tensor result = path_of(mesh, {from}, {to}, {6, 4})(local);
        EXPECT_TRUE(same_bits(local, before)) << from.to_string() << " to " << to.to_string();
        const bool is_part = from.is_replicate() && to.is_shard(0);
        EXPECT_EQ(result.is_alias_of(local), is_part)
            << from.to_string() << " to " << to.to_string();
        EXPECT_TRUE(result.is_contiguous());
      }
    }
    EXPECT_TRUE(path_of(mesh, {Partial{}}, {Partial{}}, {6, 4})(local).is_same(local));
  });
}

TEST(Redistribution, KeepsTheSignOfZerosThroughPartial) {
  run_ranks(2, [](const comm::Group& group) {
    const DeviceMesh mesh = line(group);
    for (const at::ScalarType dtype : {at::kFloat, at::kHalf, at::kComplexDouble}) {
      at::Tensor zeros = at::full({2}, -0.0, dtype);
      if (dtype == at::kComplexDouble)
        zeros = at::full({2}, c10::complex<double>(-0.0, 0.0), dtype);
      const at::Tensor partial = path_of(mesh, {Replicate{}}, {Partial{}}, {2}, dtype)(zeros);
      EXPECT_TRUE(same_bits(path_of(mesh, {Partial{}}, {Replicate{}}, {2}, dtype)(partial), zeros));
    }
  });
}

TEST(Redistribution, FillsOtherRanksWithNeutralElements) {
  run_ranks(2, [](const comm::Group& group) {
    const DeviceMesh mesh = line(group);
    const auto on_rank_1 = [&](at::ScalarType dtype, PartialOp op) {
      const at::Tensor given = at::full({1}, 5, dtype);
      const at::Tensor partial = path_of(mesh, {Replicate{}}, {Partial{op}}, {1}, dtype)(given);
      if (group.rank() == 0) {
        EXPECT_EQ(partial.item<double>(), 5);
      }
      return group.rank() == 0 ? std::numeric_limits<double>::quiet_NaN() : partial.item<double>();
    };
    const auto expect = [&](at::ScalarType dtype, PartialOp op, double value) {
      const double found = on_rank_1(dtype, op);
      if (group.rank() == 1) {
        EXPECT_EQ(found, value) << dtype << " " << trireme::to_string(op);
      }
    };
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    expect(at::kFloat, PartialOp::kSum, 0);
    expect(at::kFloat, PartialOp::kProduct, 1);
    expect(at::kFloat, PartialOp::kAverage, 5);
    expect(at::kFloat, PartialOp::kMaximum, -kInfinity);
    expect(at::kHalf, PartialOp::kMinimum, kInfinity);
    expect(at::kChar, PartialOp::kMaximum, -128);
    expect(at::kByte, PartialOp::kMinimum, 255);
    expect(at::kShort, PartialOp::kMaximum, -32768);
    expect(at::kInt, PartialOp::kMinimum, 2147483647);
    expect(at::kInt, PartialOp::kSum, 0);
    expect(at::kLong, PartialOp::kMaximum, -9223372036854775808.0);
  });
}

TEST(Redistribution, AddsBoolsByOrAndMultipliesThemByAnd) {
  run_ranks(2, [](const comm::Group& group) {
    const DeviceMesh mesh = line(group);
    const at::Tensor local = at::empty({4}, at::kBool);
    auto* values = local.mutable_data_ptr<bool>();
    for (int index = 0; index < 4; ++index) {
      values[index] = ((group.rank() == 0 ? index : index / 2) & 1) != 0;
    }
    const auto reduced = [&](PartialOp op) {
      const at::Tensor all = path_of(mesh, {Partial{op}}, {Replicate{}}, {4}, at::kBool)(local);
      const auto* bools = all.const_data_ptr<bool>();
      return std::vector<bool>(bools, bools + 4);
    };
    const std::vector<bool> either = {false, true, true, true};
    const std::vector<bool> both = {false, false, false, true};
    EXPECT_EQ(reduced(PartialOp::kSum), either);
    EXPECT_EQ(reduced(PartialOp::kMaximum), either);
    EXPECT_EQ(reduced(PartialOp::kProduct), both);
    EXPECT_EQ(reduced(PartialOp::kMinimum), both);
  });
}

TEST(Redistribution, TakesLocalsOfAnyStrides) {
  run_ranks(2, [](const comm::Group& group) {
    const DeviceMesh mesh = line(group);
    const at::Tensor whole = test::bytes_of({6, 4}, at::kFloat, 3);
    const Placements all = {Replicate{}, Shard{0}, Shard{1}};
    for (const Placement& from : all) {
      for (const Placement& to : all) {
        const at::Tensor local = test::slice_of(whole, Layout(mesh, {from}), mesh.coordinate());
        const at::Tensor transposed = local.t().contiguous().t();
        const at::Tensor spread = at::empty({local.size(0), local.size(1) * 2}, at::kFloat)
                                      .slice(1, 0, local.size(1) * 2, 2);
        spread.copy_(local);
        const at::Tensor expected = test::slice_of(whole, Layout(mesh, {to}), mesh.coordinate());
        for (const at::Tensor& given : {transposed, spread}) {
          EXPECT_TRUE(same_bits(path_of(mesh, {from}, {to}, {6, 4})(given), expected));
        }
      }
    }
    const at::Tensor expanded = at::full({1, 4}, group.rank() + 1, at::kFloat).expand({6, 4});
    EXPECT_TRUE(same_bits(path_of(mesh, {Partial{}}, {Replicate{}}, {6, 4})(expanded),
                          at::full({6, 4}, 3, at::kFloat)));
  });
}

TEST(Redistribution, KeepsImagesInTheirFormat) {
  run_ranks(2, [](const comm::Group& group) {
    const DeviceMesh mesh = line(group);
    const Lengths sizes = {3, 4, 5, 2};
    constexpr auto kFormat = at::MemoryFormat::ChannelsLast;
    const Placements all = {Replicate{}, Shard{0}, Shard{1}, Shard{2}, Shard{3}};
    for (const Placement& from : all) {
      for (const Placement& to : all) {
        const Layout given(mesh, {from});
        const Layout wanted(mesh, {to});
        const at::Tensor whole = test::numbers_of(sizes, at::kFloat, 3, PartialOp::kSum);
        const at::Tensor local =
            test::slice_of(whole, given, mesh.coordinate()).contiguous(kFormat);
        const at::Tensor result = Redistribution(sizes, at::kFloat, given, wanted, kFormat)(local);
        EXPECT_TRUE(same_bits(result, test::slice_of(whole, wanted, mesh.coordinate())));
        EXPECT_TRUE(result.is_contiguous(kFormat))
            << from.to_string() << " to " << to.to_string() << " " << result.strides();
        // Without the format values are the same.
        EXPECT_TRUE(same_bits(Redistribution(sizes, at::kFloat, given, wanted)(local), result));
      }
    }
    const at::Tensor local = test::numbers_of(sizes, at::kFloat, 1, PartialOp::kSum);
    const Redistribution sum(sizes, at::kFloat, Layout(mesh, {Partial{}}), Layout(mesh, {Shard{1}}),
                             kFormat);
    EXPECT_TRUE(sum(local).is_contiguous(kFormat));
    EXPECT_TRUE(same_bits(sum(local),
                          test::slice_of(local * 2, Layout(mesh, {Shard{1}}), mesh.coordinate())));
  });
}

TEST(Redistribution, GivesTheSameOverGloo) {
  trireme::testing::engine_of_ranks = "gloo";
  const std::vector<std::exception_ptr> thrown =
      run_ranks_catching(3, [](const comm::Group& group) {
        const DeviceMesh mesh = line(group);
        const Lengths sizes = {5, 7};
        const at::Tensor whole = test::bytes_of(sizes, at::kBFloat16, 1);
        const at::Tensor rows = test::slice_of(whole, Layout(mesh, {Shard{0}}), mesh.coordinate());
        EXPECT_TRUE(same_bits(path_of(mesh, {Shard{0}}, {Shard{1}}, sizes, at::kBFloat16)(rows),
                              test::slice_of(whole, Layout(mesh, {Shard{1}}), mesh.coordinate())));
        EXPECT_TRUE(
            same_bits(path_of(mesh, {Shard{0}}, {Replicate{}}, sizes, at::kBFloat16)(rows), whole));
        const auto reduced = [&](at::ScalarType dtype, PartialOp op, double own) {
          const at::Tensor local = at::full(sizes, own, dtype);
          const at::Tensor all = path_of(mesh, {Partial{op}}, {Replicate{}}, sizes, dtype)(local);
          const at::Tensor part = path_of(mesh, {Partial{op}}, {Shard{1}}, sizes, dtype)(local);
          EXPECT_EQ(part.size(1), group.rank() == 0 ? 3 : 2);
          EXPECT_EQ(part.flatten()[4].to(at::kDouble).item<double>(),
                    all.flatten()[34].to(at::kDouble).item<double>());
          return all.flatten()[34].to(at::kDouble).item<double>();
        };
        EXPECT_EQ(reduced(at::kFloat, PartialOp::kSum, group.rank()), 3);
        EXPECT_EQ(reduced(at::kFloat, PartialOp::kAverage, group.rank()), 1);
        EXPECT_EQ(reduced(at::kLong, PartialOp::kAverage, group.rank() + 1), 2);
        EXPECT_EQ(reduced(at::kBool, PartialOp::kSum, group.rank() == 1 ? 1 : 0), 1);
        EXPECT_EQ(reduced(at::kBool, PartialOp::kProduct, group.rank() == 1 ? 1 : 0), 0);
      });
  trireme::testing::engine_of_ranks = "shm";
  for (const std::exception_ptr& exception : thrown) {
    if (exception) std::rethrow_exception(exception);
  }
}

TEST(Redistribution, NamesATensorThatIsNotWhatTheRankHolds) {
  const auto thrown = run_ranks_catching(2, [](const comm::Group& group) {
    path_of(line(group), {Shard{0}}, {Replicate{}}, {5, 2})(at::empty({4, 2}), "layer1.weight");
  });
  EXPECT_THAT(
      message_of<UsageError>(thrown[1]),
      AllOf(HasSubstr("redistribution of layer1.weight from [a: Shard(0)] was given a local "
                      "tensor of sizes [4, 2] of Float, expected [2, 2] of Float at "
                      "coordinate [1]"),
            HasSubstr("local_sizes()")));
  const auto other_dtype = run_ranks_catching(2, [](const comm::Group& group) {
    path_of(line(group), {Replicate{}}, {Shard{0}}, {4})(at::empty({4}, at::kDouble));
  });
  EXPECT_THAT(message_of<UsageError>(other_dtype[0]),
              HasSubstr("of Double, expected [4] of Float"));
  const auto nothing = run_ranks_catching(2, [](const comm::Group& group) {
    path_of(line(group), {Replicate{}}, {Shard{0}}, {4})(at::Tensor());
  });
  EXPECT_THAT(message_of<UsageError>(nothing[0]), HasSubstr("was given an undefined tensor"));
}

TEST(Redistribution, IsRefusedOnRanksOutsideTheMesh) {
  const auto thrown = run_ranks_catching(2, [](const comm::Group& group) {
    const DeviceMesh mesh(group, {0}, {{"a", 1}, {"b", 1}});
    const Redistribution path =
        path_of(mesh, {Shard{0}, Replicate{}}, {FlatShard{{{0, 4}}}, Replicate{}}, {4});
    if (group.rank() == 0) {
      EXPECT_EQ(path(at::empty({4})).size(0), 4);
    } else {
      path(at::empty({4}));
    }
  });
  EXPECT_FALSE(thrown[0]);
  EXPECT_THAT(message_of<UsageError>(thrown[1]), HasSubstr("to which this rank does not belong"));
}

TEST(Redistribution, LabelsItsCollectives) {
  run_ranks(2, [](const comm::Group& group) {
    const DeviceMesh mesh = line(group);
    path_of(mesh, {Shard{0}}, {Replicate{}}, {4})(at::full({2}, 1.0), "embedding");
    const auto records = mesh.group().shared_memory()->member().recorded(group.rank());
    ASSERT_FALSE(records.empty());
    EXPECT_EQ(records.back().label, "embedding");
  });
}

// How many collectives `body` runs over a group.
template <typename Body>
std::uint64_t collectives_of(const comm::Group& group, const Body& body) {
  const auto number = [&] {
    const auto records = group.shared_memory()->member().recorded(group.rank());
    return records.empty() ? 0 : records.back().number;
  };
  const std::uint64_t before = number();
  body();
  return number() - before;
}

struct Several {
  std::vector<Redistribution> paths;
  std::vector<at::Tensor> locals;

  std::vector<const Redistribution*> pointers() const {
    std::vector<const Redistribution*> all;
    for (const Redistribution& path : paths) all.push_back(&path);
    return all;
  }
  void add(Redistribution path, at::Tensor local) {
    paths.push_back(std::move(path));
    locals.push_back(std::move(local));
  }
  std::vector<at::Tensor> one_by_one() const {
    std::vector<at::Tensor> results;
    for (std::size_t index = 0; index < paths.size(); ++index) {
      results.push_back(paths[index](locals[index]));
    }
    return results;
  }
};

TEST(RedistributeTogether, TakesOneCollectiveForAlikeSteps) {
  run_ranks(2, [](const comm::Group& group) {
    const DeviceMesh mesh = line(group);
    const std::vector<std::pair<Placement, Placement>> kinds = {{Shard{0}, Replicate{}},
                                                                {Partial{}, Replicate{}},
                                                                {Partial{}, Shard{1}},
                                                                {Shard{0}, Shard{1}}};
    for (const auto& [from, to] : kinds) {
      Several several;
      for (const Lengths& sizes :
           {Lengths{40, 60}, Lengths{33, 45}, Lengths{8, 300}, Lengths{0, 2}}) {
        const Layout layout(mesh, {from});
        several.add({sizes, at::kFloat, layout, Layout(mesh, {to})},
                    at::randn(local_sizes(sizes, layout, mesh.coordinate())));
      }
      const std::vector<at::Tensor> expected = several.one_by_one();
      std::vector<at::Tensor> together;
      EXPECT_EQ(collectives_of(
                    mesh.group(),
                    [&] { together = redistribute_together(several.pointers(), several.locals); }),
                1U);
      for (std::size_t index = 0; index < expected.size(); ++index) {
        EXPECT_TRUE(same_bits(together[index], expected[index]))
            << from.to_string() << " to " << to.to_string();
        if (together[index].numel() > 0) {
          EXPECT_EQ(reinterpret_cast<std::uintptr_t>(together[index].const_data_ptr()) % 64, 0U);
        }
      }
    }
  });
}

TEST(RedistributeTogether, TakesOneCollectiveForEachKindAxisAndDtype) {
  run_ranks(4, [](const comm::Group& group) {
    const DeviceMesh mesh(group, {{"a", 2}, {"b", 2}});
    Several several;
    const auto add = [&](const Placements& from, const Placements& to, const Lengths& sizes,
                         at::ScalarType dtype) {
      const Layout layout(mesh, from);
      const auto local = local_sizes(sizes, layout, mesh.coordinate());
      several.add(
          {sizes, dtype, layout, Layout(mesh, to)},
          test::numbers_of({local.begin(), local.end()}, dtype, group.rank(), PartialOp::kSum));
    };
    add({Replicate{}, Shard{0}}, {Replicate{}, Replicate{}}, {3, 2}, at::kFloat);
    add({Shard{0}, Shard{0}}, {Replicate{}, Replicate{}}, {3, 4}, at::kFloat);
    add({Shard{0}, Shard{0}}, {Shard{0}, Replicate{}}, {7}, at::kLong);
    add({Shard{0}, Replicate{}}, {Replicate{}, Replicate{}}, {5}, at::kFloat);
    add({Replicate{}, Replicate{}}, {Shard{1}, Replicate{}}, {3, 4}, at::kFloat);
    add({Shard{0}, Shard{1}}, {Shard{0}, Shard{1}}, {3, 4}, at::kFloat);
    add({Partial{}, Replicate{}}, {Replicate{}, Replicate{}}, {3}, at::kFloat);
    const std::vector<at::Tensor> expected = several.one_by_one();
    std::vector<at::Tensor> together;
    // Along b: floats (once the other waits), longs; along a: all-gather, all-reduce.
    std::uint64_t along_a = 0;
    const std::uint64_t along_b = collectives_of(mesh.group(1), [&] {
      along_a = collectives_of(mesh.group(0), [&] {
        together = redistribute_together(several.pointers(), several.locals);
      });
    });
    EXPECT_EQ(along_a, 2U);
    EXPECT_EQ(along_b, 2U);
    for (std::size_t index = 0; index < expected.size(); ++index) {
      EXPECT_TRUE(same_bits(together[index], expected[index])) << index;
    }
    EXPECT_TRUE(together[5].is_same(several.locals[5]));
  });
}

TEST(RedistributeTogether, LetsLongTensorsTravelAlone) {
  run_ranks(2, [](const comm::Group& group) {
    const DeviceMesh mesh = line(group);
    Several several;
    for (const std::int64_t rows : {2, 400, 4, 401}) {
      const Layout layout(mesh, {Shard{0}});
      const Lengths sizes = {rows, 100};
      several.add({sizes, at::kFloat, layout, Layout::replicated(mesh)},
                  at::randn(local_sizes(sizes, layout, mesh.coordinate())));
    }
    const std::vector<at::Tensor> expected = several.one_by_one();
    std::vector<at::Tensor> together;
    EXPECT_EQ(collectives_of(
                  mesh.group(),
                  [&] { together = redistribute_together(several.pointers(), several.locals); }),
              3U);
    for (std::size_t index = 0; index < expected.size(); ++index) {
      EXPECT_TRUE(same_bits(together[index], expected[index])) << index;
    }
  });
}

TEST(RedistributeTogether, RefusesAnotherNumberOfTensors) {
  run_ranks(1, [](const comm::Group& group) {
    const Redistribution path = path_of(line(group), {Shard{0}}, {Replicate{}}, {4});
    try {
      redistribute_together({&path}, {});
      ADD_FAILURE() << "threw nothing";
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), HasSubstr("1 redistributions were given 0 local tensors"));
    }
    EXPECT_TRUE(redistribute_together({}, {}).empty());
  });
}

}  // namespace
}  // namespace trireme::tensor
