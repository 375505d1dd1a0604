// SPDX-License-Identifier: Apache-2.0
// Every module is run by its own code and by its graph, whole and cut in two at every boundary:
// results, gradients and buffers are the same bit for bit.
#include <models/gpt.h>
#include <models/resnet.h>
#include <trireme/graph/show/graph_text.h>
#include <trireme/optim/autocast.h>

#include <tests/unit/graph/replays.h>

namespace trireme::test {
namespace {

namespace nn = torch::nn;

struct Case {
  std::string name;
  std::function<Subject()> make;
  int fewest_cuts = 1;  ///< places where it must be possible to cut
};

std::ostream& operator<<(std::ostream& out, const Case& item) { return out << item.name; }

// A module of whatever parts, with a forward of its own.
struct Free : nn::Module {};

template <typename Holder>
Holder with(const std::shared_ptr<Free>& net, const std::string& name, Holder module) {
  net->register_module(name, module);
  return module;
}

at::Tensor loss_of(const at::Tensor& outputs) { return (outputs * outputs).mean(); }

Subject subject_of(std::shared_ptr<nn::Module> module, Tensors inputs,
                   const std::function<at::Tensor(const Tensors&)>& outputs) {
  return {std::move(module),
          [outputs](const Tensors& given) -> Tensors {
            const at::Tensor result = outputs(given);
            return {loss_of(result), result};
          },
          std::move(inputs)};
}

nn::Sequential convolutions() {
  return nn::Sequential(nn::Conv2d(nn::Conv2dOptions(3, 8, 3).padding(1)), nn::BatchNorm2d(8),
                        nn::ReLU(nn::ReLUOptions(true)), nn::Dropout(0.25), nn::Conv2d(8, 4, 3),
                        nn::GroupNorm(2, 4), nn::GELU(), nn::MaxPool2d(2));
}

Subject convolution(bool train) {
  nn::Sequential net = convolutions();
  net->train(train);
  return subject_of(net.ptr(), {torch::randn({4, 3, 8, 8})},
                    [net](const Tensors& x) mutable { return net->forward(x[0]); });
}

Subject linear() {
  nn::Sequential net(nn::Linear(6, 12), nn::Tanh(), nn::LayerNorm(nn::LayerNormOptions({12})),
                     nn::Linear(12, 5));
  return {net.ptr(),
          [net](const Tensors& x) mutable -> Tensors {
            const at::Tensor outputs = net->forward(x[0]);
            return {nn::functional::cross_entropy(outputs, x[1]), outputs.argmax(1)};
          },
          {torch::randn({7, 6}).requires_grad_(), torch::randint(5, {7})}};
}

Subject attention() {
  nn::MultiheadAttention net(nn::MultiheadAttentionOptions(16, 4).dropout(0.1));
  return subject_of(
      net.ptr(), {torch::randn({5, 3, 16}).requires_grad_()},
      [net](const Tensors& x) mutable { return std::get<0>(net->forward(x[0], x[0], x[0])); });
}

Subject transformer() {
  nn::TransformerEncoder net(nn::TransformerEncoderOptions(
      nn::TransformerEncoderLayerOptions(16, 4).dim_feedforward(32).dropout(0.2), 2));
  return subject_of(net.ptr(), {torch::randn({5, 3, 16})},
                    [net](const Tensors& x) mutable { return net->forward(x[0]); });
}

Subject lstm() {
  nn::LSTM net(nn::LSTMOptions(6, 8).num_layers(2).dropout(0.3).batch_first(true));
  return subject_of(net.ptr(), {torch::randn({3, 5, 6}).requires_grad_()},
                    [net](const Tensors& x) mutable { return std::get<0>(net->forward(x[0])); });
}

Subject gpt(bool tied) {
  models::GPT net(models::GPTOptions{.vocabulary = 40,
                                     .sequence = 12,
                                     .hidden = 16,
                                     .layers = 2,
                                     .heads = 2,
                                     .dropout = 0.2,
                                     .tied = tied});
  return {net.ptr(),
          [net](const Tensors& x) mutable -> Tensors {
            const at::Tensor logits = net->forward(x[0]);
            return {nn::functional::cross_entropy(logits.flatten(0, 1), x[1].flatten())};
          },
          {torch::randint(40, {2, 10}), torch::randint(40, {2, 10})}};
}

Subject resnet() {
  auto net = models::resnet20();
  return {net.ptr(),
          [net](const Tensors& x) mutable -> Tensors {
            return {nn::functional::cross_entropy(net->forward(x[0]), x[1])};
          },
          {torch::randn({2, 3, 16, 16}), torch::randint(10, {2})}};
}

// Skips cross more than one boundary.
Subject unet() {
  auto net = std::make_shared<Free>();
  auto down = with(net, "down", nn::Conv2d(nn::Conv2dOptions(2, 4, 3).padding(1)));
  auto deeper = with(net, "deeper", nn::Conv2d(nn::Conv2dOptions(4, 4, 3).padding(1).stride(2)));
  auto up = with(net, "up", nn::ConvTranspose2d(nn::ConvTranspose2dOptions(4, 4, 2).stride(2)));
  auto head = with(net, "head", nn::Conv2d(10, 2, 1));
  return subject_of(net, {torch::randn({2, 2, 8, 8}).requires_grad_()},
                    [=](const Tensors& x) mutable {
                      const at::Tensor a = torch::relu(down(x[0]));
                      const at::Tensor b = torch::relu(deeper(a));
                      return head(torch::cat({up(b), a, x[0]}, 1));
                    });
}

Subject in_place() {
  auto net = std::make_shared<Free>();
  auto first = with(net, "first", nn::Linear(6, 6));
  auto second = with(net, "second", nn::Linear(6, 6));
  return subject_of(net, {torch::randn({4, 6})}, [=](const Tensors& x) mutable {
    at::Tensor h = first(x[0]);
    h.select(1, 2).mul_(3);
    h.narrow(0, 1, 2).add_(1);
    at::Tensor flat = h.view({-1});
    flat.index_put_({torch::tensor({0, 5})}, torch::tensor({1.0F, 2.0F}));
    h.masked_fill_(h > 2, 0.5);
    return second(h).relu_();
  });
}

// An input that is written to, one that is a result, one that only the last operators use.
Subject inputs_and_results() {
  auto net = std::make_shared<Free>();
  auto layer = with(net, "layer", nn::Linear(4, 4));
  return {net,
          [=](const Tensors& x) mutable -> Tensors {
            at::Tensor h = x[0];
            h.add_(1);
            const at::Tensor outputs = layer(h) * x[1];
            return {(outputs - x[2]).square().sum(), x[2], outputs, outputs};
          },
          {torch::randn({3, 4}), torch::randn({4}).requires_grad_(), torch::randn({3, 4})}};
}

Subject autocast() {
  nn::Sequential net(nn::Linear(8, 8), nn::ReLU(), nn::Linear(8, 8));
  return subject_of(net.ptr(), {torch::randn({4, 8}).requires_grad_()},
                    [net](const Tensors& x) mutable {
                      at::Tensor h;
                      {
                        const Autocast on(at::kCPU);
                        h = net->forward(x[0]);
                        const Autocast off(at::kCPU, at::kBFloat16, false);
                        h = h.to(at::kFloat).softmax(1);
                      }
                      return net->forward(h);
                    });
}

Subject no_grad() {
  nn::Sequential net(nn::Linear(5, 5), nn::Linear(5, 5));
  return subject_of(net.ptr(), {torch::randn({3, 5})}, [net](const Tensors& x) mutable {
    at::Tensor scale;
    {
      const torch::NoGradGuard off;
      scale = net->forward(x[0]).abs().mean();
    }
    return net->forward(x[0]) / (scale + net->forward(x[0]).detach().mean());
  });
}

Subject factories() {
  auto net = std::make_shared<Free>();
  auto layer = with(net, "layer", nn::Linear(4, 4));
  return subject_of(net, {torch::randn({3, 4})}, [=](const Tensors& x) mutable {
    at::Tensor h = layer(x[0]) + torch::arange(4) * 0.5 + torch::tensor({1.0F, 2.0F, 3.0F, 4.0F});
    h = h + torch::rand({3, 4}) + torch::randn_like(h) * torch::eye(4).sum();
    at::Tensor sums = torch::zeros({3, 4});
    sums.index_add_(0, torch::tensor({2, 0, 1}), h);
    at::Tensor rows = torch::empty({2, 4});
    rows[0] = sums[1];
    rows[1] = sums.sum(0);
    return torch::where(rows > 1, rows, torch::full({2, 4}, 0.25));
  });
}

Subject lists() {
  auto net = std::make_shared<Free>();
  auto layer = with(net, "layer", nn::Linear(6, 6));
  return subject_of(net, {torch::randn({4, 6})}, [=](const Tensors& x) mutable {
    auto parts = torch::split((layer(x[0]) + 0).clone(), 2, 1);
    for (at::Tensor& part : parts) part = part.clone();
    const at::Tensor stacked =
        torch::stack(parts).index({torch::indexing::Slice(), torch::tensor({0, 2})});
    auto pieces = torch::split(stacked, 1, 0);
    torch::_foreach_mul_(parts, 2.0);
    return torch::einsum("abc,bd->acd",
                         {torch::cat(pieces, 0), torch::cat(parts, 1).narrow(0, 0, 2)});
  });
}

Subject called_twice() {
  auto net = std::make_shared<Free>();
  auto layer = with(net, "layer", nn::Linear(5, 5));
  auto norm = with(net, "norm", nn::BatchNorm1d(5));
  return subject_of(net, {torch::randn({6, 5})}, [=](const Tensors& x) mutable {
    return norm(layer(torch::relu(norm(layer(x[0])))));
  });
}

Subject buffers() {
  auto net = std::make_shared<Free>();
  auto count = net->register_buffer("count", torch::zeros({}));
  auto table = net->register_buffer("table", torch::zeros({3}));
  auto layer = with(net, "layer", nn::Linear(3, 3));
  return subject_of(net, {torch::randn({2, 3})}, [=](const Tensors& x) mutable {
    count += 1;
    const at::Tensor h = layer(x[0]) * count;
    table[1] += h.detach().mean();
    return h + table;
  });
}

// LibTorch fills the memory of such tensors itself.
Subject vectors() {
  auto net = std::make_shared<Free>();
  auto layer = with(net, "layer", nn::Linear(3, 3));
  return subject_of(net, {torch::randn({2, 3})}, [=](const Tensors& x) mutable {
    const auto weights = torch::tensor(std::vector<float>{0.5, 2, 3});
    const auto order = torch::tensor(std::vector<std::int64_t>{2, 0, 1});
    auto own = torch::empty({3});
    own.fill_(4);
    return (layer(x[0]) * weights).index_select(1, order) + own;
  });
}

std::vector<Case> cases() {
  return {{"Linear", linear, 4},
          {"ConvolutionInTraining", [] { return convolution(true); }, 6},
          {"ConvolutionInEvaluation", [] { return convolution(false); }, 6},
          {"Attention", attention, 10},
          {"TransformerEncoder", transformer, 20},
          {"Lstm", lstm, 2},
          {"Gpt", [] { return gpt(false); }, 20},
          {"GptWithTiedEmbedding", [] { return gpt(true); }, 20},
          {"ResNet", resnet, 50},
          {"UNet", unet, 6},
          {"InPlaceOnViews", in_place, 4},
          {"InputsAndResults", inputs_and_results, 3},
          {"Autocast", autocast, 8},
          {"NoGrad", no_grad, 10},
          {"Factories", factories, 10},
          {"Lists", lists, 4},
          {"CalledTwice", called_twice, 1},
          {"Buffers", buffers, 2},
          {"Vectors", vectors, 3}};
}

class Replay : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    at::set_num_threads(1);
    torch::manual_seed(3);
    subject_ = GetParam().make();
    graph_ = std::make_shared<const graph::Graph>(captured(subject_));
  }

