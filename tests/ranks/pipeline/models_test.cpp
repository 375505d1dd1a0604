// SPDX-License-Identifier: Apache-2.0
// Models as they are published, small and in single precision, over two stages: the bits of one
// process. Vision transformer, U-Net, translation with LSTMs and attention, mixture of experts,
// Siamese network, rotary embeddings as complex buffers, LibTorch's own transformer.
#include <trireme/parallel/training_step.h>

#include <gtest/gtest.h>
#include <tests/ranks/pipeline/loops.h>
#include <tests/ranks/thread_ranks.h>
#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <ostream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace trireme {
namespace {

namespace nn = torch::nn;
namespace functional = torch::nn::functional;
using test::fill;
using test::Network;
using test::numbers;
using torch::Tensor;

Tensor integers(torch::IntArrayRef sizes, std::int64_t step, std::int64_t classes) {
  return (torch::arange(c10::multiply_integers(sizes)) * 7 + step)
      .remainder(classes)
      .reshape(sizes);
}

// A class token, positions as a parameter, attention of LibTorch, norms before.
struct VisionTransformerImpl : nn::Module {
  struct BlockImpl : nn::Module {
    BlockImpl() {
      norm1 = register_module("norm1", nn::LayerNorm(nn::LayerNormOptions({8})));
      attention =
          register_module("attention", nn::MultiheadAttention(nn::MultiheadAttentionOptions(8, 2)));
      norm2 = register_module("norm2", nn::LayerNorm(nn::LayerNormOptions({8})));
      mlp =
          register_module("mlp", nn::Sequential(nn::Linear(8, 16), nn::GELU(), nn::Linear(16, 8)));
    }
    Tensor forward(Tensor x) {
      const Tensor h = norm1(x).transpose(0, 1);
      x = x + std::get<0>(attention(h, h, h)).transpose(0, 1);
      return x + mlp->forward(norm2(x));
    }
    nn::LayerNorm norm1{nullptr}, norm2{nullptr};
    nn::MultiheadAttention attention{nullptr};
    nn::Sequential mlp{nullptr};
  };
  TORCH_MODULE(Block);

