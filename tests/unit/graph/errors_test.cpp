// SPDX-License-Identifier: Apache-2.0
// What cannot be recorded or run says which operator of which module it is, and the way out.
#include <trireme/base/error.h>

#include <gmock/gmock.h>
#include <tests/unit/graph/replays.h>
#include <torch/library.h>

#include <thread>

namespace trireme::test {
namespace {

namespace nn = torch::nn;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::ThrowsMessage;

at::Tensor call_own(const char* name, const at::Tensor& x) {
  return c10::Dispatcher::singleton()
      .findSchemaOrThrow(name, "")
      .typed<at::Tensor(const at::Tensor&)>()
      .call(x);
}

at::Tensor twice(const at::Tensor& x) { return call_own("trireme_graph_test::twice", x); }

struct Tripled : torch::autograd::Function<Tripled> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) {
    return x * 2;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 const torch::autograd::variable_list& gradients) {
    return {gradients[0] * 3};
  }
};

struct Unruly : torch::autograd::Function<Unruly> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) {
    return x * 2;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 const torch::autograd::variable_list& gradients) {
    return {twice(gradients[0])};
  }
};

// Without a rule; with a backward of its own; with one that calls the former.
TORCH_LIBRARY(trireme_graph_test, library) {
  library.def("twice(Tensor x) -> Tensor");
  library.impl("twice", c10::DispatchKey::CPU,
               torch::CppFunction::makeFromUnboxedFunction(
                   +[](const at::Tensor& x) { return at::Tensor(x + x); }));
  library.def("tripled(Tensor x) -> Tensor");
  library.impl("tripled", c10::DispatchKey::Autograd,
               torch::CppFunction::makeFromUnboxedFunction(
                   +[](const at::Tensor& x) { return Tripled::apply(x); }));
  library.def("unruly(Tensor x) -> Tensor");
  library.impl("unruly", c10::DispatchKey::Autograd,
               torch::CppFunction::makeFromUnboxedFunction(
                   +[](const at::Tensor& x) { return Unruly::apply(x); }));
}

// A layer called `inner.layer`, and then `then` on what it gives.
Subject after_layer(const std::function<at::Tensor(const at::Tensor&)>& then) {
  nn::Sequential inner;
  nn::Linear layer(4, 4);
  inner->push_back("layer", layer);
  auto outer = std::make_shared<nn::Module>();
  outer->register_module("inner", inner);
  return {outer,
          [layer, then](const Tensors& x) mutable -> Tensors {
            return {then(layer->forward(x[0])).sum()};
          },
          {torch::randn({3, 4})}};
}

template <typename Matcher>
void expect_refused(const std::function<at::Tensor(const at::Tensor&)>& then,
                    const Matcher& matcher) {
  const Subject subject = after_layer(then);
  const at::Tensor weight = subject.module->parameters()[0];
  const at::Tensor before = weight.clone();
  EXPECT_THAT([&] { captured(subject); }, ThrowsMessage<UsageError>(matcher));
  EXPECT_TRUE(torch::equal(weight, before)) << "the module is not what it was";
  EXPECT_NO_THROW(subject.forward(subject.inputs));
}

// As expect_refused, for what does not run by itself either.
template <typename Matcher>
void expect_refused_when_forward_fails(const std::function<at::Tensor(const at::Tensor&)>& then,
                                       const Matcher& matcher) {
  const Subject subject = after_layer(then);
  EXPECT_THAT([&] { captured(subject); }, ThrowsMessage<UsageError>(matcher));
}

TEST(Capture, RefusesValues) {
  const auto names = [](const char* name) {
    return AllOf(HasSubstr(name), HasSubstr("of module inner.layer"), HasSubstr("by hand"));
  };
  expect_refused([](const at::Tensor& h) { return h.sum().item<float>() > 0 ? h : -h; },
                 names("aten::item"));
  expect_refused([](const at::Tensor& h) { return (h > 0).any().is_nonzero() ? h : -h; },
                 names("aten::is_nonzero"));
  expect_refused([](const at::Tensor& h) { return h.nonzero().to(at::kFloat); },
                 names("aten::nonzero"));
  expect_refused([](const at::Tensor& h) { return h.masked_select(h > 0); },
                 names("aten::masked_select"));
  expect_refused([](const at::Tensor& h) { return h.index({h > 0}); }, names("aten::index"));
}

