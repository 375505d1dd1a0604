// SPDX-License-Identifier: Apache-2.0
// Every module of torch::nn and every function of torch::nn::functional on distributed tensors,
// against one process. The names are those of LibTorch's headers: one that is new there has to get
// a case here, or a reason why it is refused.
#include <trireme/base/error.h>

#include <gmock/gmock.h>
#include <tests/ranks/operators/operator_checks.h>

#include <algorithm>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <regex>
#include <set>
#include <string>
#include <tuple>
#include <vector>

namespace trireme {
namespace {

namespace nn = torch::nn;
namespace F = torch::nn::functional;
using test::sample;
using test::Tensors;

struct Built {
  std::shared_ptr<nn::Module> module;
  std::function<Tensors(const Tensors&)> forward;
  Tensors inputs;
};

struct ModuleCase {
  std::function<Built()> make;
  bool is_random = false;  ///< other numbers than one process: it only has to run
};

template <typename Result>
void append(Tensors& all, const Result& result) {
  if constexpr (std::is_same_v<Result, torch::Tensor>) {
    if (result.defined()) all.push_back(result);
  } else {
    std::apply([&](const auto&... parts) { (append(all, parts), ...); }, result);
  }
}

template <typename Holder, typename Forward>
Built built(Holder holder, const Forward& forward, Tensors inputs) {
  holder->to(torch::kDouble);
  const torch::NoGradGuard guard;
  for (auto& parameter : holder->parameters()) {
    parameter.copy_(sample(parameter.sizes(), parameter.scalar_type()) / 8);
  }
  return {holder.ptr(),
          [holder, forward](const Tensors& in) mutable {
            Tensors all;
            append(all, forward(holder, in));
            return all;
          },
          std::move(inputs)};
}

template <typename MakeHolder>
ModuleCase unary(const MakeHolder& make, const Tensors& inputs) {
  return {
      [=] { return built(make(), [](auto& m, const Tensors& in) { return m(in[0]); }, inputs); }};
}

template <typename MakeHolder>
ModuleCase binary(const MakeHolder& make, const Tensors& inputs) {
  return {[=] {
    return built(make(), [](auto& m, const Tensors& in) { return m(in[0], in[1]); }, inputs);
  }};
}

template <typename MakeHolder, typename Forward>
ModuleCase by(const MakeHolder& make, const Forward& forward, const Tensors& inputs) {
  return {[=] { return built(make(), forward, inputs); }};
}

template <typename Function>
ModuleCase functional(const Function& function, const Tensors& inputs) {
  return by([] { return nn::Identity(); },
            [function](auto&, const Tensors& in) { return function(in); }, inputs);
}

ModuleCase random(ModuleCase one_case) {
  one_case.is_random = true;
  return one_case;
}

torch::Tensor classes(torch::IntArrayRef sizes, std::int64_t count) {
  std::int64_t size = 1;
  for (const std::int64_t extent : sizes) size *= extent;
  return torch::arange(size, torch::kLong).remainder(count).view(sizes);
}

using Cases = std::map<std::string, ModuleCase>;

void add_activations(Cases& cases) {
  const Tensors x = {sample({4, 6})};
  cases["CELU"] = unary([] { return nn::CELU(); }, x);
  cases["ELU"] = unary([] { return nn::ELU(); }, x);
  cases["GELU"] = unary([] { return nn::GELU(); }, x);
  cases["GLU"] = unary([] { return nn::GLU(); }, x);
  cases["Hardshrink"] = unary([] { return nn::Hardshrink(); }, x);
  cases["Hardtanh"] = unary([] { return nn::Hardtanh(); }, x);
  cases["LeakyReLU"] = unary([] { return nn::LeakyReLU(); }, x);
  cases["LogSigmoid"] = unary([] { return nn::LogSigmoid(); }, x);
  cases["LogSoftmax"] = unary([] { return nn::LogSoftmax(1); }, x);
  cases["Mish"] = unary([] { return nn::Mish(); }, x);
  cases["PReLU"] = unary([] { return nn::PReLU(nn::PReLUOptions().num_parameters(6)); }, x);
  cases["RReLU"] = random(unary([] { return nn::RReLU(); }, x));
  cases["ReLU"] = unary([] { return nn::ReLU(); }, x);
  cases["ReLU6"] = unary([] { return nn::ReLU6(); }, x);
  cases["SELU"] = unary([] { return nn::SELU(); }, x);
  cases["SiLU"] = unary([] { return nn::SiLU(); }, x);
  cases["Sigmoid"] = unary([] { return nn::Sigmoid(); }, x);
  cases["Softmax"] = unary([] { return nn::Softmax(1); }, x);
  cases["Softmax2d"] = unary([] { return nn::Softmax2d(); }, {sample({2, 4, 2, 3})});
  cases["Softmin"] = unary([] { return nn::Softmin(1); }, x);
  cases["Softplus"] = unary([] { return nn::Softplus(); }, x);
  cases["Softshrink"] = unary([] { return nn::Softshrink(); }, x);
  cases["Softsign"] = unary([] { return nn::Softsign(); }, x);
  cases["Tanh"] = unary([] { return nn::Tanh(); }, x);
  cases["Tanhshrink"] = unary([] { return nn::Tanhshrink(); }, x);
  cases["Threshold"] = unary([] { return nn::Threshold(0.1, 20); }, x);
  cases["gumbel_softmax"] =
      random(functional([](const Tensors& in) { return F::gumbel_softmax(in[0]); }, x));
  cases["AlphaDropout"] = random(unary([] { return nn::AlphaDropout(); }, x));
  cases["Dropout"] = random(unary([] { return nn::Dropout(); }, x));
  cases["Dropout2d"] = random(unary([] { return nn::Dropout2d(); }, {sample({2, 4, 3, 2})}));
  cases["Dropout3d"] = random(unary([] { return nn::Dropout3d(); }, {sample({2, 4, 3, 2, 2})}));
  cases["FeatureAlphaDropout"] =
      random(unary([] { return nn::FeatureAlphaDropout(); }, {sample({2, 4, 3})}));
}

void add_images(Cases& cases) {
  const Tensors line = {sample({2, 4, 6})};
  const Tensors image = {sample({2, 4, 6, 6})};
  const Tensors volume = {sample({2, 4, 4, 4, 4})};
  cases["AdaptiveAvgPool1d"] = unary([] { return nn::AdaptiveAvgPool1d(2); }, line);
  cases["AdaptiveAvgPool2d"] = unary([] { return nn::AdaptiveAvgPool2d(2); }, image);
  cases["AdaptiveAvgPool3d"] = unary([] { return nn::AdaptiveAvgPool3d(2); }, volume);
  cases["AdaptiveMaxPool1d"] = unary([] { return nn::AdaptiveMaxPool1d(2); }, line);
  cases["AdaptiveMaxPool2d"] = unary([] { return nn::AdaptiveMaxPool2d(2); }, image);
  cases["AdaptiveMaxPool3d"] = unary([] { return nn::AdaptiveMaxPool3d(2); }, volume);
  cases["AvgPool1d"] = unary([] { return nn::AvgPool1d(2); }, line);
  cases["AvgPool2d"] = unary([] { return nn::AvgPool2d(2); }, image);
  cases["AvgPool3d"] = unary([] { return nn::AvgPool3d(2); }, volume);
  cases["LPPool1d"] = unary([] { return nn::LPPool1d(nn::LPPool1dOptions(2, 2)); }, line);
  cases["LPPool2d"] = unary([] { return nn::LPPool2d(nn::LPPool2dOptions(2, 2)); }, image);
  cases["LPPool3d"] = unary([] { return nn::LPPool3d(nn::LPPool3dOptions(2, 2)); }, volume);
  cases["MaxPool1d"] = unary([] { return nn::MaxPool1d(2); }, line);
  cases["MaxPool2d"] = unary([] { return nn::MaxPool2d(2); }, image);
  cases["MaxPool3d"] = unary([] { return nn::MaxPool3d(2); }, volume);
  cases["MaxUnpool1d"] = by([] { return nn::MaxUnpool1d(2); },
                            [](auto& m, const Tensors& in) {
                              const auto [values, indices] =
                                  F::max_pool1d_with_indices(in[0], F::MaxPool1dFuncOptions(2));
                              return m(values, indices);
                            },
                            line);
  cases["MaxUnpool2d"] = by([] { return nn::MaxUnpool2d(2); },
                            [](auto& m, const Tensors& in) {
                              const auto [values, indices] =
                                  F::max_pool2d_with_indices(in[0], F::MaxPool2dFuncOptions(2));
                              return m(values, indices);
                            },
                            image);
  cases["MaxUnpool3d"] = by([] { return nn::MaxUnpool3d(2); },
                            [](auto& m, const Tensors& in) {
                              const auto [values, indices] =
                                  F::max_pool3d_with_indices(in[0], F::MaxPool3dFuncOptions(2));
                              return m(values, indices);
                            },
                            volume);
  cases["FractionalMaxPool2d"] = random(unary(
      [] { return nn::FractionalMaxPool2d(nn::FractionalMaxPool2dOptions(2).output_size(3)); },
      image));
  cases["FractionalMaxPool3d"] = random(unary(
      [] { return nn::FractionalMaxPool3d(nn::FractionalMaxPool3dOptions(2).output_size(2)); },
      volume));
  cases["Conv1d"] = unary([] { return nn::Conv1d(4, 4, 3); }, line);
  cases["Conv2d"] = unary([] { return nn::Conv2d(4, 4, 3); }, image);
  cases["Conv3d"] = unary([] { return nn::Conv3d(4, 4, 3); }, volume);
  cases["ConvTranspose1d"] = unary([] { return nn::ConvTranspose1d(4, 4, 3); }, line);
  cases["ConvTranspose2d"] = unary([] { return nn::ConvTranspose2d(4, 4, 3); }, image);
  cases["ConvTranspose3d"] = unary([] { return nn::ConvTranspose3d(4, 4, 3); }, volume);
  cases["Fold"] =
      unary([] { return nn::Fold(nn::FoldOptions({4, 5}, {2, 2})); }, {sample({2, 12, 12})});
  cases["Unfold"] = unary([] { return nn::Unfold(nn::UnfoldOptions({2, 2})); }, image);
  cases["PixelShuffle"] = unary([] { return nn::PixelShuffle(2); }, image);
  cases["PixelUnshuffle"] = unary([] { return nn::PixelUnshuffle(2); }, image);
  cases["Upsample"] = unary(
      [] {
        return nn::Upsample(
            nn::UpsampleOptions().scale_factor(std::vector<double>{2, 2}).mode(torch::kNearest));
      },
      image);
  cases["interpolate"] = functional(
      [](const Tensors& in) {
        return F::interpolate(in[0], F::InterpolateFuncOptions()
                                         .size(std::vector<std::int64_t>{9, 9})
                                         .mode(torch::kBicubic)
                                         .align_corners(false));
      },
      image);
  cases["ConstantPad1d"] = unary([] { return nn::ConstantPad1d(1, 2.0); }, line);
  cases["ConstantPad2d"] = unary([] { return nn::ConstantPad2d(1, 2.0); }, image);
  cases["ConstantPad3d"] = unary([] { return nn::ConstantPad3d(1, 2.0); }, volume);
  cases["ReflectionPad1d"] = unary([] { return nn::ReflectionPad1d(1); }, line);
  cases["ReflectionPad2d"] = unary([] { return nn::ReflectionPad2d(1); }, image);
  cases["ReflectionPad3d"] = unary([] { return nn::ReflectionPad3d(1); }, volume);
  cases["ReplicationPad1d"] = unary([] { return nn::ReplicationPad1d(1); }, line);
  cases["ReplicationPad2d"] = unary([] { return nn::ReplicationPad2d(1); }, image);
  cases["ReplicationPad3d"] = unary([] { return nn::ReplicationPad3d(1); }, volume);
  cases["ZeroPad1d"] = unary([] { return nn::ZeroPad1d(1); }, line);
  cases["ZeroPad2d"] = unary([] { return nn::ZeroPad2d(1); }, image);
  cases["ZeroPad3d"] = unary([] { return nn::ZeroPad3d(1); }, volume);
  cases["pad"] = functional(
      [](const Tensors& in) {
        return F::pad(in[0], F::PadFuncOptions({1, 2}).mode(torch::kCircular));
      },
      line);
  cases["affine_grid"] =
      functional([](const Tensors& in) { return F::affine_grid(in[0], {4, 2, 3, 4}, false); },
                 {sample({4, 2, 3})});
  cases["grid_sample"] = functional(
      [](const Tensors& in) {
        return F::grid_sample(in[0], in[1], F::GridSampleFuncOptions().align_corners(false));
      },
      {sample({2, 4, 6, 6}), sample({2, 3, 3, 2}) / 4});
}

void add_norms(Cases& cases) {
  const Tensors line = {sample({2, 4, 6})};
  const Tensors image = {sample({2, 4, 3, 2})};
  const Tensors volume = {sample({2, 4, 3, 2, 2})};
  cases["BatchNorm1d"] = unary([] { return nn::BatchNorm1d(4); }, line);
  cases["BatchNorm2d"] = unary([] { return nn::BatchNorm2d(4); }, image);
  cases["BatchNorm3d"] = unary([] { return nn::BatchNorm3d(4); }, volume);
  cases["InstanceNorm1d"] =
      unary([] { return nn::InstanceNorm1d(nn::InstanceNorm1dOptions(4).affine(true)); }, line);
  cases["InstanceNorm2d"] = unary([] { return nn::InstanceNorm2d(4); }, image);
  cases["InstanceNorm3d"] = unary([] { return nn::InstanceNorm3d(4); }, volume);
  cases["GroupNorm"] = unary([] { return nn::GroupNorm(2, 4); }, image);
  cases["LayerNorm"] = unary([] { return nn::LayerNorm(nn::LayerNormOptions({6})); }, line);
  cases["LocalResponseNorm"] = unary([] { return nn::LocalResponseNorm(2); }, image);
  cases["normalize"] =
      functional([](const Tensors& in) { return F::normalize(in[0]); }, {sample({4, 6})});
}

void add_losses(Cases& cases) {
  const Tensors pair = {sample({4, 6}), sample({4, 6}).flip(0)};
  const Tensors scores = {sample({4, 6}), classes({4}, 6)};
  const auto signs = [](const torch::Tensor& x) {
    return x.detach().sign() + (x == 0).to(x.dtype());
  };
  cases["BCELoss"] =
      by([] { return nn::BCELoss(); },
         [](auto& m, const Tensors& in) { return m(in[0].sigmoid(), in[1].detach().sigmoid()); },
         pair);
  cases["BCEWithLogitsLoss"] =
      by([] { return nn::BCEWithLogitsLoss(); },
         [](auto& m, const Tensors& in) { return m(in[0], in[1].detach().sigmoid()); }, pair);
  cases["CTCLoss"] =
      by([] { return nn::CTCLoss(); },
         [](auto& m, const Tensors& in) {
           return m(in[0].log_softmax(2), in[1], torch::tensor({6, 5}), torch::tensor({3, 2}));
         },
         {sample({6, 2, 5}), classes({2, 3}, 4) + 1});
  cases["CosineEmbeddingLoss"] =
      by([] { return nn::CosineEmbeddingLoss(); },
         [](auto& m, const Tensors& in) { return m(in[0], in[1], in[2]); },
         {sample({4, 6}), sample({4, 6}).flip(0), classes({4}, 2) * 2 - 1});
  cases["CrossEntropyLoss"] = binary([] { return nn::CrossEntropyLoss(); }, scores);
  cases["HingeEmbeddingLoss"] =
      by([] { return nn::HingeEmbeddingLoss(); },
         [signs](auto& m, const Tensors& in) { return m(in[0], signs(in[1])); }, pair);
  cases["HuberLoss"] = binary([] { return nn::HuberLoss(); }, pair);
  cases["KLDivLoss"] = by(
      [] { return nn::KLDivLoss(); },
      [](auto& m, const Tensors& in) { return m(in[0].log_softmax(1), in[1].detach().softmax(1)); },
      pair);
  cases["L1Loss"] = binary([] { return nn::L1Loss(); }, pair);
  cases["MSELoss"] = binary([] { return nn::MSELoss(); }, pair);
  cases["MarginRankingLoss"] =
      by([] { return nn::MarginRankingLoss(); },
         [signs](auto& m, const Tensors& in) { return m(in[0], in[1], signs(in[0])); }, pair);
  cases["MultiLabelMarginLoss"] =
      by([] { return nn::MultiLabelMarginLoss(); },
         [](auto& m, const Tensors& in) { return m(in[0], in[1]); },
         {sample({4, 6}), torch::tensor({3, 0, -1, 1, 2, 4}).expand({4, 6}).contiguous()});
  cases["MultiLabelSoftMarginLoss"] =
      by([] { return nn::MultiLabelSoftMarginLoss(); },
         [](auto& m, const Tensors& in) { return m(in[0], in[1].detach().sigmoid()); }, pair);
  cases["MultiMarginLoss"] = binary([] { return nn::MultiMarginLoss(); }, scores);
  cases["NLLLoss"] =
      by([] { return nn::NLLLoss(); },
         [](auto& m, const Tensors& in) { return m(in[0].log_softmax(1), in[1]); }, scores);
  cases["PoissonNLLLoss"] =
      by([] { return nn::PoissonNLLLoss(); },
         [](auto& m, const Tensors& in) { return m(in[0], in[1].detach()); }, pair);
  cases["SmoothL1Loss"] = binary([] { return nn::SmoothL1Loss(); }, pair);
  cases["SoftMarginLoss"] =
      by([] { return nn::SoftMarginLoss(); },
         [signs](auto& m, const Tensors& in) { return m(in[0], signs(in[1])); }, pair);
  const Tensors three = {sample({4, 6}), sample({4, 6}).flip(0), sample({4, 6}).flip(1)};
  const auto triplet = [](auto& m, const Tensors& in) { return m(in[0], in[1], in[2]); };
  cases["TripletMarginLoss"] = by([] { return nn::TripletMarginLoss(); }, triplet, three);
  cases["TripletMarginWithDistanceLoss"] =
      by([] { return nn::TripletMarginWithDistanceLoss(); }, triplet, three);
  cases["AdaptiveLogSoftmaxWithLoss"] = by(
      [] {
        return nn::AdaptiveLogSoftmaxWithLoss(
            nn::AdaptiveLogSoftmaxWithLossOptions(16, 20, {5, 10}).div_value(2));
      },
      [](auto& m, const Tensors& in) { return m(in[0], in[1]).output; },
      {sample({4, 16}), torch::tensor({1, 6, 11, 3})});
  cases["CosineSimilarity"] = binary([] { return nn::CosineSimilarity(); }, pair);
  cases["PairwiseDistance"] = binary([] { return nn::PairwiseDistance(); }, pair);
  cases["pdist"] = functional([](const Tensors& in) { return F::pdist(in[0]); }, {sample({4, 6})});
}

void add_layers(Cases& cases) {
  const Tensors rows = {sample({4, 6})};
  const Tensors steps = {sample({5, 4, 6})};
  cases["Bilinear"] =
      binary([] { return nn::Bilinear(6, 4, 2); }, {sample({4, 6}), sample({4, 4})});
  cases["Embedding"] = unary([] { return nn::Embedding(7, 4); }, {classes({4, 6}, 7)});
  cases["EmbeddingBag"] = unary([] { return nn::EmbeddingBag(7, 4); }, {classes({4, 6}, 7)});
  cases["Flatten"] = unary([] { return nn::Flatten(); }, steps);
  cases["Unflatten"] = unary(
      [] { return nn::Unflatten(nn::UnflattenOptions(1, std::vector<std::int64_t>{2, 3})); }, rows);
  cases["Identity"] = unary([] { return nn::Identity(); }, rows);
  cases["Linear"] = unary([] { return nn::Linear(6, 4); }, rows);
  cases["LSTM"] = unary([] { return nn::LSTM(6, 4); }, steps);
  cases["GRU"] = unary([] { return nn::GRU(6, 4); }, steps);
  cases["RNN"] = unary([] { return nn::RNN(6, 4); }, steps);
  cases["LSTMCell"] = unary([] { return nn::LSTMCell(6, 4); }, rows);
  cases["GRUCell"] = unary([] { return nn::GRUCell(6, 4); }, rows);
  cases["RNNCell"] = unary([] { return nn::RNNCell(6, 4); }, rows);
  cases["MultiheadAttention"] =
      by([] { return nn::MultiheadAttention(nn::MultiheadAttentionOptions(6, 2)); },
         [](auto& m, const Tensors& in) { return m(in[0], in[0], in[0]); }, steps);
  const auto encoder = [] {
    return nn::TransformerEncoderLayerOptions(6, 2).dim_feedforward(8).dropout(0);
  };
  const auto decoder = [] {
    return nn::TransformerDecoderLayerOptions(6, 2).dim_feedforward(8).dropout(0);
  };
  const Tensors two = {sample({5, 4, 6}), sample({3, 4, 6})};
  cases["TransformerEncoderLayer"] =
      unary([=] { return nn::TransformerEncoderLayer(encoder()); }, steps);
  cases["TransformerDecoderLayer"] =
      binary([=] { return nn::TransformerDecoderLayer(decoder()); }, two);
  cases["TransformerEncoder"] = unary(
      [=] { return nn::TransformerEncoder(nn::TransformerEncoderOptions(encoder(), 2)); }, steps);
  cases["TransformerDecoder"] = binary(
      [=] { return nn::TransformerDecoder(nn::TransformerDecoderOptions(decoder(), 2)); }, two);
  cases["Transformer"] = binary(
      [] {
        return nn::Transformer(nn::TransformerOptions(6, 2, 1, 1).dim_feedforward(8).dropout(0));
      },
      two);
  cases["one_hot"] =
      functional([](const Tensors& in) { return F::one_hot(in[0], 7); }, {classes({4, 6}, 7)});
  cases["_weight_norm"] =
      functional([](const Tensors& in) { return torch::_weight_norm(in[0], in[1], 0); },
                 {sample({4, 6}), sample({4, 1})});
  cases["weight_norm of the last dim"] =
      functional([](const Tensors& in) { return torch::_weight_norm(in[0], in[1], 1); },
                 {sample({4, 6}), sample({1, 6})});
  cases["rrelu, evaluating"] =
      functional([](const Tensors& in) { return torch::rrelu(in[0], 0.1, 0.3, false); }, rows);
}

Cases all_cases() {
  Cases cases;
  add_activations(cases);
  add_images(cases);
  add_norms(cases);
  add_losses(cases);
  add_layers(cases);
  return cases;
}

// Modules without operators of their own.
const std::set<std::string>& containers() {
  static const std::set<std::string> names = {"Functional",    "ModuleDict",    "ModuleList",
                                              "ParameterDict", "ParameterList", "Sequential"};
  return names;
}

// What is refused, and why. Such a module runs within run_replicated.
const std::map<std::string, std::string>& refused() {
  static const std::map<std::string, std::string> reasons = {
      {"CrossMapLRN2d", "resizes and fills plain tensors that it makes"}};
  return reasons;
}

// Functions that have another name than the module which calls them.
const std::map<std::string, std::string>& modules_of_functions() {
  static const std::map<std::string, std::string> names = {
      {"binary_cross_entropy", "BCELoss"},
      {"binary_cross_entropy_with_logits", "BCEWithLogitsLoss"},
      {"kl_div", "KLDivLoss"},
      {"batch_norm", "BatchNorm2d"},
      {"instance_norm", "InstanceNorm2d"},
      {"_smooth_l1_loss", "SmoothL1Loss"},
      {"cross_entropy", "CrossEntropyLoss"},
      {"multi_head_attention_forward", "MultiheadAttention"},
      {"_no_grad_embedding_renorm_", "Embedding"},
      {"padding_unwrap", "MaxUnpool2d"},
      {"_unpool_output_size", "MaxUnpool2d"},
      {"_interp_output_size", "Upsample"},
      {"_dropoutNd_helper", "Dropout2d"},
      {"multilabel_margin_loss", "MultiLabelMarginLoss"},
      {"multilabel_soft_margin_loss", "MultiLabelSoftMarginLoss"}};
  return names;
}

std::string plain_name(std::string name) {
  std::erase(name, '_');
  std::ranges::transform(name, name.begin(),
                         [](char c) { return c >= 'A' && c <= 'Z' ? char(c - 'A' + 'a') : c; });
  return name;
}

std::string text_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::set<std::string> names_in(const std::filesystem::path& folder, const std::regex& pattern) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".h") continue;
    // Bodies of functions are in `detail`, whose names are those of the functions.
    const std::string text = text_of(entry.path());
    for (std::sregex_iterator found(text.begin(), text.end(), pattern), end; found != end;
         ++found) {
      names.insert((*found)[1].str());
    }
  }
  return names;
}