  VisionTransformerImpl() {
    patches = register_module("patches", nn::Conv2d(nn::Conv2dOptions(3, 8, 4).stride(4)));
    token = register_parameter("token", torch::zeros({1, 1, 8}));
    positions = register_parameter("positions", torch::zeros({1, 5, 8}));
    for (int i = 0; i < 4; ++i) blocks->push_back(Block());
    register_module("blocks", blocks);
    head = register_module("head", nn::Linear(8, 5));
  }
  Tensor forward(const Tensor& images) {
    Tensor x = patches(images).flatten(2).transpose(1, 2);
    x = torch::cat({token.expand({x.size(0), -1, -1}), x}, 1) + positions;
    for (const auto& block : *blocks) x = block->as<BlockImpl>()->forward(x);
    return head(x.select(1, 0));
  }
  nn::Conv2d patches{nullptr};
  Tensor token, positions;
  nn::ModuleList blocks;
  nn::Linear head{nullptr};
};
TORCH_MODULE(VisionTransformer);

Network vision_transformer() {
  VisionTransformer net;
  fill(*net);
  return {.module = net.ptr(),
          .forward = [net](const auto& in) mutable -> std::vector<Tensor> {
            return {functional::cross_entropy(net->forward(in[0]), in[1])};
          },
          .batch = [](std::int64_t rows, std::int64_t step) -> std::vector<Tensor> {
            return {numbers({rows, 3, 8, 8}, step), integers({rows}, step, 5)};
          },
          .modules = {"patches", "blocks.2"}};
}

// Connections over the boundary between the stages, transposed convolutions, batch norm.
struct UNetImpl : nn::Module {
  static nn::Sequential twice(int in, int out) {
    return nn::Sequential(nn::Conv2d(nn::Conv2dOptions(in, out, 3).padding(1).bias(false)),
                          nn::BatchNorm2d(out), nn::ReLU(nn::ReLUOptions(true)),
                          nn::Conv2d(nn::Conv2dOptions(out, out, 3).padding(1)),
                          nn::ReLU(nn::ReLUOptions(true)));
  }
  UNetImpl() {
    down1 = register_module("down1", twice(2, 4));
    down2 = register_module("down2", twice(4, 8));
    bottom = register_module("bottom", twice(8, 8));
    up2 =
        register_module("up2", nn::ConvTranspose2d(nn::ConvTranspose2dOptions(8, 8, 2).stride(2)));
    join2 = register_module("join2", twice(16, 4));
    up1 =
        register_module("up1", nn::ConvTranspose2d(nn::ConvTranspose2dOptions(4, 4, 2).stride(2)));
    join1 = register_module("join1", twice(8, 4));
    last = register_module("last", nn::Conv2d(nn::Conv2dOptions(4, 3, 1)));
  }
  Tensor forward(const Tensor& x) {
    const Tensor a = down1->forward(x);
    const Tensor b = down2->forward(torch::max_pool2d(a, 2));
    Tensor h = up2(bottom->forward(torch::max_pool2d(b, 2)));
    h = up1(join2->forward(torch::cat({h, b}, 1)));
    return last(join1->forward(torch::cat({h, a}, 1)));
  }
  nn::Sequential down1{nullptr}, down2{nullptr}, bottom{nullptr}, join2{nullptr}, join1{nullptr};
  nn::ConvTranspose2d up2{nullptr}, up1{nullptr};
  nn::Conv2d last{nullptr};
};
TORCH_MODULE(UNet);

Network u_net() {
  UNet net;
  fill(*net);
  return {.module = net.ptr(),
          .forward = [net](const auto& in) mutable -> std::vector<Tensor> {
            return {functional::cross_entropy(net->forward(in[0]), in[1])};
          },
          .batch = [](std::int64_t rows, std::int64_t step) -> std::vector<Tensor> {
            return {numbers({rows, 2, 8, 8}, step), integers({rows, 8, 8}, step, 3)};
          },
          .modules = {"down1", "up2"}};
}

// The state of a bidirectional encoder begins the decoder, which looks at all of its outputs.
struct TranslatorImpl : nn::Module {
  TranslatorImpl() {
    source = register_module("source", nn::Embedding(9, 6));
    encoder = register_module(
        "encoder", nn::LSTM(nn::LSTMOptions(6, 3).batch_first(true).bidirectional(true)));
    target = register_module("target", nn::Embedding(9, 6));
    decoder = register_module("decoder", nn::LSTM(nn::LSTMOptions(6, 6).batch_first(true)));
    head = register_module("head", nn::Linear(12, 9));
  }
  Tensor forward(const Tensor& from, const Tensor& to) {
    const auto [seen, state] = encoder(source(from));
    const auto joined = [](const Tensor& both) {
      return both.transpose(0, 1).reshape({1, both.size(1), -1}).contiguous();
    };
    const auto [h, last] = decoder(
        target(to), std::make_tuple(joined(std::get<0>(state)), joined(std::get<1>(state))));
    const Tensor weights = torch::softmax(torch::bmm(h, seen.transpose(1, 2)), -1);
    return head(torch::cat({h, torch::bmm(weights, seen)}, -1));
  }
  nn::Embedding source{nullptr}, target{nullptr};
  nn::LSTM encoder{nullptr}, decoder{nullptr};
  nn::Linear head{nullptr};
};
TORCH_MODULE(Translator);

Network translator() {
  Translator net;
  fill(*net);
  return {
      .module = net.ptr(),
      .forward = [net](const auto& in) mutable -> std::vector<Tensor> {
        return {
            functional::cross_entropy(net->forward(in[0], in[1]).flatten(0, 1), in[2].flatten())};
      },
      .batch = [](std::int64_t rows, std::int64_t step) -> std::vector<Tensor> {
        const Tensor target = integers({rows, 6}, step, 9);
        return {integers({rows, 4}, step + 3, 9), target.narrow(1, 0, 5), target.narrow(1, 1, 5)};
      },
      .modules = {"source", "target"}};
}

// All experts compute, and the two best count; a loss that balances them comes from each layer.
struct ExpertsImpl : nn::Module {
  struct LayerImpl : nn::Module {
    LayerImpl() {
      gate = register_module("gate", nn::Linear(6, 4));
      for (int i = 0; i < 4; ++i) {
        experts->push_back(nn::Sequential(nn::Linear(6, 8), nn::SiLU(), nn::Linear(8, 6)));
      }
      register_module("experts", experts);
    }
    std::tuple<Tensor, Tensor> forward(const Tensor& x) {
      const Tensor likely = torch::softmax(gate(x), -1);
      const auto [best, places] = likely.topk(2, -1);
      const Tensor weights = torch::zeros_like(likely).scatter(-1, places, best);
      std::vector<Tensor> given;
      for (const auto& expert : *experts)
        given.push_back(expert->as<nn::SequentialImpl>()->forward(x));
      const Tensor all = torch::stack(given, -1);
      const Tensor chosen = weights.gt(0).to(torch::kFloat).mean(0);
      return {x + (all * weights.unsqueeze(1)).sum(-1), (chosen * likely.mean(0)).sum() * 4};
    }
    nn::Linear gate{nullptr};
    nn::ModuleList experts;
  };
  TORCH_MODULE(Layer);