// What comes next is not known: the message named the module that had come last.
TEST(Capture, SaysAfterWhichOperatorAValueIsRead) {
  expect_refused(
      [](const at::Tensor& h) { return h.sum().item<float>() > 0 ? h : -h; },
      HasSubstr("operator aten::item, after aten::addmm of module inner.layer (operator 1)"));
  nn::Linear layer(4, 4);
  EXPECT_THAT(
      [&] {
        captured({layer.ptr(),
                  [layer](const Tensors& x) mutable -> Tensors {
                    return {layer->forward(x[0].abs() * x[0].mean().item<float>()).sum()};
                  },
                  {torch::randn({3, 4})}});
      },
      ThrowsMessage<UsageError>(
          AllOf(HasSubstr("operator aten::item"), Not(HasSubstr("of module")))));
}

TEST(Capture, SaysWhichOperatorIsGivenAWrongShapeOrType) {
  const Subject right = after_layer([](const at::Tensor& h) { return h; });
  const auto expect_message = [&](const at::Tensor& input, const auto& matcher) {
    EXPECT_THAT([&] { captured({right.module, right.forward, {input}}); },
                ThrowsMessage<UsageError>(AllOf(matcher, Not(HasSubstr("frame #")))));
  };
  expect_message(torch::randn({3, 5}),
                 AllOf(HasSubstr("operator aten::addmm of module inner.layer"),
                       HasSubstr("mat1 = input 0 (Float [3, 5])"),
                       HasSubstr("self = inner.layer.bias (Float [4])"), HasSubstr("3x5 and 4x4"),
                       HasSubstr("shapes and types that the module takes")));
  expect_message(torch::randn({3, 4}).to(at::kDouble),
                 AllOf(HasSubstr("operator aten::addmm of module inner.layer"),
                       HasSubstr("mat1 = input 0 (Double [3, 4])")));
}

// Modules of LibTorch check what they are given before any operator does.
TEST(Capture, SaysAfterWhichOperatorForwardFailsAndNoFrames) {
  expect_refused_when_forward_fails(
      [](const at::Tensor& h) {
        TORCH_CHECK(h.size(1) == 9, "expected 9 columns, got ", h.size(1));
        return h;
      },
      AllOf(HasSubstr("forward, after aten::addmm of module inner.layer (operator 1): expected 9 "
                      "columns, got 4"),
            Not(HasSubstr("frame #"))));
}

// Indices that are out of range are found when values are there.
TEST(Replay, SaysWhichOperatorFailedAndNoFrames) {
  nn::Embedding table(5, 4);
  auto net = std::make_shared<nn::Module>();
  net->register_module("table", table);
  const Subject subject = {
      net,
      [table](const Tensors& x) mutable -> Tensors { return {table->forward(x[0]).sum()}; },
      {torch::randint(5, {6})}};
  const auto graph = std::make_shared<const graph::Graph>(captured(subject));
  const graph::Piece piece(graph, 0, graph->num_nodes(), *net);
  EXPECT_THAT([&] { piece.run({torch::full({6}, 7, at::kLong)}); },
              ThrowsMessage<UsageError>(AllOf(
                  HasSubstr("operator 0, aten::embedding of table failed: index out of range"),
                  HasSubstr("values"), Not(HasSubstr("frame #")))));
}

TEST(Capture, RefusesValuesOfRandomNumbers) {
  expect_refused([](const at::Tensor& h) { return torch::rand({1}).item<float>() < 0.5 ? h : -h; },
                 AllOf(HasSubstr("aten::item"), HasSubstr("random numbers")));
}

TEST(Capture, TakesValuesThatFollowFromShapes) {
  const Subject subject = after_layer(
      [](const at::Tensor& h) { return h * torch::arange(h.size(0)).sum().item<int>(); });
  const auto graph = std::make_shared<const graph::Graph>(captured(subject));
  expect_same(eager(subject), replayed(subject, graph, {0, graph->num_nodes()}));
}

