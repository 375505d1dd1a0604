// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/gradient_reducer.h>

#include <trireme/base/error.h>
#include <trireme/optim/loss_scale.h>
#include <trireme/parallel/data_parallel.h>

#include <gmock/gmock.h>
#include <tests/ranks/allocations.h>
#include <tests/ranks/small_net.h>
#include <tests/ranks/thread_ranks.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace trireme {
namespace {

using comm::Group;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::message_of;
using testing::run_ranks;
using testing::run_ranks_catching;

using Parameters = torch::OrderedDict<std::string, at::Tensor>;
constexpr auto kSum = GradientReduction::kSum;

void add(Parameters& parameters, const std::string& name, const at::Tensor& tensor) {
  parameters.insert(name, tensor.set_requires_grad(true));
}

// Every dtype, a permuted tensor, one number and none.
Parameters mixed() {
  Parameters all;
  add(all, "matrix", torch::zeros({17, 5}));
  add(all, "half", torch::zeros({33}, torch::kHalf));
  add(all, "brain", torch::zeros({7, 3}, torch::kBFloat16));
  add(all, "double", torch::zeros({9}, torch::kDouble));
  add(all, "image", torch::zeros({2, 4, 3, 3}).to(at::MemoryFormat::ChannelsLast));
  add(all, "empty", torch::zeros({0}));
  add(all, "number", torch::zeros({}));
  add(all, "wide half", torch::zeros({4, 40}, torch::kHalf));
  return all;
}

at::Tensor gradient_of(int rank, std::size_t index, const at::Tensor& parameter) {
  auto generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(rank) * 100 + index);
  at::Tensor gradient = torch::empty_like(parameter).set_requires_grad(false);
  return gradient.copy_(torch::randn(parameter.sizes(), generator, torch::kFloat));
}

void set_gradients(const Parameters& parameters, int rank) {
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    at::Tensor parameter = parameters[i].value();
    parameter.mutable_grad() = gradient_of(rank, i, parameter);
  }
}

// Rank order, half precision in fp32 and rounded once; one division.
at::Tensor folded(int ranks, std::size_t index, const at::Tensor& parameter, double divisor) {
  const at::ScalarType dtype = parameter.scalar_type();
  const at::ScalarType wide = at::isReducedFloatingType(dtype) ? at::kFloat : dtype;
  at::Tensor sum = gradient_of(0, index, parameter).to(wide);
  for (int rank = 1; rank < ranks; ++rank) sum = sum + gradient_of(rank, index, parameter).to(wide);
  return (sum.to(dtype).to(wide) / torch::full({}, divisor, wide)).to(dtype);
}

void expect_folded(const Parameters& parameters, int ranks, double divisor) {
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& parameter = parameters[i].value();
    EXPECT_TRUE(torch::equal(parameter.grad(), folded(ranks, i, parameter, divisor)))
        << parameters[i].key() << " over " << ranks << " ranks\n"
        << parameter.grad() << folded(ranks, i, parameter, divisor);
  }
}

TEST(GradientReducer, GivesTheBitsOfAFoldInRankOrder) {
  for (int ranks = 1; ranks <= 4; ++ranks) {
    for (const std::int64_t bucket_bytes : {1L, 200L, 25L << 20}) {
      run_ranks(ranks, [&](const Group& group) {
        const Parameters parameters = mixed();
        GradientReducer mean(parameters, group, {.bucket_bytes = bucket_bytes});
        GradientReducer sum(parameters, group, {.reduction = kSum, .bucket_bytes = bucket_bytes});
        GradientReducer over_6(parameters, group, {.degree = 6, .bucket_bytes = bucket_bytes});
        for (int step = 0; step < 2; ++step) {
          set_gradients(parameters, group.rank());
          mean.reduce();
          expect_folded(parameters, ranks, ranks);
          set_gradients(parameters, group.rank());
          sum.reduce();
          expect_folded(parameters, ranks, 1);
          set_gradients(parameters, group.rank());
          over_6.reduce();
          expect_folded(parameters, ranks, 6);
        }
      });
    }
  }
}