std::filesystem::path headers() {
  return std::filesystem::path(TRIREME_TORCH_API) / "torch" / "nn";
}

TEST(ModulesOfLibTorch, AllHaveACaseOrAReason) {
  const Cases cases = all_cases();
  const std::set<std::string> modules =
      names_in(headers() / "modules",
               std::regex(R"(\nclass (\w+)\s*:\s*public (?:torch::)?(?:nn::)?ModuleHolder<)"));
  const std::set<std::string> others =
      names_in(headers() / "modules", std::regex(R"(\nTORCH_MODULE\((\w+)\))"));
  std::set<std::string> all = modules;
  all.insert(others.begin(), others.end());
  ASSERT_GT(all.size(), 100U) << "the headers of LibTorch are not where they were";
  std::vector<std::string> missing;
  for (const std::string& name : all) {
    if (!cases.contains(name) && !containers().contains(name) && !refused().contains(name)) {
      missing.push_back(name);
    }
  }
  EXPECT_THAT(missing, ::testing::IsEmpty()) << "give each a case in this file";
}

TEST(FunctionsOfLibTorch, AllHaveACaseOrAReason) {
  const Cases cases = all_cases();
  std::set<std::string> known;
  for (const auto& [name, one_case] : cases) known.insert(plain_name(name));
  const std::set<std::string> functions = names_in(
      headers() / "functional",
      std::regex(R"(\ninline (?:Tensor|std::tuple<[^>]*>|std::vector<[^>]*>|void)\s+(\w+)\()"));
  ASSERT_GT(functions.size(), 100U) << "the headers of LibTorch are not where they were";
  std::vector<std::string> missing;
  for (const std::string& function : functions) {
    const std::string base = function.substr(0, function.find("_with_indices"));
    if (known.contains(plain_name(base)) || known.contains(plain_name(base) + "loss")) continue;
    if (modules_of_functions().contains(function)) continue;
    missing.push_back(function);
  }
  EXPECT_THAT(missing, ::testing::IsEmpty()) << "give each a case in this file";
}

