// SPDX-License-Identifier: Apache-2.0
// Paths: which steps, in which order, at what cost. What they do to tensors is in tests/ranks.
#include <trireme/tensor/redistribution/redistribution.h>

#include <trireme/base/error.h>

#include <gmock/gmock.h>
#include <tests/temporary_folder.h>

namespace trireme::tensor {
namespace {

using test::message_of;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Kind = RedistributionStep::Kind;
using Lengths = std::vector<std::int64_t>;

constexpr std::int64_t kLarge = 1024;
const Lengths kMatrix = {kLarge, kLarge};

DeviceMesh mesh_of(const std::vector<std::int64_t>& lengths) {
  const std::vector<std::string> names = {"a", "b", "c", "d", "e", "f", "g", "h", "i"};
  std::vector<MeshAxis> axes;
  for (std::size_t axis = 0; axis < lengths.size(); ++axis) {
    axes.push_back({names[axis], lengths[axis]});
  }
  return DeviceMesh::unconnected(axes);
}

Redistribution path_between(const DeviceMesh& mesh, const std::vector<Placement>& from,
                            const std::vector<Placement>& to, const Lengths& sizes = kMatrix,
                            at::ScalarType dtype = at::kFloat) {
  return {sizes, dtype, Layout(mesh, from), Layout(mesh, to)};
}

std::string text_of(const DeviceMesh& mesh, const std::vector<Placement>& from,
                    const std::vector<Placement>& to, const Lengths& sizes = kMatrix) {
  return path_between(mesh, from, to, sizes).to_string();
}

TEST(RedistributionPath, IsOneCollectiveBetweenTwoPlacements) {
  const DeviceMesh mesh = mesh_of({2});
  EXPECT_EQ(text_of(mesh, {Shard{0}}, {Replicate{}}),
            "a: Shard(0) -> Replicate by all-gather, 2097152 bytes");
  EXPECT_EQ(text_of(mesh, {Shard{0}}, {Shard{1}}),
            "a: Shard(0) -> Shard(1) by all-to-all, 1048576 bytes");
  EXPECT_EQ(text_of(mesh, {Partial{}}, {Replicate{}}),
            "a: Partial(sum) -> Replicate by all-reduce, 4194304 bytes");
  EXPECT_EQ(text_of(mesh, {Partial{}}, {Shard{1}}),
            "a: Partial(sum) -> Shard(1) by reduce-scatter, 2097152 bytes");
  EXPECT_EQ(text_of(mesh, {Replicate{}}, {Shard{1}}), "a: Replicate -> Shard(1) by slice");
  EXPECT_EQ(text_of(mesh, {Replicate{}}, {Partial{}}),
            "a: Replicate -> Partial(sum) by neutral elements");
  EXPECT_EQ(text_of(mesh, {Shard{0}}, {Partial{PartialOp::kMaximum}}),
            "a: Shard(0) -> Partial(maximum) by neutral elements");
}

TEST(RedistributionPath, IsEmptyWhereNothingIsToDo) {
  const DeviceMesh mesh = mesh_of({2, 1});
  const Layout layout(mesh, {Shard{0}, Replicate{}});
  const Redistribution same(kMatrix, at::kFloat, layout, layout);
  EXPECT_EQ(same.to_string(), "nothing to do");
  EXPECT_EQ(same.seconds(), 0);
  EXPECT_TRUE(same.is_local());
  EXPECT_TRUE(same.steps().empty());
  // Axes of one rank hold the same in every placement.
  const Redistribution alike = path_between(mesh, {Shard{0}, Shard{0}}, {Shard{0}, Partial{}});
  EXPECT_TRUE(alike.steps().empty());
  EXPECT_EQ(redistribution_seconds(kMatrix, at::kFloat, layout, layout), 0);
}

TEST(RedistributionPath, BeginsAndEndsWithTheLayoutsGiven) {
  const DeviceMesh mesh = mesh_of({1, 2, 2});
  const std::vector<Placement> from = {Shard{0}, Shard{0}, Partial{}};
  const std::vector<Placement> to = {Partial{}, Replicate{}, Shard{1}};
  const Redistribution path = path_between(mesh, from, to);
  ASSERT_FALSE(path.steps().empty());
  EXPECT_EQ(path.steps().front().from, Layout(mesh, from));
  EXPECT_EQ(path.steps().back().to, Layout(mesh, to));
  double bytes = 0;
  double seconds = 0;
  for (std::size_t step = 0; step < path.steps().size(); ++step) {
    if (step > 0) {
      EXPECT_EQ(path.steps()[step].from, path.steps()[step - 1].to);
    }
    bytes += path.steps()[step].bytes_sent;
    seconds += path.steps()[step].seconds;
  }
  EXPECT_EQ(path.bytes_sent(), bytes);
  EXPECT_DOUBLE_EQ(path.seconds(), seconds);
  EXPECT_DOUBLE_EQ(path.seconds(), redistribution_seconds(kMatrix, at::kFloat, Layout(mesh, from),
                                                          Layout(mesh, to)));
}

TEST(RedistributionPath, SlicesBeforeItSends) {
  EXPECT_EQ(text_of(mesh_of({2, 2}), {Shard{0}, Replicate{}}, {Replicate{}, Shard{1}}),
            "b: Replicate -> Shard(1) by slice\n"
            "a: Shard(0) -> Replicate by all-gather, 1048576 bytes");
}

TEST(RedistributionPath, UndoesTheLastCutOfADimFirst) {
  EXPECT_EQ(text_of(mesh_of({2, 2}), {Shard{0}, Shard{0}}, {Replicate{}, Replicate{}}, {8}),
            "b: Shard(0, level 1) -> Replicate by all-gather, 8 bytes\n"
            "a: Shard(0) -> Replicate by all-gather, 16 bytes");
  EXPECT_EQ(text_of(mesh_of({2, 2}), {Shard{0, 1}, Shard{0, 0}}, {Replicate{}, Replicate{}}, {8}),
            "a: Shard(0, level 1) -> Replicate by all-gather, 8 bytes\n"
            "b: Shard(0) -> Replicate by all-gather, 16 bytes");
}

TEST(RedistributionPath, MovesAnInnerCutAsideInsteadOfGatheringIt) {
  // Only the outer cut goes: through a matrix cut along its other dim, a quarter of the bytes.
  const Redistribution path =
      path_between(mesh_of({4, 4}), {Shard{0}, Shard{0}}, {Replicate{}, Shard{0}});
  for (const RedistributionStep& step : path.steps()) {
    EXPECT_FALSE(step.to.is_replicated()) << path.to_string();
  }
  EXPECT_EQ(path.steps().front().kind, Kind::kAllToAll) << path.to_string();
}

TEST(RedistributionPath, ReordersNestedCutsWithoutAFullGather) {
  const Redistribution path =
      path_between(mesh_of({2, 4}), {Shard{0, 0}, Shard{0, 1}}, {Shard{0, 1}, Shard{0, 0}});
  for (const RedistributionStep& step : path.steps()) {
    EXPECT_FALSE(step.to.is_replicated()) << path.to_string();
  }
  const double gathers =
      path_between(mesh_of({2, 4}), {Shard{0, 0}, Shard{0, 1}}, {Replicate{}, Replicate{}})
          .bytes_sent();
  EXPECT_LT(path.bytes_sent(), gathers);
}

TEST(RedistributionPath, ReducesOverTwoAxesInParts) {
  const Redistribution path =
      path_between(mesh_of({2, 2}), {Partial{}, Partial{}}, {Replicate{}, Replicate{}});
  EXPECT_EQ(path.to_string(),
            "a: Partial(sum) -> Shard(0) by reduce-scatter, 2097152 bytes\n"
            "b: Partial(sum) -> Replicate by all-reduce, 2097152 bytes\n"
            "a: Shard(0) -> Replicate by all-gather, 2097152 bytes");
}

TEST(RedistributionPath, TakesFewStepsForAShortTensor) {
  const Redistribution path =
      path_between(mesh_of({2, 2}), {Partial{}, Partial{}}, {Replicate{}, Replicate{}}, {4, 4});
  EXPECT_EQ(path.steps().size(), 2U) << path.to_string();
}

TEST(RedistributionPath, ReducesBeforeOneOpBecomesAnother) {
  EXPECT_EQ(text_of(mesh_of({2}), {Partial{}}, {Partial{PartialOp::kMaximum}}, {4}),
            "a: Partial(sum) -> Shard(0) by reduce-scatter, 8 bytes\n"
            "a: Shard(0) -> Partial(maximum) by neutral elements");
  // Of an average every rank has the value.
  EXPECT_EQ(text_of(mesh_of({2}), {Partial{}}, {Partial{PartialOp::kAverage}}, {4}),
            "a: Partial(sum) -> Replicate by all-reduce, 16 bytes\n"
            "a: Replicate -> Partial(average) by neutral elements");
  EXPECT_EQ(text_of(mesh_of({2, 2}), {Partial{}, Replicate{}},
                    {Replicate{}, Partial{PartialOp::kMaximum}}, {4}),
            "a: Partial(sum) -> Replicate by all-reduce, 16 bytes\n"
            "b: Replicate -> Partial(maximum) by neutral elements");
}

TEST(RedistributionPath, GathersFlatRanges) {
  const DeviceMesh mesh = mesh_of({2, 2});
  const Placement flat = FlatShard{{{0, 5}, {5, 7}}};
  const Placement other = FlatShard{{{6, 6}, {0, 6}}};
  const Lengths sizes = {3, 4};
  EXPECT_EQ(text_of(mesh, {flat, Replicate{}}, {Replicate{}, Replicate{}}, sizes),
            "a: FlatShard(0+5, 5+7) -> Replicate by all-gather, 28 bytes");
  EXPECT_EQ(text_of(mesh, {flat, Replicate{}}, {Shard{0}, Replicate{}}, sizes),
            "a: FlatShard(0+5, 5+7) -> Replicate by all-gather, 28 bytes\n"
            "a: Replicate -> Shard(0) by slice");
  EXPECT_EQ(text_of(mesh, {Replicate{}, Replicate{}}, {flat, Replicate{}}, sizes),
            "a: Replicate -> FlatShard(0+5, 5+7) by slice");
  EXPECT_EQ(text_of(mesh, {Partial{}, Replicate{}}, {flat, Replicate{}}, sizes),
            "a: Partial(sum) -> FlatShard(0+5, 5+7) by reduce-scatter, 28 bytes");
  EXPECT_EQ(text_of(mesh, {flat, Replicate{}}, {Partial{}, Replicate{}}, sizes),
            "a: FlatShard(0+5, 5+7) -> Partial(sum) by neutral elements");
  EXPECT_EQ(text_of(mesh, {flat, Replicate{}}, {other, Replicate{}}, sizes),
            "a: FlatShard(0+5, 5+7) -> Replicate by all-gather, 28 bytes\n"
            "a: Replicate -> FlatShard(6+6, 0+6) by slice");
  // Not before the flat cut is undone, for that is the only one there may be.
  EXPECT_EQ(text_of(mesh, {flat, Replicate{}}, {Replicate{}, Shard{1}}, sizes),
            "a: FlatShard(0+5, 5+7) -> Replicate by all-gather, 28 bytes\n"
            "b: Replicate -> Shard(1) by slice");
  EXPECT_EQ(text_of(mesh, {flat, Partial{}}, {Replicate{}, Replicate{}}, {12}),
            "b: Partial(sum) -> Replicate by all-reduce, 28 bytes\n"
            "a: FlatShard(0+5, 5+7) -> Replicate by all-gather, 28 bytes");
}

TEST(RedistributionPath, SendsNothingOfATensorWithoutElements) {
  const Redistribution path = path_between(mesh_of({2}), {Shard{0}}, {Shard{1}}, {0, 6});
  EXPECT_TRUE(path.is_local());
  EXPECT_GT(path.seconds(), 0);
}

TEST(RedistributionPath, PricesASliceLessThanACopyAndAboveNothing) {
  const DeviceMesh mesh = mesh_of({2});
  const double outer = path_between(mesh, {Replicate{}}, {Shard{0}}).seconds();
  const double inner = path_between(mesh, {Replicate{}}, {Shard{1}}).seconds();
  EXPECT_GT(outer, 0);
  EXPECT_LT(outer, 1e-6);
  EXPECT_GT(inner, outer);
}

TEST(RedistributionPath, KnowsInWhichOrderDimsLieInMemory) {
  const DeviceMesh mesh = mesh_of({2});
  const Lengths images = {1, 8, 4, 4};
  const Layout whole(mesh, {Replicate{}});
  const auto seconds = [&](int dim, at::MemoryFormat format) {
    return redistribution_seconds(images, at::kFloat, whole, Layout(mesh, {Shard{dim}}), format);
  };
  EXPECT_LT(seconds(1, at::MemoryFormat::Contiguous), seconds(2, at::MemoryFormat::Contiguous));
  EXPECT_GT(seconds(1, at::MemoryFormat::ChannelsLast), seconds(2, at::MemoryFormat::ChannelsLast));
}

TEST(RedistributionPath, TakesManyAxes) {
  const std::vector<Placement> from = {Shard{0}, Shard{0}, Partial{}, Shard{1}, Replicate{}};
  const std::vector<Placement> to = {Shard{1}, Replicate{}, Replicate{}, Shard{0}, Shard{0}};
  const DeviceMesh mesh = mesh_of({2, 2, 2, 2, 2});
  EXPECT_EQ(path_between(mesh, from, to).steps().back().to, Layout(mesh, to));
}

std::string error_between(const DeviceMesh& mesh, const std::vector<Placement>& from,
                          const std::vector<Placement>& to, const Lengths& sizes = kMatrix,
                          at::ScalarType dtype = at::kFloat) {
  return message_of<UsageError>([&] { (void)path_between(mesh, from, to, sizes, dtype); });
}

TEST(RedistributionErrors, NameLayoutsThatDoNotFit) {
  const DeviceMesh mesh = mesh_of({2});
  const Layout layout(mesh, {Shard{0}});
  EXPECT_THAT(error_between(mesh, {Shard{2}}, {Replicate{}}),
              HasSubstr("layout [a: Shard(2)] cuts dim 2 of a tensor of sizes [1024, 1024]"));
  EXPECT_THAT(error_between(mesh, {Replicate{}}, {FlatShard{{{0, 3}, {3, 4}}}}, {8}),
              HasSubstr("covers 7 elements of a tensor of sizes [8], which has 8"));
  EXPECT_THAT(
      message_of<UsageError>([&] { (void)Redistribution(kMatrix, at::kFloat, layout, Layout()); }),
      HasSubstr("a redistribution from [a: Shard(0)] to plain"));
  const Layout elsewhere(mesh_of({2}), {Shard{0}});
  EXPECT_THAT(
      message_of<UsageError>([&] { (void)Redistribution(kMatrix, at::kFloat, layout, elsewhere); }),
      AllOf(HasSubstr("[a: Shard(0)] over mesh a=2 to [a: Shard(0)] over mesh a=2, which is "
                      "another one"),
            HasSubstr("redistribute_between")));
}

TEST(RedistributionErrors, NamePartialsThatHaveNoValue) {
  const DeviceMesh mesh = mesh_of({2, 2});
  EXPECT_THAT(
      error_between(mesh, {Partial{}, Partial{PartialOp::kMaximum}}, {Replicate{}, Replicate{}}),
      AllOf(HasSubstr("[a: Partial(sum), b: Partial(maximum)]"),
            HasSubstr("its value depends on which Partial is reduced first")));
  EXPECT_THAT(error_between(mesh, {Replicate{}, Replicate{}},
                            {Partial{PartialOp::kMaximum}, Partial{PartialOp::kMinimum}}),
              HasSubstr("which Partial is reduced first"));
  EXPECT_FALSE(
      path_between(mesh, {Partial{}, Partial{PartialOp::kAverage}}, {Replicate{}, Replicate{}})
          .is_local());
  const auto refused = [&](at::ScalarType dtype, PartialOp op) {
    return error_between(mesh, {Partial{op}, Replicate{}}, {Replicate{}, Replicate{}}, {4}, dtype);
  };
  EXPECT_THAT(refused(at::kComplexFloat, PartialOp::kMaximum),
              HasSubstr("a tensor of ComplexFloat, which has no Partial(maximum)"));
  EXPECT_THAT(refused(at::kBool, PartialOp::kAverage),
              HasSubstr("a tensor of Bool, which has no Partial(average)"));
  EXPECT_THAT(refused(at::kFloat8_e5m2, PartialOp::kSum),
              AllOf(HasSubstr("which has no Partial(sum)"), HasSubstr("convert the tensor")));
}

TEST(RedistributionErrors, NameAFormatThatDoesNotFit) {
  const DeviceMesh mesh = mesh_of({2});
  const Layout whole(mesh, {Replicate{}});
  const auto refused = [&](const Lengths& sizes, const Placement& to, at::MemoryFormat format) {
    return message_of<UsageError>(
        [&] { (void)Redistribution(sizes, at::kFloat, whole, Layout(mesh, {to}), format); });
  };
  EXPECT_THAT(refused({2, 2}, Shard{0}, at::MemoryFormat::ChannelsLast),
              HasSubstr("a tensor of 2 dims in memory format ChannelsLast"));
  EXPECT_THAT(refused({1, 1, 1, 2}, FlatShard{{{0, 1}, {1, 1}}}, at::MemoryFormat::ChannelsLast),
              HasSubstr("a FlatShard in memory format ChannelsLast"));
}

TEST(RedistributionErrors, NameTooManyAxes) {
  const DeviceMesh mesh = mesh_of({2, 2, 2, 2, 2, 2, 2, 2, 2});
  std::vector<Placement> from(9);
  from[0] = Shard{0};
  EXPECT_THAT(error_between(mesh, from, std::vector<Placement>(9)),
              HasSubstr("with 9 axes of several ranks, at most 8"));
}

TEST(Redistribution, IsReadOnRanksOutsideTheMeshAndNotCarriedOut) {
  const Redistribution path = path_between(mesh_of({2}), {Shard{0}}, {Replicate{}});
  EXPECT_EQ(path.program(), nullptr);
  EXPECT_THAT(message_of<UsageError>([&] { (void)path(at::Tensor()); }),
              HasSubstr("which no ranks stand behind"));
}

}  // namespace
}  // namespace trireme::tensor