  ExpertsImpl() {
    for (int i = 0; i < 2; ++i) layers->push_back(Layer());
    register_module("layers", layers);
    head = register_module("head", nn::Linear(6, 3));
  }
  std::tuple<Tensor, Tensor> forward(Tensor x) {
    Tensor balance = torch::zeros({});
    for (const auto& layer : *layers) {
      const auto [h, of_layer] = layer->as<LayerImpl>()->forward(x);
      x = h;
      balance = balance + of_layer;
    }
    return {head(x), balance};
  }
  nn::ModuleList layers;
  nn::Linear head{nullptr};
};
TORCH_MODULE(Experts);

Network experts() {
  Experts net;
  fill(*net);
  return {.module = net.ptr(),
          .forward = [net](const auto& in) mutable -> std::vector<Tensor> {
            const auto [given, balance] = net->forward(in[0]);
            return {functional::cross_entropy(given, in[1]) + 0.01 * balance};
          },
          .batch = [](std::int64_t rows, std::int64_t step) -> std::vector<Tensor> {
            return {numbers({rows, 6}, step), integers({rows}, step, 3)};
          },
          .modules = {"layers.0", "layers.1"}};
}

// One encoder called twice, a head that compares.
struct SiameseImpl : nn::Module {
  SiameseImpl() {
    encoder =
        register_module("encoder", nn::Sequential(nn::Conv1d(nn::Conv1dOptions(2, 4, 3)),
                                                  nn::ReLU(), nn::Flatten(), nn::Linear(24, 6)));
    head = register_module("head", nn::Bilinear(6, 6, 1));
  }
  Tensor forward(const Tensor& left, const Tensor& right) {
    return head(encoder->forward(left), encoder->forward(right)).squeeze(1);
  }
  nn::Sequential encoder{nullptr};
  nn::Bilinear head{nullptr};
};
TORCH_MODULE(Siamese);

Network siamese() {
  Siamese net;
  fill(*net);
  return {
      .module = net.ptr(),
      .forward = [net](const auto& in) mutable -> std::vector<Tensor> {
        return {functional::binary_cross_entropy_with_logits(net->forward(in[0], in[1]), in[2])};
      },
      .batch = [](std::int64_t rows, std::int64_t step) -> std::vector<Tensor> {
        return {numbers({rows, 2, 8}, step), numbers({rows, 2, 8}, step + 50),
                integers({rows}, step, 2).to(torch::kFloat)};
      },
      .modules = {"encoder", "head"}};
}

// Frequencies as complex numbers in a buffer that every layer takes.
struct RotaryImpl : nn::Module {
  struct LayerImpl : nn::Module {
    LayerImpl() {
      projection = register_module("projection", nn::Linear(nn::LinearOptions(8, 24).bias(false)));
      output = register_module("output", nn::Linear(8, 8));
    }
    static Tensor turned(const Tensor& x, const Tensor& frequencies) {
      const Tensor pairs = torch::view_as_complex(x.unflatten(-1, {-1, 2}).contiguous());
      return torch::view_as_real(pairs * frequencies).flatten(-2);
    }
    Tensor forward(const Tensor& x, const Tensor& turns) {
      const auto parts = projection(x).unflatten(-1, {6, 4}).transpose(1, 2).chunk(3, 1);
      const Tensor mixed = torch::scaled_dot_product_attention(
          turned(parts[0], turns), turned(parts[1], turns), parts[2], {}, 0.0, true);
      return x + output(mixed.transpose(1, 2).flatten(2));
    }
    nn::Linear projection{nullptr}, output{nullptr};
  };
  TORCH_MODULE(Layer);