struct Outcome {
  Tensors values;
  Tensors gradients;
};

Outcome outcome_of(const Built& built, const Tensors& inputs) {
  Outcome outcome;
  outcome.values = built.forward(inputs);
  const auto loss = test::weighted_sum(outcome.values);
  if (loss.defined()) loss.backward();
  for (const auto& parameter : built.module->parameters()) {
    outcome.gradients.push_back(parameter.grad());
  }
  for (const auto& input : inputs) outcome.gradients.push_back(input.grad());
  return outcome;
}

Tensors with_gradients(Tensors inputs) {
  for (auto& input : inputs) {
    input = input.detach();
    if (input.is_floating_point()) input.requires_grad_();
  }
  return inputs;
}

struct Cut {
  const char* name;
  bool cuts_parameters;
  int dim;  ///< of inputs; -1 for the last, -2 for none
};

Placement placement_of(const torch::Tensor& tensor, int dim) {
  if (tensor.dim() == 0 || dim == -2) return Replicate{};
  const auto last = static_cast<int>(tensor.dim() - 1);
  return Shard{dim == -1 ? last : dim};
}

void check_module(const ModuleCase& one_case, const Cut& cut, const comm::Group& group) {
  const DeviceMesh mesh(group, {{"tensor", group.size()}});
  const Built alone = one_case.make();
  const Outcome expected = outcome_of(alone, with_gradients(alone.inputs));
  const Built together = one_case.make();
  for (auto& parameter : together.module->parameters()) {
    distribute_in_place(parameter,
                        Layout(mesh, {placement_of(parameter, cut.cuts_parameters ? 0 : -2)}));
  }
  Tensors inputs;
  for (const auto& input : together.inputs) {
    inputs.push_back(distribute(input, Layout(mesh, {placement_of(input, cut.dim)})));
  }
  const Outcome got = outcome_of(together, with_gradients(inputs));
  if (got.values.size() != expected.values.size()) throw std::runtime_error("other results");
  if (one_case.is_random) return;
  for (std::size_t i = 0; i < got.values.size(); ++i) {
    const auto text = test::difference(got.values[i].detach(), expected.values[i].detach(), 1e-9);
    if (!text.empty()) throw std::runtime_error("value " + std::to_string(i) + " " + text);
  }
  for (std::size_t i = 0; i < got.gradients.size(); ++i) {
    const auto text = test::difference(got.gradients[i], expected.gradients[i], 1e-9);
    if (!text.empty()) throw std::runtime_error("gradient " + std::to_string(i) + " " + text);
  }
}