TEST(Capture, RefusesFunctionsWhoseBackwardItCannotSee) {
  const auto message = AllOf(HasSubstr("torch::autograd::Function"), HasSubstr("of module inner"),
                             HasSubstr("TORCH_LIBRARY"), HasSubstr("by hand"));
  expect_refused([](const at::Tensor& h) { return Tripled::apply(h); }, message);
}

TEST(Capture, TakesOperatorsWithABackwardOfTheirOwn) {
  const Subject subject =
      after_layer([](const at::Tensor& h) { return call_own("trireme_graph_test::tripled", h); });
  const auto graph = std::make_shared<const graph::Graph>(captured(subject));
  expect_same(eager(subject), replayed(subject, graph, {0, graph->num_nodes()}));
}

TEST(Capture, RefusesHooks) {
  expect_refused(
      [](const at::Tensor& h) {
        const at::Tensor doubled = h * 2;
        doubled.register_hook([](const at::Tensor& gradient) { return gradient * 2; });
        return doubled.relu();
      },
      AllOf(HasSubstr("hook"), HasSubstr("operator 2, aten::mul"), HasSubstr("by hand")));
}

TEST(Capture, RefusesBackwardWithinForward) {
  expect_refused(
      [](const at::Tensor& h) {
        return torch::autograd::grad({h.sum()}, {h}, {}, std::nullopt, true)[0] * h;
      },
      HasSubstr("backward pass that forward itself starts"));
  expect_refused(
      [](const at::Tensor& h) {
        h.sum().backward({}, true);
        return h;
      },
      HasSubstr("backward pass that forward itself starts"));
}

TEST(Capture, RefusesTensorsThatAreNotTheModules) {
  at::Tensor count = torch::zeros({4});
  expect_refused(
      [count](const at::Tensor& h) mutable {
        count += 1;
        return h * count;
      },
      AllOf(HasSubstr("aten::add_.Scalar"), HasSubstr("register it as a buffer")));
  EXPECT_TRUE(torch::equal(count, torch::ones({4}))) << "written to by forward itself alone";
  at::Tensor sum = torch::zeros({3, 4});
  expect_refused([sum](const at::Tensor& h) mutable { return sum.add_(h.detach()) + h; },
                 HasSubstr("register it as a buffer"));
  const at::Tensor scale = torch::ones({4}).requires_grad_();
  expect_refused([scale](const at::Tensor& h) { return h * scale; },
                 AllOf(HasSubstr("aten::mul"), HasSubstr("register it as a parameter")));
}

TEST(Capture, RefusesMetaTensorsFromOutside) {
  const at::Tensor outside = torch::ones({4}, at::kMeta);
  const Subject subject = after_layer([=](const at::Tensor& h) { return h * outside; });
  EXPECT_THAT([&] { captured(subject); },
              ThrowsMessage<UsageError>(AllOf(HasSubstr("meta tensor"), HasSubstr("inputs"))));
}

TEST(Capture, RefusesOtherThreads) {
  expect_refused(
      [](const at::Tensor& h) {
        at::Tensor made;
        std::thread([&] { made = h * 2; }).join();
        return made;
      },
      AllOf(HasSubstr("another thread"), HasSubstr("Float")));
}

TEST(Capture, RefusesOperatorsWithoutRules) {
  expect_refused(twice, AllOf(HasSubstr("trireme_graph_test::twice"), HasSubstr("rules.md"),
                              HasSubstr("by hand")));
}

TEST(Capture, RefusesBackwardOfOperatorsWithoutRules) {
  expect_refused(
      [](const at::Tensor& h) { return call_own("trireme_graph_test::unruly", h); },
      AllOf(HasSubstr("backward of result of aten::sum"), HasSubstr("trireme_graph_test::twice")));
}

TEST(Capture, RefusesUndefinedResults) {
  Subject subject = after_layer([](const at::Tensor& h) { return h; });
  subject.forward = [](const Tensors&) -> Tensors { return {at::Tensor()}; };
  EXPECT_THAT([&] { captured(subject); }, ThrowsMessage<UsageError>(HasSubstr("result 0")));
}

