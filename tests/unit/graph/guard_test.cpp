// SPDX-License-Identifier: Apache-2.0
// A record that is no longer true is noticed, and the first operator that changed named.
#include <trireme/graph/guard.h>

#include <trireme/optim/autocast.h>

#include <gmock/gmock.h>
#include <tests/unit/graph/replays.h>

namespace trireme::test {
namespace {

namespace nn = torch::nn;
using testing::AllOf;
using testing::HasSubstr;

// What a module's code may decide by itself.
struct Choices {
  double dropout = 0.1;
  bool has_relu = false;
  bool has_more = false;
  bool adds_input = false;
  bool grad = true;
};

class Guard : public testing::Test {
 protected:
  graph::Graph recorded(const Choices& choices, std::int64_t batch = 3) {
    return captured({net_.ptr(),
                     [&](const Tensors& x) -> Tensors {
                       at::Tensor h = net_->forward(x[0]);
                       h = torch::dropout(h, choices.dropout, net_->is_training());
                       if (choices.has_relu) h = h.relu();
                       const torch::AutoGradMode mode(choices.grad);
                       h = h + (choices.adds_input ? x[0] : h);
                       if (choices.has_more) h = h.square();
                       return {h};
                     },
                     {torch::randn({batch, 4})}});
  }

  std::string difference(const Choices& choices, std::int64_t batch = 3) {
    return graph::first_difference(recorded({}), recorded(choices, batch));
  }

  nn::Linear net_{4, 4};
};

TEST_F(Guard, FindsNothingWhereNothingChanged) { EXPECT_EQ(difference({}), ""); }

TEST_F(Guard, NamesTheFirstOperatorThatChanged) {
  EXPECT_THAT(difference({.dropout = 0.2}), AllOf(HasSubstr("operator 2, aten::dropout"),
                                                  HasSubstr("p was 0.1"), HasSubstr("is 0.2")));
  EXPECT_THAT(difference({.has_relu = true}),
              AllOf(HasSubstr("operator 3, aten::add.Tensor is now"), HasSubstr("aten::relu")));
  EXPECT_THAT(difference({.has_more = true}),
              AllOf(HasSubstr("operator 4, aten::square"), HasSubstr("in addition")));
  EXPECT_THAT(difference({.adds_input = true}),
              AllOf(HasSubstr("operator 3"), HasSubstr("another tensor as other")));
  EXPECT_THAT(difference({.grad = false}), HasSubstr("gradients are on or off"));
  EXPECT_THAT(difference({}, 5),
              AllOf(HasSubstr("input 0"), HasSubstr("[3, 4]"), HasSubstr("[5, 4]")));
  EXPECT_THAT(graph::first_difference(recorded({.has_more = true}), recorded({})),
              HasSubstr("no longer called"));
}

TEST_F(Guard, NamesModulesThatChangedTheirMode) {
  const graph::Graph before = recorded({});
  net_->eval();
  EXPECT_THAT(graph::first_difference(before, recorded({})), HasSubstr("is in evaluation now"));
}

TEST_F(Guard, HasAKeyForWhatCanBeSeenFromOutside) {
  const Tensors inputs = {torch::randn({3, 4})};
  const std::string key = graph::capture_key(*net_, inputs);
  EXPECT_EQ(key, graph::capture_key(*net_, {torch::zeros({3, 4})}));
  EXPECT_NE(key, graph::capture_key(*net_, {torch::zeros({4, 3})}));
  EXPECT_NE(key, graph::capture_key(*net_, {torch::zeros({3, 4}, at::kDouble)}));
  EXPECT_NE(key, graph::capture_key(*net_, {torch::zeros({3, 4}).requires_grad_()}));
  {
    const Autocast autocast(at::kCPU);
    EXPECT_NE(key, graph::capture_key(*net_, inputs));
  }
  net_->eval();
  EXPECT_NE(key, graph::capture_key(*net_, inputs));
}

}  // namespace
}  // namespace trireme::test