// What goes wrong on two ranks; empty where nothing does.
std::string failure_of(const ModuleCase& one_case, const Cut& cut) {
  const auto thrown = testing::run_ranks_catching(
      2, [&](const comm::Group& group) { check_module(one_case, cut, group); });
  for (const auto& error : thrown) {
    if (!error) continue;
    try {
      std::rethrow_exception(error);
    } catch (const std::exception& caught) {
      return caught.what();
    }
  }
  return "";
}

TEST(ModulesOfLibTorch, GiveWhatOneProcessGives) {
  const Cut cuts[] = {{"the first dim of inputs", false, 0},
                      {"parameters", true, -2},
                      {"the last dim of inputs", false, -1}};
  for (const auto& [name, one_case] : all_cases()) {
    for (const Cut& cut : cuts) {
      EXPECT_EQ(failure_of(one_case, cut), "") << name << " with " << cut.name << " cut";
    }
  }
}

TEST(ModulesOfLibTorch, ThatAreRefusedSaySo) {
  const Cut first = {"the first dim of inputs", false, 0};
  const auto crossing = unary([] { return nn::CrossMapLRN2d(3); }, {sample({2, 4, 3, 3})});
  EXPECT_THAT(failure_of(crossing, first), ::testing::HasSubstr("operator aten::"));
}

}  // namespace
}  // namespace trireme