  Subject subject_;
  std::shared_ptr<const graph::Graph> graph_;
};

TEST_P(Replay, OfTheWholeGivesTheBitsOfTheModule) {
  expect_same(eager(subject_), replayed(subject_, graph_, {0, graph_->num_nodes()}));
}

TEST_P(Replay, OfAGraphThatAFileCanHold) {
  const std::string text = graph::to_text(*graph_);
  EXPECT_EQ(graph::to_text(graph::parse_graph(text)), text);
}

TEST_P(Replay, CutInTwoAnywhereGivesTheBitsOfTheModule) {
  const Outcome expected = eager(subject_);
  int num_cuts = 0;
  for (int boundary = 1; boundary < graph_->num_nodes(); ++boundary) {
    if (!graph::reason_against_cut(*graph_, boundary).empty()) continue;
    SCOPED_TRACE(testing::Message() << "cut before " << graph_->describe(boundary));
    expect_same(expected, replayed(subject_, graph_, {0, boundary, graph_->num_nodes()}));
    ++num_cuts;
    if (HasFatalFailure() || HasNonfatalFailure()) break;
  }
  EXPECT_GE(num_cuts, GetParam().fewest_cuts);
}

INSTANTIATE_TEST_SUITE_P(Modules, Replay, testing::ValuesIn(cases()),
                         [](const auto& item) { return item.param.name; });

}  // namespace
}  // namespace trireme::test