TEST(GradientReducer, WorksOverGloo) {
  testing::engine_of_ranks = "gloo";
  run_ranks(2, [](const Group& group) {
    Parameters parameters = mixed();
    for (const char* half : {"half", "wide half", "brain"}) parameters.erase(half);
    GradientReducer reducer(parameters, group);
    set_gradients(parameters, group.rank());
    reducer.reduce();
    expect_folded(parameters, 2, 2);
  });
  testing::engine_of_ranks = "shm";
}

// A group of one used to come out doubled elsewhere.
TEST(GradientReducer, ChangesNothingInAGroupOfOne) {
  const Parameters parameters = mixed();
  for (const GradientReducerOptions& options :
       {GradientReducerOptions{}, {.reduction = kSum}, {.predivide = 3}}) {
    GradientReducer reducer(parameters, Group::self(), options);
    set_gradients(parameters, 0);
    for (int step = 0; step < 3; ++step) reducer.reduce();
    expect_folded(parameters, 1, 1);
  }
  GradientReducer reducer(parameters, Group::self(), {.degree = 3});
  set_gradients(parameters, 0);
  reducer.reduce();
  expect_folded(parameters, 1, 3);
}

TEST(GradientReducer, GivesTheGradientsOfParallelize) {
  run_ranks(3, [](const Group& group) {
    test::Net parallel = test::make_net(1);
    const DataParallel data_parallel(*parallel, group);
    test::Net manual = test::make_net(1);
    GradientReducer reducer(*manual, group);
    for (int step = 0; step < 2; ++step) {
      for (test::Net* net : {&parallel, &manual}) {
        (*net)->zero_grad();
        test::loss_of(*net, test::make_batch(step, group.rank()), group.rank() == 2).backward();
      }
      reducer.reduce();
      const auto expected = parallel->parameters();
      const auto parameters = manual->parameters();
      for (std::size_t i = 0; i < parameters.size(); ++i) {
        ASSERT_EQ(parameters[i].grad().defined(), expected[i].grad().defined()) << i;
        if (!expected[i].grad().defined()) continue;  // a layer whose weight another one's replaced
        EXPECT_TRUE(torch::equal(parameters[i].grad(), expected[i].grad())) << i;
      }
    }
  });
}

// Three samples on rank 0 and one on rank 1: the last batch of a data set. Whole numbers, so that
// every way of adding gives the same bits.
TEST(GradientReducer, WeighsUnequalPartsByADegreeOrInTheLoss) {
  run_ranks(2, [](const Group& group) {
    const at::Tensor samples = torch::tensor({2.0F, 4.0F, 6.0F, 20.0F});
    const at::Tensor own = group.rank() == 0 ? samples.slice(0, 0, 3) : samples.slice(0, 3);
    Parameters parameters;
    add(parameters, "weight", torch::ones({1}));
    at::Tensor weight = parameters["weight"];
    const auto reduced = [&](const at::Tensor& loss, const GradientReducerOptions& options) {
      GradientReducer reducer(parameters, group, options);
      weight.mutable_grad().reset();
      loss.backward();
      reducer.reduce();
      return weight.grad().item<float>();
    };
    EXPECT_EQ(reduced((weight * own).mean(), {}), 12);  // a mean of means, not that of all samples
    EXPECT_EQ(reduced((weight * own).sum(), {.degree = 4}), 8);
    EXPECT_EQ(reduced((weight * own).sum() / 4, {.reduction = kSum}), 8);
  });
}

TEST(GradientReducer, DividesBeforeItAddsWhereSumsWouldOverflow) {
  run_ranks(3, [](const Group& group) {
    Parameters parameters;
    add(parameters, "weight", torch::zeros({3}, torch::kHalf));
    at::Tensor weight = parameters["weight"];
    const auto reduced = [&](const GradientReducerOptions& options) {
      GradientReducer reducer(parameters, group, options);
      weight.mutable_grad() = torch::full({3}, 60000, torch::kHalf);
      reducer.reduce();
      return weight.grad()[0].item<float>();
    };
    EXPECT_TRUE(std::isinf(reduced({.reduction = kSum})));
    EXPECT_EQ(reduced({}), 60000);  // was infinite
    EXPECT_EQ(reduced({.predivide = 4}), 60000);
  });
}

