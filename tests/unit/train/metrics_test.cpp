// SPDX-License-Identifier: Apache-2.0
#include <trireme/train/metrics.h>

#include "tests/ranks/thread_ranks.h"
#include <trireme/base/error.h>
#include <trireme/data/data_loader.h>
#include <trireme/train/model.h>

#include <gmock/gmock.h>
#include <tests/temporary_folder.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <tuple>
#include <vector>

namespace trireme {
namespace {

using test::message_of;
using ::testing::HasSubstr;

constexpr std::int64_t kClasses = 7;

// Few different values, so that logits are often equal.
torch::Tensor random_logits(std::uint64_t seed, at::IntArrayRef sizes) {
  return torch::randint(0, 4, sizes, at::detail::createCPUGenerator(seed), torch::kFloat);
}

torch::Tensor random_labels(std::uint64_t seed, at::IntArrayRef sizes) {
  return torch::randint(0, kClasses, sizes, at::detail::createCPUGenerator(seed), torch::kLong);
}

double number(const torch::Tensor& tensor, std::initializer_list<at::indexing::TensorIndex> place) {
  return tensor.index(place).item<double>();
}

// What the definitions say, sample by sample; the order of classes by std::stable_sort.
std::vector<std::int64_t> classes_by_logit(const torch::Tensor& logits) {
  std::vector<std::int64_t> classes(static_cast<std::size_t>(logits.size(0)));
  std::iota(classes.begin(), classes.end(), 0);
  std::ranges::stable_sort(classes, [&](std::int64_t a, std::int64_t b) {
    return number(logits, {a}) > number(logits, {b});
  });
  return classes;
}

TEST(ConfusionMatrix, CountsWhatWasTakenForWhat) {
  const torch::Tensor logits = random_logits(1, {200, kClasses});
  const torch::Tensor labels = random_labels(2, {200});
  ConfusionMatrix matrix(kClasses);
  matrix.add(logits.slice(0, 0, 90), labels.slice(0, 0, 90));
  matrix.add(logits.slice(0, 90), labels.slice(0, 90).to(torch::kInt));
  torch::Tensor expected = torch::zeros({kClasses, kClasses}, torch::kLong);
  for (std::int64_t i = 0; i < 200; ++i) {
    expected[labels[i].item<std::int64_t>()][classes_by_logit(logits[i]).front()] += 1;
  }
  EXPECT_TRUE(torch::equal(matrix.counts(), expected));
  EXPECT_EQ(matrix.samples(), 200);
  EXPECT_DOUBLE_EQ(matrix.accuracy(), expected.diagonal().sum().item<double>() / 200);
  matrix.clear();
  EXPECT_EQ(matrix.samples(), 0);
  EXPECT_EQ(matrix.accuracy(), 0);
}

// By hand: labels 0 0 0 1 1 2, taken for 0 0 1 1 1 0; class 3 is never there.
TEST(ConfusionMatrix, HasTheScoresOfEveryClass) {
  const torch::Tensor taken = torch::tensor({0, 0, 1, 1, 1, 0});
  ConfusionMatrix matrix(4);
  matrix.add(torch::nn::functional::one_hot(taken, 4).to(torch::kFloat),
             torch::tensor({0, 0, 0, 1, 1, 2}));
  const auto of_classes = [](const torch::Tensor& scores) {
    return std::vector<double>(scores.const_data_ptr<double>(),
                               scores.const_data_ptr<double>() + 4);
  };
  EXPECT_THAT(of_classes(matrix.precision()), ::testing::ElementsAre(2.0 / 3, 2.0 / 3, 0, 0));
  EXPECT_THAT(of_classes(matrix.recall()), ::testing::ElementsAre(2.0 / 3, 1, 0, 0));
  EXPECT_THAT(of_classes(matrix.f1()), ::testing::ElementsAre(4.0 / 6, 4.0 / 5, 0, 0));
  EXPECT_DOUBLE_EQ(matrix.precision(Average::kMacro), (2.0 / 3 + 2.0 / 3) / 3);
  EXPECT_DOUBLE_EQ(matrix.recall(Average::kWeighted), (3 * 2.0 / 3 + 2) / 6);
  EXPECT_DOUBLE_EQ(matrix.f1(Average::kWeighted), (3 * 4.0 / 6 + 2 * 4.0 / 5) / 6);
  EXPECT_DOUBLE_EQ(matrix.accuracy(), 4.0 / 6);
  EXPECT_EQ(ConfusionMatrix(4).f1(Average::kMacro), 0);
}

TEST(TopK, IsThePlaceOfTheClassAmongItsLogits) {
  const torch::Tensor logits = random_logits(3, {150, kClasses});
  const torch::Tensor labels = random_labels(4, {150});
  for (const std::int64_t k : {1, 2, 5, 7, 9}) {
    TopK top(k);
    top.add(logits, labels);
    std::int64_t right = 0;
    for (std::int64_t i = 0; i < 150; ++i) {
      const auto classes = classes_by_logit(logits[i]);
      const auto place =
          std::ranges::find(classes, labels[i].item<std::int64_t>()) - classes.begin();
      right += place < k ? 1 : 0;
    }
    EXPECT_DOUBLE_EQ(top.value(), static_cast<double>(right) / 150) << k;
  }
}

TEST(TopK, IsNeverRightWhereALogitIsNotANumber) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  TopK top(1);
  top.add(torch::tensor({{nan, 1.F}, {nan, 1.F}, {0.F, 1.F}}), torch::tensor({0, 1, 1}));
  EXPECT_DOUBLE_EQ(top.value(), 1.0 / 3);
}

TEST(Perplexity, IsThatOfTheCrossEntropy) {
  const torch::Tensor logits = random_logits(5, {6, kClasses, 11});
  const torch::Tensor labels = random_labels(6, {6, 11});
  Perplexity perplexity;
  EXPECT_EQ(perplexity.value(), 1);
  perplexity.add(logits, labels);
  const double loss =
      torch::nn::functional::cross_entropy(logits.to(torch::kDouble), labels).item<double>();
  EXPECT_NEAR(perplexity.value(), std::exp(loss), 1e-12);
}

TEST(Metrics, PassOverIgnoredLabels) {
  const torch::Tensor logits = random_logits(7, {4, kClasses, 5});
  torch::Tensor labels = random_labels(8, {4, 5});
  const torch::Tensor is_kept = torch::arange(20).view({4, 5}).remainder(3).ne(0);
  const torch::Tensor kept_logits = logits.movedim(1, -1).index({is_kept});
  const torch::Tensor kept_labels = labels.index({is_kept});
  const torch::Tensor marked = labels.masked_fill(is_kept.logical_not(), -100);

  ConfusionMatrix matrix(kClasses, -100), kept_matrix(kClasses);
  TopK top(2, -100), kept_top(2);
  Perplexity perplexity(-100), kept_perplexity;
  for (Metric* metric : {static_cast<Metric*>(&matrix), static_cast<Metric*>(&top),
                         static_cast<Metric*>(&perplexity)}) {
    metric->add(logits, marked);
  }
  for (Metric* metric : {static_cast<Metric*>(&kept_matrix), static_cast<Metric*>(&kept_top),
                         static_cast<Metric*>(&kept_perplexity)}) {
    metric->add(kept_logits, kept_labels);
  }
  EXPECT_TRUE(torch::equal(matrix.counts(), kept_matrix.counts()));
  EXPECT_EQ(top.value(), kept_top.value());
  EXPECT_NEAR(perplexity.value(), kept_perplexity.value(), 1e-12);
  EXPECT_EQ(perplexity.samples(), kept_labels.numel());
}

TEST(MeanSquare, AddsWithoutRounding) {
  MeanSquare mean;
  EXPECT_EQ(mean.value(), 0);
  mean.add(torch::tensor({1e8, 1.0, 0.0}), torch::tensor({0.0, 0.0, 1.0}));
  EXPECT_EQ(mean.value() * 3, 1e16 + 2);
  EXPECT_EQ(mean.elements(), 3);
}

// Parts of different size, one of them empty, through Model and alone.
TEST(Metrics, AreThoseOfAllRanks) {
  const torch::Tensor inputs =
      torch::randn({47, kClasses}, at::detail::createCPUGenerator(9), torch::kFloat);
  const torch::Tensor labels = random_labels(10, {47});
  const torch::Tensor weight = torch::eye(kClasses) + 0.125;
  const auto evaluate = [&](const comm::Group& group, const data::DataLoader& data) {
    torch::nn::Linear net(torch::nn::LinearOptions(kClasses, kClasses).bias(false));
    net->weight.data().copy_(weight);
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    ConfusionMatrix matrix(kClasses);
    TopK top(3);
    Perplexity perplexity;
    Model model(net, CrossEntropy(), optimizer,
                {.group = group, .metrics = {matrix, top, perplexity}});
    model.evaluate(data);
    const Evaluation again = model.evaluate(data);  // counts anew
    EXPECT_EQ(matrix.samples(), 47);
    EXPECT_DOUBLE_EQ(again.accuracy.value(), matrix.accuracy());
    return std::tuple(matrix.counts().clone(), top.value(), perplexity.value());
  };
  data::DataLoader all(data::tensors({{"x", inputs}, {"y", labels}}));
  all.batch(10);
  const auto [counts, top, perplexity] = evaluate(comm::Group::self(), all);
  testing::run_ranks(3, [&](const comm::Group& group) {
    data::DataLoader part = all;
    part.shard({.index = group.rank(), .count = 3, .remainder = data::Remainder::kUneven});
    const auto [own_counts, own_top, own_perplexity] = evaluate(group, part);
    EXPECT_TRUE(torch::equal(own_counts, counts));
    EXPECT_EQ(own_top, top);
    EXPECT_NEAR(own_perplexity, perplexity,
                1e-6);  // matrix products of other sizes round otherwise
  });
}

TEST(MeanSquare, HasTheSameBitsForAnyNumberOfRanks) {
  const torch::Tensor values =
      torch::randn({60}, at::detail::createCPUGenerator(11), torch::kDouble);
  MeanSquare alone;
  alone.add(values, torch::zeros({60}, torch::kDouble));
  for (const int ranks : {2, 3, 4}) {
    testing::run_ranks(ranks, [&](const comm::Group& group) {
      MeanSquare mean;
      const torch::Tensor own = values.slice(0, group.rank(), 60, group.size());
      mean.add(own, torch::zeros_like(own));
      mean.all_reduce(group);
      EXPECT_EQ(mean.value(), alone.value());
      EXPECT_EQ(mean.elements(), 60);
    });
  }
}

TEST(Metrics, RefuseWhatDoesNotFit) {
  ConfusionMatrix matrix(kClasses);
  const torch::Tensor logits = torch::zeros({2, kClasses});
  EXPECT_THAT(message_of<UsageError>([&] { matrix.add(logits, torch::zeros({2})); }),
              HasSubstr("integer dtype"));
  EXPECT_THAT(message_of<UsageError>([&] { matrix.add(logits, torch::zeros({3}, torch::kLong)); }),
              HasSubstr("target [3]"));
  EXPECT_THAT(message_of<UsageError>(
                  [&] { matrix.add(torch::zeros({2, 3}), torch::zeros({2}, torch::kLong)); }),
              HasSubstr("of 7 classes was given output [2, 3]"));
  EXPECT_THAT(message_of<DataError>([&] { TopK(1).add(logits, torch::tensor({0, 7})); }),
              HasSubstr("label 7 in row 1"));
  EXPECT_THAT(
      message_of<UsageError>([] { MeanSquare().add(torch::zeros({2, 1}), torch::zeros({2})); }),
      HasSubstr("[2, 1]"));
  EXPECT_THROW(ConfusionMatrix(0), UsageError);
  EXPECT_THROW(TopK(0), UsageError);
  torch::nn::Linear net(1, 1);
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  const auto loss = [](const data::Batch& batch) { return batch["x"].sum(); };
  EXPECT_THROW(Model(loss, net.ptr(), optimizer, {.metrics = {matrix}}), UsageError);
}

}  // namespace
}  // namespace trireme