  RotaryImpl() {
    words = register_module("words", nn::Embedding(11, 8));
    const Tensor angles = torch::outer(torch::arange(5, torch::kFloat),
                                       torch::pow(10.0, -torch::arange(2, torch::kFloat)));
    frequencies = register_buffer("frequencies", torch::polar(torch::ones_like(angles), angles));
    for (int i = 0; i < 4; ++i) layers->push_back(Layer());
    register_module("layers", layers);
    head = register_module("head", nn::Linear(8, 11));
  }
  Tensor forward(const Tensor& tokens) {
    Tensor x = words(tokens);
    for (const auto& layer : *layers) x = layer->as<LayerImpl>()->forward(x, frequencies);
    return head(x);
  }
  nn::Embedding words{nullptr};
  Tensor frequencies;
  nn::ModuleList layers;
  nn::Linear head{nullptr};
};
TORCH_MODULE(Rotary);

Network rotary() {
  Rotary net;
  fill(*net);
  return {.module = net.ptr(),
          .forward = [net](const auto& in) mutable -> std::vector<Tensor> {
            return {functional::cross_entropy(net->forward(in[0]).flatten(0, 1), in[1].flatten())};
          },
          .batch = [](std::int64_t rows, std::int64_t step) -> std::vector<Tensor> {
            const Tensor tokens = integers({rows, 6}, step, 11);
            return {tokens.narrow(1, 0, 5), tokens.narrow(1, 1, 5)};
          },
          .modules = {"words", "layers.2"}};
}

// What several stages compute with (the output of the encoder) crosses them.
struct TransformerNetImpl : nn::Module {
  TransformerNetImpl() {
    words = register_module("words", nn::Embedding(9, 8));
    transformer = register_module(
        "transformer",
        nn::Transformer(nn::TransformerOptions(8, 2, 2, 2).dim_feedforward(16).dropout(0)));
    head = register_module("head", nn::Linear(8, 9));
  }
  Tensor forward(const Tensor& from, const Tensor& to) {
    const Tensor mask = nn::TransformerImpl::generate_square_subsequent_mask(to.size(1));
    const Tensor h =
        transformer(words(from).transpose(0, 1), words(to).transpose(0, 1), Tensor(), mask);
    return head(h.transpose(0, 1));
  }
  nn::Embedding words{nullptr};
  nn::Transformer transformer{nullptr};
  nn::Linear head{nullptr};
};
TORCH_MODULE(TransformerNet);

Network transformer() {
  TransformerNet net;
  fill(*net);
  return {
      .module = net.ptr(),
      .forward = [net](const auto& in) mutable -> std::vector<Tensor> {
        return {
            functional::cross_entropy(net->forward(in[0], in[1]).flatten(0, 1), in[2].flatten())};
      },
      .batch = [](std::int64_t rows, std::int64_t step) -> std::vector<Tensor> {
        const Tensor target = integers({rows, 6}, step, 9);
        return {integers({rows, 4}, step + 3, 9), target.narrow(1, 0, 5), target.narrow(1, 1, 5)};
      },
      .modules = {"words", "transformer.decoder"}};
}

struct ModelCase {
  std::string name;
  std::function<Network()> make;
  friend std::ostream& operator<<(std::ostream& out, const ModelCase& test_case) {
    return out << test_case.name;
  }
};

class PipelineOfModel : public ::testing::TestWithParam<ModelCase> {};

TEST_P(PipelineOfModel, HasTheBitsOfOneProcess) {
  torch::set_num_threads(1);
  test::Arranged arranged;
  arranged.rows = 6;
  const test::Outcome expected = test::Alone(GetParam().make()).train(arranged);
  for (const std::string schedule : {"1f1b", "zb-h1"}) {
    arranged.schedule = schedule;
    testing::run_ranks(2, [&](const comm::Group& group) {
      SCOPED_TRACE(schedule);
      test::expect_same_bits(test::train(GetParam().make(), arranged, group), expected);
    });
  }
}

// Stages of equal cost may begin anywhere; a weight that both use has its gradients added in
// another order then.
TEST_P(PipelineOfModel, IsBalancedWhereNoStagesAreNamed) {
  torch::set_num_threads(1);
  test::Arranged arranged;
  arranged.rows = 6;
  const test::Outcome expected = test::Alone(GetParam().make()).train(arranged);
  testing::run_ranks(2, [&](const comm::Group& group) {
    const Network network = GetParam().make();
    const auto optimizer = test::make_optimizer(arranged.optimizer, network.module->parameters());
    Plan plan = test::plan_of(arranged, network);
    plan.stages.clear();
    TrainingStep pipeline(*network.module, network.forward, plan, group);
    for (int step = 0; step < arranged.steps; ++step) {
      optimizer->zero_grad();
      static_cast<void>(pipeline.step(network.batch(arranged.rows, step)));
      optimizer->step();
    }
    const Tensor loss = pipeline.evaluate(network.batch(arranged.rows, 0)).loss;
    EXPECT_TRUE(torch::isfinite(loss).item<bool>());
    pipeline.gather_parameters();
    const auto parameters = network.module->parameters();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      EXPECT_TRUE(torch::allclose(parameters[i], expected.parameters[i], 1e-4, 1e-5)) << i;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    Models, PipelineOfModel,
    ::testing::Values(ModelCase{"VisionTransformer", vision_transformer}, ModelCase{"UNet", u_net},
                      ModelCase{"LstmWithAttention", translator},
                      ModelCase{"MixtureOfExperts", experts}, ModelCase{"Siamese", siamese},
                      ModelCase{"Rotary", rotary}, ModelCase{"Transformer", transformer}),
    [](const auto& item) { return item.param.name; });

}  // namespace
}  // namespace trireme
