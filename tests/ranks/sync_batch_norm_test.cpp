// SPDX-License-Identifier: Apache-2.0
// Batch norm over the batches of all ranks against one process with the whole batch.
#include <trireme/parallel/gradients/sync_batch_norm.h>

#include <tests/ranks/close_tensors.h>
#include <tests/ranks/thread_ranks.h>
#include <torch/torch.h>

#include <numeric>

namespace trireme {
namespace {

using comm::Group;
using detail::synchronized_batch_norm;
using testing::expect_close;
using testing::random_tensor;
using testing::run_ranks;

constexpr double kMomentum = 0.3;
constexpr double kEpsilon = 1e-5;
constexpr std::int64_t kChannels = 5;

struct Case {
  std::string name;
  c10::ScalarType type = at::kFloat;
  std::vector<std::int64_t> counts;  // batch of each rank
  std::vector<std::int64_t> places;  // sizes after the channels
  at::MemoryFormat format = at::MemoryFormat::Contiguous;
  bool transposed = false;
  bool affine = true;
  bool running = true;
  bool mixed = false;  // weight, bias and statistics in fp32
  double mean = 0.5;
  double deviation = 2;
  double bound = 1e-5;
};

std::ostream& operator<<(std::ostream& stream, const Case& value) { return stream << value.name; }

struct Problem {
  torch::Tensor input, weight, bias, running_mean, running_var, coefficients;
};

struct Outcome {
  torch::Tensor output, of_input, of_weight, of_bias;
};

torch::Tensor laid_out(const Case& c, const torch::Tensor& tensor) {
  if (c.transposed) return tensor.transpose(0, -1).contiguous().transpose(0, -1);
  return tensor.contiguous(c.format);
}

Problem whole_problem(const Case& c) {
  std::vector<std::int64_t> sizes = {std::reduce(c.counts.begin(), c.counts.end()), kChannels};
  sizes.insert(sizes.end(), c.places.begin(), c.places.end());
  Problem whole;
  whole.input = (random_tensor(sizes, at::kDouble, 1) * c.deviation + c.mean).to(c.type);
  whole.coefficients = random_tensor(sizes, c.type, 2);
  const c10::ScalarType type = c.mixed ? at::kFloat : c.type;
  if (c.affine) {
    whole.weight = random_tensor({kChannels}, type, 3);
    whole.bias = random_tensor({kChannels}, type, 4);
  }
  if (c.running) {
    whole.running_mean = random_tensor({kChannels}, type, 5);
    whole.running_var = random_tensor({kChannels}, type, 6).abs();
  }
  return whole;
}

torch::Tensor own_copy(const torch::Tensor& tensor, bool requires_grad = false) {
  return tensor.defined() ? tensor.detach().clone().set_requires_grad(requires_grad) : tensor;
}

// The rows that belong to a rank, and everything else as its own copy.
Problem part_of(const Case& c, const Problem& whole, int rank) {
  const auto first = std::reduce(c.counts.begin(), c.counts.begin() + rank);
  const auto count = c.counts[static_cast<std::size_t>(rank)];
  Problem part;
  part.input = laid_out(c, whole.input.narrow(0, first, count)).detach().set_requires_grad(true);
  part.coefficients = whole.coefficients.narrow(0, first, count);
  part.weight = own_copy(whole.weight, true);
  part.bias = own_copy(whole.bias, true);
  part.running_mean = own_copy(whole.running_mean);
  part.running_var = own_copy(whole.running_var);
  return part;
}

template <typename BatchNorm>
Outcome run(const Problem& problem, const BatchNorm& batch_norm) {
  Outcome outcome;
  outcome.output = batch_norm(problem);
  (outcome.output * problem.coefficients).sum().backward();
  outcome.of_input = problem.input.grad();
  if (problem.weight.defined()) {
    outcome.of_weight = problem.weight.grad();
    outcome.of_bias = problem.bias.grad();
  }
  outcome.output = outcome.output.detach();
  return outcome;
}

Outcome run_synchronized(const Problem& p, const Group& group) {
  return run(p, [&](const Problem&) {
    return synchronized_batch_norm(p.input, p.weight, p.bias, p.running_mean, p.running_var,
                                   kMomentum, kEpsilon, group);
  });
}

Outcome run_plain(const Problem& p) {
  return run(p, [&](const Problem&) {
    return at::batch_norm(p.input, p.weight, p.bias, p.running_mean, p.running_var, true, kMomentum,
                          kEpsilon, false);
  });
}

// Every rank's, joined; the gradients of weight and bias added up.
struct Joined {
  Outcome outcome;
  std::vector<Problem> parts;
};

Joined run_on_ranks(const Case& c, const Problem& whole) {
  const auto ranks = c.counts.size();
  std::vector<Outcome> outcomes(ranks);
  Joined joined;
  joined.parts.resize(ranks);
  run_ranks(static_cast<int>(ranks), [&](const Group& group) {
    const auto rank = static_cast<std::size_t>(group.rank());
    joined.parts[rank] = part_of(c, whole, group.rank());
    outcomes[rank] = run_synchronized(joined.parts[rank], group);
  });
  std::vector<torch::Tensor> outputs;
  std::vector<torch::Tensor> of_inputs;
  for (const Outcome& outcome : outcomes) {
    outputs.push_back(outcome.output);
    of_inputs.push_back(outcome.of_input);
    if (!c.affine) continue;
    Outcome& all = joined.outcome;
    all.of_weight =
        all.of_weight.defined() ? all.of_weight + outcome.of_weight : outcome.of_weight.clone();
    all.of_bias = all.of_bias.defined() ? all.of_bias + outcome.of_bias : outcome.of_bias.clone();
  }
  joined.outcome.output = at::cat(outputs);
  joined.outcome.of_input = at::cat(of_inputs);
  return joined;
}

class SynchronizedBatchNorm : public ::testing::TestWithParam<Case> {};

TEST_P(SynchronizedBatchNorm, IsOneProcessWithTheWholeBatch) {
  const Case& c = GetParam();
  const Problem whole = whole_problem(c);
  const Joined joined = run_on_ranks(c, whole);

  // fp16 and bf16: against the same numbers in double, for plain batch norm rounds more often.
  Problem alone = whole;
  const bool rounds = c.type == at::kHalf || c.type == at::kBFloat16;
  for (torch::Tensor* tensor : {&alone.input, &alone.weight, &alone.bias, &alone.running_mean,
                                &alone.running_var, &alone.coefficients}) {
    if (tensor->defined()) *tensor = tensor->to(rounds ? at::kDouble : c.type, false, true);
  }
  alone.input = laid_out(c, alone.input).detach().set_requires_grad(true);
  alone.weight = own_copy(alone.weight, true);
  alone.bias = own_copy(alone.bias, true);
  const Outcome expected = run_plain(alone);

  expect_close(joined.outcome.output, expected.output, c.bound, "output");
  expect_close(joined.outcome.of_input, expected.of_input, c.bound, "gradient of the input");
  expect_close(joined.outcome.of_weight, expected.of_weight, c.bound, "gradient of the weight");
  expect_close(joined.outcome.of_bias, expected.of_bias, c.bound, "gradient of the bias");
  for (const Problem& part : joined.parts) {
    expect_close(part.running_mean, alone.running_mean, c.bound, "running mean");
    expect_close(part.running_var, alone.running_var, c.bound, "running variance");
    if (!c.running) continue;
    EXPECT_TRUE(at::equal(part.running_mean, joined.parts[0].running_mean)) << "not the same bits";
    EXPECT_TRUE(at::equal(part.running_var, joined.parts[0].running_var)) << "not the same bits";
  }
  EXPECT_EQ(joined.outcome.output.scalar_type(), c.type);
  EXPECT_EQ(joined.outcome.of_input.scalar_type(), c.type);
}

std::vector<Case> cases() {
  const auto last = at::MemoryFormat::ChannelsLast;
  std::vector<Case> all;
  for (const auto type : {at::kFloat, at::kDouble}) {
    const std::string name = type == at::kFloat ? "Float" : "Double";
    const double bound = type == at::kFloat ? 1e-5 : 1e-12;
    const auto add = [&](Case value) {
      value.name = name + value.name;
      value.type = type;
      value.bound = bound;
      all.push_back(value);
    };
    add({.name = "Features", .counts = {7, 7}, .places = {}});
    add({.name = "Sequence", .counts = {2, 5, 3}, .places = {6}});
    add({.name = "Images", .counts = {3, 3, 3}, .places = {7, 5}});
    add({.name = "ChannelsLast", .counts = {4, 2}, .places = {7, 5}, .format = last});
    add({.name = "Transposed", .counts = {4, 2}, .places = {7, 5}, .transposed = true});
    add({.name = "Volumes", .counts = {1, 2, 1, 4}, .places = {3, 2, 4}});
    add({.name = "EmptyOnOneRank", .counts = {4, 0, 3}, .places = {2, 3}});
    add({.name = "AllOnTheLastRank", .counts = {0, 3}, .places = {2, 3}});
    add({.name = "OneValueOnEachRank", .counts = {1, 1, 1}, .places = {}});
    add({.name = "NotAffine", .counts = {4, 3}, .places = {2, 3}, .affine = false});
    add({.name = "NoRunningStatistics", .counts = {4, 3}, .places = {2, 3}, .running = false});
    add({.name = "Bare", .counts = {4, 3}, .places = {6}, .affine = false, .running = false});
    add({.name = "EmptyEverywhere", .counts = {0, 0}, .places = {2, 3}});
  }
  // One rounding of the type, of a value next to the largest.
  for (const auto& format : {at::MemoryFormat::Contiguous, last}) {
    const std::string name = format == last ? "ChannelsLast" : "";
    all.push_back({.name = "Half" + name,
                   .type = at::kHalf,
                   .counts = {4, 0, 3},
                   .places = {5, 7},
                   .format = format,
                   .bound = 6e-4});
    all.push_back({.name = "BFloat16" + name,
                   .type = at::kBFloat16,
                   .counts = {4, 0, 3},
                   .places = {5, 7},
                   .format = format,
                   .bound = 5e-3});
    all.push_back({.name = "MixedTypes" + name,
                   .type = at::kBFloat16,
                   .counts = {4, 0, 3},
                   .places = {5, 7},
                   .format = format,
                   .mixed = true,
                   .bound = 5e-3});
  }
  return all;
}
INSTANTIATE_TEST_SUITE_P(Batches, SynchronizedBatchNorm, ::testing::ValuesIn(cases()),
                         [](const auto& test) { return test.param.name; });

TEST(SynchronizedBatchNormPrecision, KeepsSmallVarianceBesideALargeMean) {
  // The mean square is 1e8 times the variance: sums of squares would leave nothing in fp32.
  const Case c = {.name = "",
                  .type = at::kFloat,
                  .counts = {40, 0, 25, 31},
                  .places = {4, 4},
                  .mean = 1000,
                  .deviation = 0.1};
  const Problem whole = whole_problem(c);
  const Joined joined = run_on_ranks(c, whole);
  Problem exact;
  for (auto [to, from] : {std::pair(&exact.input, &whole.input),
                          {&exact.weight, &whole.weight},
                          {&exact.bias, &whole.bias},
                          {&exact.coefficients, &whole.coefficients}}) {
    *to = from->to(at::kDouble).set_requires_grad(true);
  }
  const Outcome expected = run_plain(exact);
  // A mean rounded to fp32 is off by 1000 * 6e-8 of 0.1: 6e-4; twice, as in LibTorch's own kernel.
  expect_close(joined.outcome.output, expected.output, 1.2e-3, "output");
  expect_close(joined.outcome.of_input, expected.of_input, 1.2e-3, "gradient of the input");
  const torch::Tensor variance =
      (joined.parts[0].running_var - whole.running_var * (1 - kMomentum)) / kMomentum;
  expect_close(variance, exact.input.var({0, 2, 3}), 1e-4, "variance");
}

TEST(SynchronizedBatchNormPrecision, TakesBatchesThatLieFarApart) {
  // Nearly all of the variance lies between the ranks.
  const Case c = {.name = "", .type = at::kDouble, .counts = {3, 4, 5}, .places = {6}};
  Problem whole = whole_problem(c);
  whole.input.narrow(0, 0, 3).add_(1e6);
  whole.input.narrow(0, 7, 5).sub_(1e6);
  const Joined joined = run_on_ranks(c, whole);
  Problem alone = whole;
  alone.input = own_copy(whole.input, true);
  alone.weight = own_copy(whole.weight, true);
  alone.bias = own_copy(whole.bias, true);
  const Outcome expected = run_plain(alone);
  expect_close(joined.outcome.output, expected.output, 1e-12, "output");
  expect_close(joined.outcome.of_input, expected.of_input, 1e-10, "gradient of the input");
  expect_close(joined.parts[1].running_var, alone.running_var, 1e-12, "running variance");
}

TEST(SynchronizedBatchNormEngines, WorksOverGloo) {
  testing::engine_of_ranks = "gloo";
  const Case c = {.name = "", .type = at::kDouble, .counts = {2, 1, 3}, .places = {4}};
  const Problem whole = whole_problem(c);
  const Joined joined = run_on_ranks(c, whole);
  testing::engine_of_ranks = "shm";
  Problem alone = part_of({.name = "", .counts = {6}, .places = {4}}, whole, 0);
  const Outcome expected = run_plain(alone);
  expect_close(joined.outcome.output, expected.output, 1e-12, "output");
  expect_close(joined.outcome.of_input, expected.of_input, 1e-12, "gradient of the input");
}

TEST(SynchronizedBatchNormGradients, FrozenInputsAndWeightsHaveNone) {
  run_ranks(2, [](const Group& group) {
    const Case c = {.name = "", .type = at::kDouble, .counts = {3, 4}, .places = {2}};
    const Problem all = part_of(c, whole_problem(c), group.rank());
    const Outcome expected = run_synchronized(all, group);
    Problem frozen_input = part_of(c, whole_problem(c), group.rank());
    frozen_input.input = frozen_input.input.detach();
    const Outcome of_parameters = run_synchronized(frozen_input, group);
    EXPECT_FALSE(of_parameters.of_input.defined());
    EXPECT_TRUE(at::equal(of_parameters.of_weight, expected.of_weight));
    Problem frozen_weight = part_of(c, whole_problem(c), group.rank());
    frozen_weight.weight.set_requires_grad(false);
    const Outcome without_weight = run_synchronized(frozen_weight, group);
    EXPECT_FALSE(without_weight.of_weight.defined());
    EXPECT_TRUE(at::equal(without_weight.of_input, expected.of_input));
    EXPECT_TRUE(at::equal(without_weight.of_bias, expected.of_bias));
  });
}

TEST(SynchronizedBatchNormGradients, AreThoseOfPlainBatchNormOnAGroupOfOne) {
  const Case c = {.name = "", .counts = {4}, .places = {3}};
  const Problem whole = whole_problem(c);
  const Outcome alone = run_synchronized(part_of(c, whole, 0), Group::self());
  const Outcome expected = run_plain(part_of(c, whole, 0));
  EXPECT_TRUE(at::equal(alone.output, expected.output));
  EXPECT_TRUE(at::equal(alone.of_input, expected.of_input));
  EXPECT_TRUE(at::equal(alone.of_weight, expected.of_weight));
}

}  // namespace
}  // namespace trireme
