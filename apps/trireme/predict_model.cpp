// SPDX-License-Identifier: Apache-2.0
#include <apps/trireme/predict_model.h>

#include <models/bert.h>
#include <models/gpt.h>
#include <models/llama.h>
#include <models/mixture.h>
#include <models/resnet.h>
#include <models/vit.h>
#include <trireme/base/config/configuration.h>
#include <trireme/base/error.h>
#include <trireme/parallel/deferred.h>

#include <torch/torch.h>

#include <utility>

namespace trireme::apps {
namespace {

struct GptSettings {
  models::GPTOptions model;
  void fields(config::Fields& fields) {
    fields.add("vocabulary", model.vocabulary, "number of tokens in the vocabulary").at_least(1);
    fields.add("sequence", model.sequence, "tokens of a row").at_least(1);
    fields.add("hidden", model.hidden, "size of a token's features").at_least(1);
    fields.add("layers", model.layers, "number of blocks").at_least(1);
    fields.add("heads", model.heads, "number of attention heads").at_least(1);
    fields.add("tied", model.tied, "the head shares the weight of the token embedding");
    fields.add("dropout", model.dropout, "dropout of embeddings, attention and blocks")
        .between(0, 1);
  }
};

struct LlamaSettings {
  models::LLaMAOptions model;
  void fields(config::Fields& fields) {
    fields.add("vocabulary", model.vocabulary, "number of tokens in the vocabulary").at_least(1);
    fields.add("sequence", model.sequence, "tokens of a row").at_least(1);
    fields.add("hidden", model.hidden, "size of a token's features").at_least(1);
    fields.add("layers", model.layers, "number of blocks").at_least(1);
    fields.add("heads", model.heads, "number of attention heads").at_least(1);
    fields
        .add("key_value_heads", model.key_value_heads,
             "number of heads of keys and values; none: as many as heads")
        .at_least(1);
    fields.add("feed_forward", model.feed_forward, "features inside of an MLP").at_least(1);
    fields.add("tied", model.tied, "the head shares the weight of the token embedding");
  }
};

struct BertSettings {
  models::BERTOptions model = {.dropout = 0};
  void fields(config::Fields& fields) {
    fields.add("vocabulary", model.vocabulary, "number of tokens in the vocabulary").at_least(1);
    fields.add("sequence", model.sequence, "tokens of a row").at_least(1);
    fields.add("hidden", model.hidden, "size of a token's features").at_least(1);
    fields.add("layers", model.layers, "number of encoder layers").at_least(1);
    fields.add("heads", model.heads, "number of attention heads").at_least(1);
  }
};

struct MixtureSettings {
  models::MixtureOptions model;
  void fields(config::Fields& fields) {
    models::GPTOptions& gpt = model.gpt;
    fields.add("vocabulary", gpt.vocabulary, "number of tokens in the vocabulary").at_least(1);
    fields.add("sequence", gpt.sequence, "tokens of a row").at_least(1);
    fields.add("hidden", gpt.hidden, "size of a token's features").at_least(1);
    fields.add("layers", gpt.layers, "number of blocks").at_least(1);
    fields.add("heads", gpt.heads, "number of attention heads").at_least(1);
    fields.add("tied", gpt.tied, "the head shares the weight of the token embedding");
    fields.add("experts", model.experts, "number of experts in a mixture").at_least(1);
    fields.add("experts_per_token", model.experts_per_token, "experts that process a token")
        .at_least(1);
    fields
        .add("capacity_factor", model.capacity_factor,
             "tokens that an expert takes at most, as a multiple of an even share")
        .above(0);
    fields.add("interval", model.interval, "the last of so many blocks has a mixture").at_least(1);
  }
};

struct ViTSettings {
  models::ViTOptions model;
  void fields(config::Fields& fields) {
    fields.add("size", model.image_size, "height and width of an image").at_least(1);
    fields.add("patch", model.patch_size, "height and width of a patch").at_least(1);
    fields.add("hidden", model.hidden, "size of a patch's features").at_least(1);
    fields.add("layers", model.layers, "number of blocks").at_least(1);
    fields.add("heads", model.heads, "number of attention heads").at_least(1);
    fields.add("feed_forward", model.feed_forward, "features inside of an MLP").at_least(1);
    fields.add("classes", model.classes, "number of classes").at_least(1);
  }
};

struct ResNetSettings {
  std::vector<std::int64_t> blocks = {3, 4, 6, 3};
  bool bottleneck = true;
  std::int64_t width = 64;
  std::int64_t bottleneck_widening = 1;
  std::int64_t classes = 1000;
  std::int64_t size = 224;
  void fields(config::Fields& fields) {
    fields.add("blocks", blocks, "number of blocks in each stage").at_least(1);
    fields.add("bottleneck", bottleneck, "blocks have a bottleneck");
    fields.add("width", width, "channels of the first stage").at_least(1);
    fields
        .add("bottleneck_widening", bottleneck_widening,
             "factor of the channels inside of a bottleneck; 2 for a wide ResNet-50")
        .at_least(1);
    fields.add("classes", classes, "number of classes").at_least(1);
    fields.add("size", size, "height and width of an image").at_least(1);
  }
};

// Modules are made with parameters of this dtype.
class DefaultDtype {
 public:
  explicit DefaultDtype(at::ScalarType dtype)
      : before_(c10::typeMetaToScalarType(c10::get_default_dtype())) {
    torch::set_default_dtype(c10::scalarTypeToTypeMeta(dtype));
  }
  ~DefaultDtype() { torch::set_default_dtype(c10::scalarTypeToTypeMeta(before_)); }
  DefaultDtype(const DefaultDtype&) = delete;
  DefaultDtype& operator=(const DefaultDtype&) = delete;
  DefaultDtype(DefaultDtype&&) = delete;
  DefaultDtype& operator=(DefaultDtype&&) = delete;

