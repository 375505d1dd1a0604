// SPDX-License-Identifier: Apache-2.0
// Redistribution between all pairs of layouts, against slices of the whole tensor, bit by bit.
#include <trireme/tensor/redistribution/redistribution.h>
#include <trireme/tensor/redistribution/redistribution_program.h>

#include <gtest/gtest.h>
#include <tests/ranks/tensor/redistribution/held_tensors.h>
#include <tests/ranks/thread_ranks.h>
#include <tests/unit/tensor/every_layout.h>

#include <cmath>

namespace trireme::tensor {
namespace {

using test::every_layout;
using test::HeldTensor;
using test::Lengths;
using test::Placements;
using trireme::testing::run_ranks;

struct Case {
  Lengths sizes;
  Placements from, to;
  at::ScalarType dtype = at::kFloat;
};

std::string text_of(const Case& one, const DeviceMesh& mesh) {
  std::ostringstream text;
  text << c10::IntArrayRef(one.sizes) << " of " << one.dtype << " on " << mesh.to_string() << ": "
       << Layout(mesh, one.from).to_string() << " to " << Layout(mesh, one.to).to_string() << "\n"
       << Redistribution(one.sizes, one.dtype, Layout(mesh, one.from), Layout(mesh, one.to))
              .to_string()
       << "\n";
  return text.str();
}

PartialOp op_between(const Layout& from, const Layout& to) {
  return from.has_partial() ? test::op_of(from) : test::op_of(to);
}

// Carries out all cases in one run of ranks, and looks at what they got when it is over.
void check_cases(const Lengths& lengths, const std::vector<Case>& cases) {
  const DeviceMesh shape = DeviceMesh::unconnected(test::axes_of(lengths));
  const auto ranks = static_cast<std::size_t>(test::num_ranks(lengths));
  std::vector<HeldTensor> given;
  for (const Case& one : cases) {
    const Layout from(shape, one.from);
    const Layout to(shape, one.to);
    given.push_back(test::hold(one.sizes, one.dtype, from, op_between(from, to),
                               !from.has_partial() && !to.has_partial(),
                               static_cast<std::int64_t>(given.size())));
  }
  std::vector<std::vector<at::Tensor>> results(cases.size(), std::vector<at::Tensor>(ranks));
  run_ranks(static_cast<int>(ranks), [&](const comm::Group& group) {
    const DeviceMesh mesh(group, test::axes_of(lengths));
    const auto rank = static_cast<std::size_t>(group.rank());
    for (std::size_t index = 0; index < cases.size(); ++index) {
      const Case& one = cases[index];
      const Redistribution path(one.sizes, one.dtype, Layout(mesh, one.from), Layout(mesh, one.to));
      results[index][rank] = path(given[index].locals[rank]);
    }
  });
  for (std::size_t index = 0; index < cases.size(); ++index) {
    ASSERT_EQ(test::difference(given[index].whole, Layout(shape, cases[index].to), results[index]),
              "")
        << text_of(cases[index], shape);
  }
}

std::vector<Case> all_pairs(const Lengths& lengths, const std::vector<Lengths>& all_sizes,
                            PartialOp op = PartialOp::kSum) {
  std::vector<Case> cases;
  for (const Lengths& sizes : all_sizes) {
    const auto layouts = every_layout(lengths.size(), static_cast<int>(sizes.size()), op);
    for (const Placements& from : layouts) {
      for (const Placements& to : layouts) {
        cases.push_back({.sizes = sizes, .from = from, .to = to});
      }
    }
  }
  return cases;
}

// All sizes up to seven in one and two dims, and some in three.
std::vector<Lengths> many_sizes() {
  std::vector<Lengths> all = {{}};
  for (std::int64_t a = 0; a < 8; ++a) {
    all.push_back({a});
    for (std::int64_t b = 0; b < 8; ++b) {
      all.push_back({a, b});
      all.push_back({a, b, (a * 3 + b * 5) % 8});
    }
  }
  return all;
}

// What all the tests below rely on.
TEST(RedistributionOfAllPairs, WouldNoticeAWrongElement) {
  const DeviceMesh mesh = DeviceMesh::unconnected(test::axes_of({2, 3}));
  for (const Placements& placements : every_layout(2, 2, PartialOp::kSum)) {
    const Layout layout(mesh, placements);
    const HeldTensor held = test::hold({6, 6}, at::kFloat, layout, PartialOp::kSum, false, 1);
    EXPECT_EQ(test::difference(held.whole, layout, held.locals), "");
    for (const at::Tensor& local : held.locals) {
      const at::Tensor last = local.flatten().slice(0, local.numel() - 1, local.numel());
      last.add_(1);
      EXPECT_NE(test::difference(held.whole, layout, held.locals), "") << layout.to_string();
      last.sub_(1);
    }
  }
}

TEST(RedistributionOfAllPairs, GivesSlicesOfTheWholeOnOneAxis) {
  for (const std::int64_t ranks : {1, 2, 3}) check_cases({ranks}, all_pairs({ranks}, many_sizes()));
}

TEST(RedistributionOfAllPairs, GivesSlicesOfTheWholeOnTwoAxes) {
  check_cases({2, 2}, all_pairs({2, 2}, {{},
                                         {0},
                                         {1},
                                         {3},
                                         {4},
                                         {7},
                                         {4, 4},
                                         {0, 3},
                                         {1, 7},
                                         {5, 3},
                                         {6, 2},
                                         {7, 7},
                                         {4, 6, 2},
                                         {3, 1, 5}}));
  check_cases({2, 3}, all_pairs({2, 3}, {{5}, {7}, {6, 6}, {7, 4}, {2, 5}, {1, 3}}));
  check_cases({3, 1}, all_pairs({3, 1}, {{5}, {3, 4}}));
}

TEST(RedistributionOfAllPairs, GivesSlicesOfTheWholeOnThreeAxes) {
  const std::vector<Case> all = all_pairs({2, 2, 2}, {{5, 6}});
  std::vector<Case> some;
  for (std::size_t index = 0; index < all.size(); index += 11) some.push_back(all[index]);
  check_cases({2, 2, 2}, some);
}

// Large enough that the cheapest path is one of several steps.
TEST(RedistributionOfAllPairs, GivesSlicesOfLargeTensors) {
  check_cases({2, 2}, all_pairs({2, 2}, {{257, 190}}));
  check_cases({3}, all_pairs({3}, {{40, 33, 65}}));
}

TEST(RedistributionOfAllPairs, KnowsEveryOp) {
  for (const PartialOp op :
       {PartialOp::kAverage, PartialOp::kMaximum, PartialOp::kMinimum, PartialOp::kProduct}) {
    check_cases({2}, all_pairs({2}, {{}, {1}, {5}, {4, 6}, {3, 5}}, op));
    check_cases({3}, all_pairs({3}, {{4}, {6, 3}, {0, 2}}, op));
    check_cases({2, 2}, all_pairs({2, 2}, {{5, 2}}, op));
  }
}

TEST(RedistributionOfAllPairs, KnowsEveryDtype) {
  std::vector<Case> cases;
  for (const at::ScalarType dtype :
       {at::kDouble, at::kHalf, at::kBFloat16, at::kComplexFloat, at::kComplexDouble, at::kBool,
        at::kByte, at::kChar, at::kShort, at::kInt, at::kLong, at::kFloat8_e5m2, at::kUInt16}) {
    for (const PartialOp op : {PartialOp::kSum, PartialOp::kAverage, PartialOp::kMaximum,
                               PartialOp::kMinimum, PartialOp::kProduct}) {
      for (Case& one : all_pairs({2}, {{5, 4}}, op)) {
        const Partial partial{op};
        const bool is_reduced =
            one.from[0] == Placement(partial) || one.to[0] == Placement(partial);
        const bool is_ordered = op == PartialOp::kMaximum || op == PartialOp::kMinimum;
        const bool is_known = (!at::isComplexType(dtype) || !is_ordered) &&
                              (dtype != at::kBool || op != PartialOp::kAverage) &&
                              dtype != at::kFloat8_e5m2 && dtype != at::kUInt16;
        if (is_reduced ? !is_known : op != PartialOp::kSum) continue;
        one.dtype = dtype;
        cases.push_back(one);
      }
    }
  }
  check_cases({2}, cases);
}

// Ranges of any length, in any order, some of them empty.
Placement flat_of(const Lengths& sizes, std::int64_t ranks, std::int64_t turn) {
  std::int64_t elements = 1;
  for (const std::int64_t size : sizes) elements *= size;
  FlatShard flat;
  flat.ranges.resize(static_cast<std::size_t>(ranks));
  std::int64_t offset = 0;
  for (std::int64_t index = 0; index < ranks; ++index) {
    const std::int64_t left = elements - offset;
    const std::int64_t length = index + 1 == ranks ? left : std::min(left, (left + turn) / 2);
    flat.ranges[static_cast<std::size_t>((index + turn) % ranks)] = {offset, length};
    offset += length;
  }
  return flat;
}

TEST(RedistributionOfAllPairs, KnowsFlatShards) {
  for (const Lengths& lengths : {Lengths{1}, Lengths{2}, Lengths{3}, Lengths{2, 2}}) {
    std::vector<Case> cases;
    for (const Lengths& sizes :
         {Lengths{}, Lengths{7}, Lengths{4, 6}, Lengths{3, 5}, Lengths{0, 2}, Lengths{2, 3, 4}}) {
      auto layouts = every_layout(lengths.size(), static_cast<int>(sizes.size()), PartialOp::kSum);
      const std::size_t num_plain = layouts.size();
      for (std::size_t axis = 0; axis < lengths.size(); ++axis) {
        for (const std::int64_t turn : {0, 1, 5}) {
          for (const Placement& other : Placements{Replicate{}, Partial{}}) {
            Placements flat(lengths.size(), other);
            flat[axis] = flat_of(sizes, lengths[axis], turn);
            layouts.push_back(flat);
          }
        }
      }
      for (std::size_t a = 0; a < layouts.size(); ++a) {
        for (std::size_t b = 0; b < layouts.size(); ++b) {
          if (a < num_plain && b < num_plain) continue;
          cases.push_back({.sizes = sizes, .from = layouts[a], .to = layouts[b]});
        }
      }
    }
    check_cases(lengths, cases);
  }
}

// What is handed to the engine is what the path says.
TEST(RedistributionOfAllPairs, SendsTheBytesThatItSays) {
  for (const Lengths& lengths : {Lengths{2}, Lengths{2, 2}, Lengths{3}}) {
    const std::vector<Case> cases = all_pairs(lengths, {{12, 24}, {36}, {12, 12, 12}});
    run_ranks(test::num_ranks(lengths), [&](const comm::Group& group) {
      const DeviceMesh mesh(group, test::axes_of(lengths));
      for (const Case& one : cases) {
        const Redistribution path(one.sizes, one.dtype, Layout(mesh, one.from),
                                  Layout(mesh, one.to));
        for (std::size_t step = 0; step < path.steps().size(); ++step) {
          const Action& action = path.program()->actions[step];
          const double ranks = action.group.size();
          const double times = action.kind == RedistributionStep::Kind::kAllReduce
                                   ? 2 * (ranks - 1) / ranks
                                   : ranks - 1;
          const double sent = times * static_cast<double>(action.slot) * 4;
          ASSERT_LT(std::abs(sent - path.steps()[step].bytes_sent), 1e-6) << text_of(one, mesh);
        }
      }
    });
  }
}

TEST(RedistributionOfAllPairs, TakesTheSamePathOnEveryRank) {
  const std::vector<Case> cases = all_pairs({2, 3}, {{7, 100}});
  std::vector<std::string> texts(6);
  run_ranks(6, [&](const comm::Group& group) {
    const DeviceMesh mesh(group, test::axes_of({2, 3}));
    std::string& text = texts[static_cast<std::size_t>(group.rank())];
    for (const Case& one : cases) text += text_of(one, mesh);
  });
  for (const std::string& text : texts) EXPECT_EQ(text, texts.front());
}

}  // namespace
}  // namespace trireme::tensor
