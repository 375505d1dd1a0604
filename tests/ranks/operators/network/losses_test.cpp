// SPDX-License-Identifier: Apache-2.0
// Losses with every placement, of scores whose classes are cut too.
#include <tests/ranks/operators/operator_checks.h>

#include <cstdint>

namespace trireme {
namespace {

using test::check_operators;
using test::one;
using test::OperatorCase;
using test::sample;
using test::Tensors;

constexpr std::int64_t kReductions[] = {at::Reduction::None, at::Reduction::Mean,
                                        at::Reduction::Sum};

using Loss = std::function<torch::Tensor(const Tensors&, std::int64_t reduction)>;

// A loss with every reduction.
void check_loss(const std::string& name, const Loss& loss, const Tensors& inputs,
                bool takes_partial = false) {
  std::vector<OperatorCase> cases;
  for (const std::int64_t reduction : kReductions) {
    cases.push_back(one(
        name + ", reduction " + std::to_string(reduction),
        [loss, reduction](const Tensors& in) { return loss(in, reduction); }, inputs));
    cases.back().takes_partial = takes_partial;
  }
  check_operators(cases);
}

TEST(LossRules, OfEachElement) {
  const Tensors two = {sample({5, 3}), sample({5, 3}).flip(0)};
  check_loss(
      "mse", [](const Tensors& in, auto r) { return torch::mse_loss(in[0], in[1], r); }, two,
      /*takes_partial=*/true);
  check_loss("l1", [](const Tensors& in, auto r) { return torch::l1_loss(in[0], in[1], r); }, two);
  check_loss(
      "smooth l1",
      [](const Tensors& in, auto r) { return torch::smooth_l1_loss(in[0], in[1], r, 0.5); }, two);
  check_loss(
      "huber", [](const Tensors& in, auto r) { return torch::huber_loss(in[0], in[1], r, 0.7); },
      two);
  check_loss(
      "soft margin",
      [](const Tensors& in, auto r) { return torch::soft_margin_loss(in[0], in[1].detach(), r); },
      two);
  check_loss("mse of a row that ranks cannot all have",
             [](const Tensors& in, auto r) { return torch::mse_loss(in[0], in[1], r); },
             {sample({2}), sample({2}).flip(0)});
}

TEST(LossRules, OfProbabilities) {
  const Tensors two = {sample({4, 3}), sample({4, 3}).flip(0)};
  check_loss(
      "binary cross entropy",
      [](const Tensors& in, auto r) {
        return torch::binary_cross_entropy(in[0].sigmoid(), in[1].detach().sigmoid(), {}, r);
      },
      two);
  check_loss("binary cross entropy with weights",
             [](const Tensors& in, auto r) {
               return torch::binary_cross_entropy(in[0].sigmoid(), in[1].detach().sigmoid(),
                                                  in[2].detach(), r);
             },
             {two[0], two[1], sample({3})});
  check_loss(
      "binary cross entropy with logits",
      [](const Tensors& in, auto r) {
        return torch::binary_cross_entropy_with_logits(in[0], in[1].detach().sigmoid(), {}, {}, r);
      },
      two);
  check_loss("binary cross entropy with logits and weights",
             [](const Tensors& in, auto r) {
               return torch::binary_cross_entropy_with_logits(in[0], in[1].detach().sigmoid(), {},
                                                              in[2].detach().square(), r);
             },
             {two[0], two[1], sample({3})});
  check_loss(
      "Kullback-Leibler",
      [](const Tensors& in, auto r) {
        return torch::kl_div(in[0].log_softmax(1), in[1].softmax(1), r);
      },
      two);
}

torch::Tensor targets(std::int64_t count, std::int64_t num_classes) {
  return (torch::arange(count) * 5 + 2).remainder(num_classes);
}

TEST(LossRules, NegativeLogLikelihood) {
  const auto nll = [](const Tensors& in, auto r) { return torch::nll_loss(in[0], in[1], {}, r); };
  check_loss("nll", nll, {sample({5, 7}), targets(5, 7)}, /*takes_partial=*/true);
  check_loss("nll of classes fewer than ranks", nll, {sample({3, 2}), targets(3, 2)});
  check_loss("nll of rows fewer than ranks", nll, {sample({1, 4}), targets(1, 4)});
  check_loss("nll of one sample", nll, {sample({5}), torch::tensor(3)});
  check_loss("nll with weights and an ignored class",
             [](const Tensors& in, auto r) {
               return torch::nll_loss(in[0], in[1], in[2].detach().square() + 0.1, r, 2);
             },
             {sample({6, 5}), targets(6, 5), sample({5})});
  check_loss("nll of images",
             [](const Tensors& in, auto r) { return torch::nll_loss2d(in[0], in[1], {}, r); },
             {sample({2, 3, 2, 3}), targets(12, 3).reshape({2, 2, 3})});
}

TEST(LossRules, CrossEntropy) {
  check_loss(
      "cross entropy",
      [](const Tensors& in, auto r) { return torch::cross_entropy_loss(in[0], in[1], {}, r); },
      {sample({5, 4}), targets(5, 4)});
  check_loss(
      "with some targets ignored",
      [](const Tensors& in, auto r) { return torch::cross_entropy_loss(in[0], in[1], {}, r, 1); },
      {sample({5, 4}), targets(5, 4)});
  check_loss("with smooth labels",
             [](const Tensors& in, auto r) {
               return torch::cross_entropy_loss(in[0], in[1], {}, r, -100, 0.1);
             },
             {sample({5, 4}), targets(5, 4)});
  check_loss("with soft labels",
             [](const Tensors& in, auto r) {
               return torch::cross_entropy_loss(in[0], in[1].softmax(1), {}, r);
             },
             {sample({5, 4}), sample({5, 4}).flip(0)});
}

TEST(LossRules, NoTargetThatCountsGivesNotANumber) {
  check_operators({one(
      "all ignored",
      [](const Tensors& in) { return torch::nll_loss(in[0], in[1], {}, at::Reduction::Mean, 1); },
      {sample({3, 4}), torch::ones({3}, torch::kLong)})});
}

TEST(LossRules, NameATargetThatIsNoClass) {
  testing::run_ranks(2, [](const comm::Group& group) {
    const DeviceMesh mesh(group, {{"tensor", 2}});
    const auto scores = distribute(sample({3, 4}), Layout(mesh, {Shard{1}}));
    try {
      torch::nll_loss(scores, torch::tensor({1, 4, 0}));
      ADD_FAILURE() << "nothing was thrown";
    } catch (const c10::IndexError& error) {
      EXPECT_STREQ(error.what_without_backtrace(), "Target 4 is out of bounds.");
    }
  });
}

TEST(LossRules, GatherNothingOfAParallelVocabulary) {
  testing::run_ranks(4, [](const comm::Group& group) {
    const DeviceMesh mesh(group, {{"data", 2}, {"tensor", 2}});
    const Layout by_class(mesh, {Shard{0}, Shard{1}});
    const auto scores = distribute(sample({4, 6}), by_class).requires_grad_(true);
    const auto target = distribute(targets(4, 6), Layout(mesh, {{"data", Shard{0}}}));
    const auto loss = torch::cross_entropy_loss(scores, target);
    EXPECT_TRUE(layout_of(loss).is_replicated());
    loss.backward();
    EXPECT_EQ(layout_of(scores.grad()), by_class);
  });
}

}  // namespace
}  // namespace trireme