class PieceErrors : public testing::Test {
 protected:
  // h and a view of it are both needed after h is written to.
  Subject subject_ = after_layer([](at::Tensor h) {
    const at::Tensor view = h.view({-1});
    const at::Tensor sum = h.sum();
    h.add_(sum);
    return view * 2 + h.sum();
  });
  std::shared_ptr<const graph::Graph> graph_ =
      std::make_shared<const graph::Graph>(captured(subject_));

  void make(int begin, int end) const {
    const graph::Piece piece(graph_, begin, end, *subject_.module);
  }
};

TEST_F(PieceErrors, SharedMemoryThatIsWrittenToAfterTheCut) {
  EXPECT_THAT([&] { make(0, 4); },
              ThrowsMessage<UsageError>(AllOf(HasSubstr("result of aten::addmm (operator 1)"),
                                              HasSubstr("result of aten::view (operator 2)"),
                                              HasSubstr("share memory"),
                                              HasSubstr("operator 4, aten::add_.Tensor"))));
  EXPECT_NO_THROW(make(0, 5));
  EXPECT_NO_THROW(make(2, graph_->num_nodes()));
}

TEST_F(PieceErrors, BoundariesThatAreNone) {
  for (const auto& [begin, end] : {std::pair(-1, 2), std::pair(2, 2), std::pair(0, 99)}) {
    const auto make_it = [&, from = begin, to = end] { make(from, to); };
    EXPECT_THAT(make_it, ThrowsMessage<UsageError>(HasSubstr("expected 0 <= begin < end")));
  }
}

TEST_F(PieceErrors, InputsOfOtherShapes) {
  const graph::Piece piece(graph_, 0, graph_->num_nodes(), *subject_.module);
  EXPECT_THAT([&] { piece.run({torch::randn({5, 4})}); },
              ThrowsMessage<UsageError>(
                  AllOf(HasSubstr("input 0"), HasSubstr("[5, 4]"), HasSubstr("[3, 4]"))));
  EXPECT_THAT([&] { piece.run({torch::ones({3, 4}, at::kLong)}); },
              ThrowsMessage<UsageError>(AllOf(HasSubstr("Long"), HasSubstr("Float"))));
  EXPECT_THAT([&] { piece.run({at::Tensor()}); },
              ThrowsMessage<UsageError>(HasSubstr("undefined")));
  EXPECT_THAT([&] { piece.run({}); }, ThrowsMessage<UsageError>(HasSubstr("0 inputs, expected 1")));
}

TEST_F(PieceErrors, ModulesThatAreOthers) {
  const nn::Linear other(4, 4);
  EXPECT_THAT([&] { graph::Piece(graph_, 0, 2, *other); },
              ThrowsMessage<UsageError>(HasSubstr("has no inner.layer.weight")));
  nn::Sequential inner;
  inner->push_back("layer", nn::Linear(4, 6));
  nn::Module outer;
  outer.register_module("inner", inner);
  EXPECT_THAT([&] { graph::Piece(graph_, 0, 2, outer); },
              ThrowsMessage<UsageError>(AllOf(HasSubstr("[6, 4]"), HasSubstr("[4, 4]"))));
}

TEST(Piece, OfBuffersThatAreWrittenToOnBothSidesCannotBeMade) {
  auto net = std::make_shared<nn::Module>();
  const at::Tensor count = net->register_buffer("count", torch::zeros({}));
  const Subject subject = {net,
                           [count](const Tensors& x) -> Tensors {
                             count.add_(1);
                             const at::Tensor h = x[0] * count;
                             count.add_(2);
                             return {(h * count).sum()};
                           },
                           {torch::ones({2})}};
  const auto graph = std::make_shared<const graph::Graph>(captured(subject));
  EXPECT_THAT(graph::reason_against_cut(*graph, 2),
              AllOf(HasSubstr("count"), HasSubstr("memory of the module")));
  EXPECT_EQ(graph::reason_against_cut(*graph, 3), "");
}

}  // namespace
}  // namespace trireme::test