TEST(GradientReducer, LetsEveryRankSeeWhatIsNotFiniteOnOne) {
  run_ranks(3, [](const Group& group) {
    Parameters parameters;
    for (const char* name : {"infinite", "not a number", "finite"}) {
      add(parameters, name, torch::ones({3}));
      parameters[name].mutable_grad() = torch::ones({3});
    }
    if (group.rank() == 1) {
      parameters["infinite"].mutable_grad()[2] = std::numeric_limits<float>::infinity();
      parameters["not a number"].mutable_grad()[2] = std::nanf("");
    }
    GradientReducer(parameters, group).reduce();
    EXPECT_TRUE(std::isinf(parameters["infinite"].grad()[2].item<float>()));
    EXPECT_TRUE(std::isnan(parameters["not a number"].grad()[2].item<float>()));
    EXPECT_EQ(parameters["infinite"].grad()[1].item<float>(), 1);
    EXPECT_TRUE(torch::equal(parameters["finite"].grad(), torch::ones({3})));
  });
}

// Clip what is local and scaled, reduce, check, unscale.
TEST(GradientReducer, LetsALoopClipTheLocalScaledGradientsFirst) {
  run_ranks(2, [](const Group& group) {
    Parameters parameters;
    add(parameters, "weight", torch::ones({2}));
    at::Tensor weight = parameters["weight"];
    torch::optim::SGD optimizer({weight}, 1.0);
    LossScale scale({.initial = 4});
    GradientReducer reducer(parameters, group);
    // Scaled gradients [12, 16] of norm 20 and [120, 160] of norm 200, each clipped to 10.
    const float factor = group.rank() == 0 ? 1 : 10;
    const at::Tensor direction = torch::tensor({3 * factor, 4 * factor});
    scale.scale((weight * direction).sum()).backward();
    EXPECT_EQ(clip_by_global_norm(optimizer, 10).item<double>(), 20 * factor);
    reducer.reduce();
    EXPECT_TRUE(scale.unscale(optimizer));
    EXPECT_TRUE(torch::allclose(weight.grad(), torch::tensor({1.5F, 2.0F}), 1e-5));
    // The same decision on every rank where one has overflowed.
    weight.mutable_grad() =
        torch::full({2}, group.rank() == 0 ? std::numeric_limits<float>::infinity() : 1.0F);
    reducer.reduce();
    EXPECT_FALSE(scale.unscale(optimizer));
    EXPECT_EQ(scale.value(), 2);
  });
}

TEST(GradientReducer, WritesIntoTheTensorThatTheUserHas) {
  run_ranks(2, [](const Group& group) {
    Parameters parameters;
    add(parameters, "weight", torch::zeros({3, 2}));
    GradientReducer reducer(parameters, group);
    const at::Tensor with_gaps = torch::full({3, 5}, group.rank() + 1.0);
    parameters["weight"].mutable_grad() = with_gaps.slice(1, 1, 3);
    reducer.reduce();
    EXPECT_TRUE(torch::equal(with_gaps.slice(1, 1, 3), torch::full({3, 2}, 1.5F)));
    EXPECT_TRUE(torch::equal(with_gaps.slice(1, 3), torch::full({3, 2}, group.rank() + 1.0)));
    EXPECT_EQ(parameters["weight"].grad().const_data_ptr<float>(),
              with_gaps.const_data_ptr<float>() + 1);
  });
}

TEST(GradientReducer, CountsAGradientThatSomeRanksHaveAsZeroOnTheOthers) {
  run_ranks(3, [](const Group& group) {
    Parameters parameters;
    for (const char* name : {"of all", "of one", "of none"}) {
      add(parameters, name, torch::ones({4, 2}).t());
    }
    GradientReducer reducer(parameters, group);
    std::vector<at::Tensor> kept;
    for (const double value : {1.0, 2.0}) {
      for (auto& item : parameters) item.value().mutable_grad().reset();
      parameters["of all"].mutable_grad() = torch::ones({2, 4});
      if (group.rank() == 1) parameters["of one"].mutable_grad() = torch::full({2, 4}, 3 * value);
      reducer.reduce();
      EXPECT_TRUE(torch::equal(parameters["of all"].grad(), torch::ones({2, 4})));
      ASSERT_TRUE(parameters["of one"].grad().defined());
      kept.push_back(parameters["of one"].grad());
      EXPECT_FALSE(parameters["of one"].grad().requires_grad());
      EXPECT_FALSE(parameters["of none"].grad().defined());
    }
    EXPECT_TRUE(torch::equal(kept[0], torch::ones({2, 4})));  // the next step did not write there
    EXPECT_TRUE(torch::equal(kept[1], torch::full({2, 4}, 2.0)));
  });
}