 private:
  at::ScalarType before_;
};

template <typename Settings>
Settings read_settings(const std::vector<std::string>& assignments) {
  Settings settings;
  config::Configuration configuration(settings);
  for (const std::string& assignment : assignments) configuration.set(assignment);
  return settings;
}

at::Tensor meta_tokens(std::int64_t rows, std::int64_t length) {
  return torch::empty({rows, length},
                      torch::TensorOptions().dtype(torch::kInt64).device(torch::kMeta));
}

at::Tensor token_loss(const at::Tensor& logits, const at::Tensor& targets) {
  return torch::cross_entropy_loss(logits.flatten(0, 1), targets.flatten());
}

PredictedModel make_gpt(const std::vector<std::string>& assignments, std::int64_t rows) {
  const auto settings = read_settings<GptSettings>(assignments);
  models::GPT model = deferred([&] { return models::GPT(settings.model); });
  const at::Tensor tokens = meta_tokens(rows, settings.model.sequence);
  return {.module = model.ptr(),
          .inputs = {tokens},
          .forward = [model](const std::vector<at::Tensor>& in) mutable -> std::vector<at::Tensor> {
            return {token_loss(model->forward(in[0]), in[0])};
          },
          .tensor_layouts =
              join({vocabulary_parallel("token_embedding"),
                    settings.model.tied ? ParameterLayouts{} : vocabulary_parallel("head"),
                    column_parallel("*.attention.input"), row_parallel("*.attention.output"),
                    column_parallel("*.mlp_input"), row_parallel("*.mlp_output")}),
          .layers = settings.model.layers,
          .tokens_per_row = settings.model.sequence};
}

PredictedModel make_llama(const std::vector<std::string>& assignments, std::int64_t rows) {
  const auto settings = read_settings<LlamaSettings>(assignments);
  models::LLaMA model = deferred([&] { return models::LLaMA(settings.model); });
  const at::Tensor tokens = meta_tokens(rows, settings.model.sequence);
  return {.module = model.ptr(),
          .inputs = {tokens},
          .forward = [model](const std::vector<at::Tensor>& in) mutable -> std::vector<at::Tensor> {
            return {token_loss(model->forward(in[0]), in[0])};
          },
          .tensor_layouts =
              join({vocabulary_parallel("token_embedding"),
                    settings.model.tied ? ParameterLayouts{} : vocabulary_parallel("head"),
                    column_parallel("*.attention.query"), column_parallel("*.attention.key"),
                    column_parallel("*.attention.value"), row_parallel("*.attention.output"),
                    column_parallel("*.mlp_gate"), column_parallel("*.mlp_input"),
                    row_parallel("*.mlp_output")}),
          .layers = settings.model.layers,
          .tokens_per_row = settings.model.sequence};
}

PredictedModel make_bert(const std::vector<std::string>& assignments, std::int64_t rows) {
  const auto settings = read_settings<BertSettings>(assignments);
  models::BERT model = deferred([&] { return models::BERT(settings.model); });
  const at::Tensor tokens = meta_tokens(rows, settings.model.sequence);
  return {.module = model.ptr(),
          .inputs = {tokens},
          .forward = [model](const std::vector<at::Tensor>& in) mutable -> std::vector<at::Tensor> {
            return {token_loss(model->forward(in[0]), in[0])};
          },
          .tensor_layouts = join({vocabulary_parallel("token_embedding"),
                                  {{"head_bias", {{"tensor", Shard{0}}}}},
                                  column_parallel("*.attention.[qkv]*"),
                                  row_parallel("*.attention.output"),
                                  column_parallel("*.mlp_input"),
                                  row_parallel("*.mlp_output")}),
          .layers = settings.model.layers,
          .tokens_per_row = settings.model.sequence};
}

// The experts of a mixture are divided along `tensor`: each rank has whole ones.
ParameterLayouts expert_parallel(const std::string& mixture) {
  ParameterLayouts layouts;
  for (const char* name : {"input_weight", "input_bias", "output_weight", "output_bias"}) {
    layouts.push_back({mixture + "." + name, {{"tensor", Shard{0}}}});
  }
  return layouts;
}

PredictedModel make_mixture(const std::vector<std::string>& assignments, std::int64_t rows) {
  const auto settings = read_settings<MixtureSettings>(assignments);
  models::MixtureGPT model = deferred([&] { return models::MixtureGPT(settings.model); });
  const models::GPTOptions& gpt = settings.model.gpt;
  const at::Tensor tokens = meta_tokens(rows, gpt.sequence);
  ParameterLayouts layouts =
      join({vocabulary_parallel("token_embedding"),
            gpt.tied ? ParameterLayouts{} : vocabulary_parallel("head"),
            column_parallel("*.attention.input"), row_parallel("*.attention.output"),
            expert_parallel("*.mixture")});
  // Blocks without a mixture have an MLP.
  if (settings.model.interval > 1) {
    layouts = join({layouts, column_parallel("*.mlp_input"), row_parallel("*.mlp_output")});
  }
  return {.module = model.ptr(),
          .inputs = {tokens},
          .forward = [model](const std::vector<at::Tensor>& in) mutable -> std::vector<at::Tensor> {
            const auto [logits, balance_loss] = model->forward(in[0]);
            constexpr double kBalance = 0.01;  // as in Switch Transformers
            return {token_loss(logits, in[0]) + kBalance * balance_loss};
          },
          .tensor_layouts = std::move(layouts),
          .layers = gpt.layers,
          .tokens_per_row = gpt.sequence};
}

PredictedModel make_vit(const std::vector<std::string>& assignments, std::int64_t rows) {
  const auto settings = read_settings<ViTSettings>(assignments);
  models::ViT model = deferred([&] { return models::ViT(settings.model); });
  const auto meta = torch::TensorOptions().device(torch::kMeta);
  const std::int64_t size = settings.model.image_size;
  const at::Tensor images = torch::empty({rows, settings.model.channels, size, size}, meta);
  const at::Tensor labels = torch::empty({rows}, meta.dtype(torch::kInt64));
  return {.module = model.ptr(),
          .inputs = {images, labels},
          .forward = [model](const std::vector<at::Tensor>& in) mutable -> std::vector<at::Tensor> {
            return {torch::cross_entropy_loss(model->forward(in[0]), in[1])};
          },
          .tensor_layouts =
              join({column_parallel("*.attention.[qkv]*"), row_parallel("*.attention.output"),
                    column_parallel("*.mlp_input"), row_parallel("*.mlp_output")}),
          .layers = settings.model.layers};
}

PredictedModel make_resnet(const std::vector<std::string>& assignments, std::int64_t rows) {
  const auto settings = read_settings<ResNetSettings>(assignments);
  const models::ResNetOptions options = {
      .block = settings.bottleneck ? models::Block::kBottleneck : models::Block::kBasic,
      .blocks = settings.blocks,
      .width = settings.width,
      .bottleneck_widening = settings.bottleneck_widening,
      .classes = settings.classes};
  models::ResNet model = deferred([&] { return models::ResNet(options); });
  const auto meta = torch::TensorOptions().device(torch::kMeta);
  const at::Tensor images = torch::empty({rows, 3, settings.size, settings.size}, meta);
  const at::Tensor labels = torch::empty({rows}, meta.dtype(torch::kInt64));
  return {.module = model.ptr(),
          .inputs = {images, labels},
          .forward = [model](const std::vector<at::Tensor>& in) mutable -> std::vector<at::Tensor> {
            return {torch::cross_entropy_loss(model->forward(in[0]), in[1])};
          }};
}

}  // namespace

at::ScalarType dtype_of(const std::string& name) {
  if (name == "float32") return at::kFloat;
  if (name == "bfloat16") return at::kBFloat16;
  if (name == "float16") return at::kHalf;
  throw ConfigError(join_message("dtype '", name, "' is not known to predictions"),
                    "expected float32, bfloat16 or float16");
}

PredictedModel make_predicted_model(const std::string& family,
                                    const std::vector<std::string>& settings, std::int64_t rows,
                                    at::ScalarType dtype) {
  const DefaultDtype default_dtype(dtype);
  if (family == "gpt") return make_gpt(settings, rows);
  if (family == "llama") return make_llama(settings, rows);
  if (family == "bert") return make_bert(settings, rows);
  if (family == "mixture") return make_mixture(settings, rows);
  if (family == "vit") return make_vit(settings, rows);
  if (family == "resnet") return make_resnet(settings, rows);
  throw ConfigError(join_message("model '", family, "' is not known to predictions"),
                    "expected gpt, llama, bert, mixture, vit or resnet");
}

}  // namespace trireme::apps