TEST(GradientReducer, TakesTiedParametersOnceAndLeavesFrozenOnesAlone) {
  run_ranks(2, [](const Group& group) {
    Parameters parameters;
    add(parameters, "first", torch::ones({2}));
    add(parameters, "tied", parameters["first"]);
    parameters.insert("frozen", torch::ones({2}));
    at::Tensor frozen = parameters["frozen"];
    frozen.mutable_grad() = torch::full({2}, 5.0F);
    GradientReducer reducer(parameters, group, {.reduction = kSum});
    parameters["first"].mutable_grad() = torch::ones({2});
    reducer.reduce();
    EXPECT_TRUE(torch::equal(parameters["tied"].grad(), torch::full({2}, 2.0F)));
    EXPECT_TRUE(torch::equal(frozen.grad(), torch::full({2}, 5.0F)));
  });
}

// Gradients of a backward with create_graph have a history of their own.
TEST(GradientReducer, ReducesGradientsThatHaveGradients) {
  run_ranks(2, [](const Group& group) {
    Parameters parameters;
    add(parameters, "weight", torch::ones({3}));
    at::Tensor weight = parameters["weight"];
    GradientReducer reducer(parameters, group);
    (weight.pow(3) * (group.rank() + 1)).sum().backward({}, true, /*create_graph=*/true);
    reducer.reduce();
    EXPECT_TRUE(torch::equal(weight.grad().detach(), torch::full({3}, 4.5F)));
    weight.mutable_grad().reset();  // whose history holds the weight
  });
}

TEST(GradientReducer, RefusesAParameterThatWasCast) {
  run_ranks(2, [](const Group& group) {
    torch::nn::Linear net(2, 2);
    GradientReducer reducer(*net, group);
    net->to(torch::kDouble);
    net->forward(torch::ones({1, 2}, torch::kDouble)).sum().backward();
    EXPECT_THROW(reducer.reduce(), UsageError);
  });
}

TEST(GradientReducer, AllocatesNothingInALaterStep) {
  run_ranks(2, [](const Group& group) {
    const Parameters parameters = mixed();
    GradientReducer reducer(parameters, group, {.predivide = 2, .bucket_bytes = 200});
    set_gradients(parameters, group.rank());
    reducer.reduce();
    for (const std::int64_t bytes : test::allocations_of([&] { reducer.reduce(); })) {
      EXPECT_LE(bytes, 2);  // LibTorch's own copy of a divisor for half precision
    }
    EXPECT_THAT(test::allocations_of([] { torch::zeros({1}); }), ::testing::ElementsAre(4));
  });
}

TEST(GradientReducer, CanBeMoved) {
  run_ranks(2, [](const Group& group) {
    const Parameters parameters = mixed();
    std::vector<GradientReducer> reducers;
    reducers.emplace_back(parameters, group);
    reducers.emplace_back(parameters, group, GradientReducerOptions{.reduction = kSum});
    reducers.erase(reducers.begin());
    set_gradients(parameters, group.rank());
    reducers[0].reduce();
    expect_folded(parameters, 2, 1);
  });
}

// Returns what each of two ranks threw.
template <typename Body>
std::vector<std::string> refusals_of(const Body& body) {
  std::vector<std::string> messages;
  for (const auto& thrown : run_ranks_catching(2, body)) {
    messages.push_back(message_of<UsageError>(thrown));
  }
  return messages;
}

TEST(GradientReducer, RefusesAGradientThatDoesNotFitOnAnyRankAndChangesNothing) {
  const std::vector<std::pair<at::Tensor, const char*>> cases = {
      {torch::ones({2, 3}).to_sparse(), "of layout Sparse"},
      {torch::ones({6}), "sizes [6]"},
      {torch::ones({2, 3}, torch::kDouble), "Double"},
      {torch::ones({2, 3}, torch::kMeta), "meta"},
      {torch::ones({1, 3}).expand({2, 3}), "cannot be reduced"}};
  for (const auto& [gradient, expected] : cases) {
    run_ranks(2, [&](const Group& group) {
      Parameters parameters;
      add(parameters, "good", torch::ones({2, 3}));
      add(parameters, "bad", torch::ones({2, 3}));
      GradientReducer reducer(parameters, group, {.reduction = kSum, .bucket_bytes = 1});
      const auto set_both = [&] {
        for (auto& item : parameters) item.value().mutable_grad() = torch::ones({2, 3});
      };
      set_both();
      if (group.rank() == 1) parameters["bad"].mutable_grad() = gradient;
      try {
        reducer.reduce();
        FAIL() << "took " << gradient.options();
      } catch (const UsageError& error) {
        EXPECT_THAT(error.what(), AllOf(HasSubstr("parameter bad"),
                                        HasSubstr(group.rank() == 1 ? expected : "another rank")));
      }
      EXPECT_TRUE(torch::equal(parameters["good"].grad(), torch::ones({2, 3})));
      set_both();
      reducer.reduce();  // it goes on
      for (const auto& item : parameters) {
        EXPECT_TRUE(torch::equal(item.value().grad(), torch::full({2, 3}, 2.0F)));
      }
    });
  }
}

TEST(GradientReducer, RefusesOptionsThatDifferOrCannotBe) {
  Parameters parameters;
  add(parameters, "weight", torch::ones({2}));
  const std::vector<std::string> differ = refusals_of([&](const Group& group) {
    const GradientReducer reducer(parameters, group, {.degree = group.rank() + 2});
  });
  for (const std::string& message : differ) {
    EXPECT_THAT(message, AllOf(HasSubstr("rank 0 has 'mean, degree 2"),
                               HasSubstr("rank 1 has 'mean, degree 3")));
  }
  for (const GradientReducerOptions& options : {GradientReducerOptions{.degree = -1},
                                                {.predivide = 0},
                                                {.predivide = std::nan("")},
                                                {.bucket_bytes = 0},
                                                {.reduction = kSum, .degree = 2},
                                                {.reduction = kSum, .predivide = 2}}) {
    const std::vector<std::string> messages = refusals_of(
        [&](const Group& group) { const GradientReducer reducer(parameters, group, options); });
    for (const std::string& message : messages) {
      EXPECT_THAT(message, HasSubstr("a sum takes neither degree"));
    }
  }
}

TEST(GradientReducer, RefusesParametersThatDifferBetweenRanks) {
  const std::vector<std::string> messages = refusals_of([&](const Group& group) {
    Parameters parameters;
    add(parameters, "weight", torch::ones({2 + group.rank()}));
    const GradientReducer reducer(parameters, group);
  });
  for (const std::string& message : messages) {
    EXPECT_THAT(message, AllOf(HasSubstr("rank 0 has weight [2]"), HasSubstr("weight [3]")));
  }
}

TEST(GradientReducer, RefusesParametersThatItCannotReduce) {
  const auto refusal = [](const at::Tensor& tensor) {
    Parameters parameters;
    parameters.insert("odd", tensor);
    return refusals_of(
        [&](const Group& group) { const GradientReducer reducer(parameters, group); })[1];
  };
  EXPECT_THAT(refusal(torch::ones({2}, torch::kComplexFloat).set_requires_grad(true)),
              HasSubstr("parameter odd is ComplexFloat"));
  EXPECT_THAT(refusal(torch::ones({2, 4}).slice(1, 0, 2).set_requires_grad(true)),
              HasSubstr("strides [4, 1], expected a dense tensor"));
  EXPECT_THAT(refusal(torch::ones({2})), HasSubstr("none of 1 parameters requires gradients"));
}

}  // namespace
}  // namespace trireme
