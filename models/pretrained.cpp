// SPDX-License-Identifier: Apache-2.0
#include <models/pretrained.h>

#include <algorithm>
#include <array>
#include <set>
#include <span>
#include <string_view>
#include <utility>

namespace models {
namespace {

// A part of a parameter's name here and in `transformers`. The number of a layer stands at `#`.
struct Renaming {
  std::string_view ours;
  std::string_view theirs;
  bool is_transposed = false;  // The weight is [in, out] there.
};

constexpr std::array kGPT2Names{
    Renaming{"token_embedding.", "transformer.wte."},
    Renaming{"position_embedding.", "transformer.wpe."},
    Renaming{"blocks.#.norm1.", "transformer.h.#.ln_1."},
    Renaming{"blocks.#.attention.input.", "transformer.h.#.attn.c_attn.", true},
    Renaming{"blocks.#.attention.output.", "transformer.h.#.attn.c_proj.", true},
    Renaming{"blocks.#.norm2.", "transformer.h.#.ln_2."},
    Renaming{"blocks.#.mlp_input.", "transformer.h.#.mlp.c_fc.", true},
    Renaming{"blocks.#.mlp_output.", "transformer.h.#.mlp.c_proj.", true},
    Renaming{"norm.", "transformer.ln_f."},
    Renaming{"head.", "lm_head."}};

constexpr std::array kLLaMANames{
    Renaming{"token_embedding.", "model.embed_tokens."},
    Renaming{"blocks.#.norm1.", "model.layers.#.input_layernorm."},
    Renaming{"blocks.#.attention.query.", "model.layers.#.self_attn.q_proj."},
    Renaming{"blocks.#.attention.key.", "model.layers.#.self_attn.k_proj."},
    Renaming{"blocks.#.attention.value.", "model.layers.#.self_attn.v_proj."},
    Renaming{"blocks.#.attention.output.", "model.layers.#.self_attn.o_proj."},
    Renaming{"blocks.#.norm2.", "model.layers.#.post_attention_layernorm."},
    Renaming{"blocks.#.mlp_gate.", "model.layers.#.mlp.gate_proj."},
    Renaming{"blocks.#.mlp_input.", "model.layers.#.mlp.up_proj."},
    Renaming{"blocks.#.mlp_output.", "model.layers.#.mlp.down_proj."},
    Renaming{"norm.", "model.norm."},
    Renaming{"head.", "lm_head."}};

constexpr std::array kBERTNames{
    Renaming{"token_embedding.", "bert.embeddings.word_embeddings."},
    Renaming{"position_embedding.", "bert.embeddings.position_embeddings."},
    Renaming{"segment_embedding.", "bert.embeddings.token_type_embeddings."},
    Renaming{"embedding_norm.", "bert.embeddings.LayerNorm."},
    Renaming{"layers.#.attention.query.", "bert.encoder.layer.#.attention.self.query."},
    Renaming{"layers.#.attention.key.", "bert.encoder.layer.#.attention.self.key."},
    Renaming{"layers.#.attention.value.", "bert.encoder.layer.#.attention.self.value."},
    Renaming{"layers.#.attention.output.", "bert.encoder.layer.#.attention.output.dense."},
    Renaming{"layers.#.attention_norm.", "bert.encoder.layer.#.attention.output.LayerNorm."},
    Renaming{"layers.#.mlp_input.", "bert.encoder.layer.#.intermediate.dense."},
    Renaming{"layers.#.mlp_output.", "bert.encoder.layer.#.output.dense."},
    Renaming{"layers.#.mlp_norm.", "bert.encoder.layer.#.output.LayerNorm."},
    Renaming{"transform.", "cls.predictions.transform.dense."},
    Renaming{"transform_norm.", "cls.predictions.transform.LayerNorm."},
    Renaming{"head_bias", "cls.predictions.bias"},
    Renaming{"pooler.", "bert.pooler.dense."},
    Renaming{"next_sentence.", "cls.seq_relationship."},
    Renaming{"classifier.", "classifier."}};

constexpr std::array kViTNames{
    Renaming{"class_token", "vit.embeddings.cls_token"},
    Renaming{"position_embedding", "vit.embeddings.position_embeddings"},
    Renaming{"patch_embedding.", "vit.embeddings.patch_embeddings.projection."},
    Renaming{"blocks.#.norm1.", "vit.encoder.layer.#.layernorm_before."},
    Renaming{"blocks.#.attention.query.", "vit.encoder.layer.#.attention.attention.query."},
    Renaming{"blocks.#.attention.key.", "vit.encoder.layer.#.attention.attention.key."},
    Renaming{"blocks.#.attention.value.", "vit.encoder.layer.#.attention.attention.value."},
    Renaming{"blocks.#.attention.output.", "vit.encoder.layer.#.attention.output.dense."},
    Renaming{"blocks.#.norm2.", "vit.encoder.layer.#.layernorm_after."},
    Renaming{"blocks.#.mlp_input.", "vit.encoder.layer.#.intermediate.dense."},
    Renaming{"blocks.#.mlp_output.", "vit.encoder.layer.#.output.dense."},
    Renaming{"norm.", "vit.layernorm."},
    Renaming{"head.", "classifier."}};

std::span<const Renaming> renamings_of(Architecture architecture) {
  switch (architecture) {
    case Architecture::kGPT2:
      return kGPT2Names;
    case Architecture::kLLaMA:
      return kLLaMANames;
    case Architecture::kBERT:
      return kBERTNames;
    case Architecture::kViT:
      return kViTNames;
  }
  TORCH_CHECK(false, "models::Architecture is ", static_cast<int>(architecture),
              ", expected one of its names");
}

// Splits `blocks.12.norm1.weight` into `blocks.#.norm1.weight` and `12`. At most one part of a name
// is a number.
std::pair<std::string, std::string> without_layer(std::string_view name) {
  const std::size_t dot = name.find('.');
  if (dot == std::string_view::npos) return {std::string(name), {}};
  const std::size_t end = name.find_first_not_of("0123456789", dot + 1);
  if (end == dot + 1 || end == std::string_view::npos) return {std::string(name), {}};
  return {std::string(name.substr(0, dot + 1)) + '#' + std::string(name.substr(end)),
          std::string(name.substr(dot + 1, end - dot - 1))};
}

struct Place {
  std::string name;
  bool is_transposed = false;
};

// Returns the name of a parameter in `transformers`, and whether its values are transposed there.
Place place_of(const std::string& ours, const torch::Tensor& parameter, Architecture architecture) {
  const auto [pattern, layer] = without_layer(ours);
  for (const Renaming& renaming : renamings_of(architecture)) {
    if (!pattern.starts_with(renaming.ours)) continue;
    std::string name(renaming.theirs);
    if (const std::size_t at = name.find('#'); at != std::string::npos) name.replace(at, 1, layer);
    return {.name = name + pattern.substr(renaming.ours.size()),
            .is_transposed = renaming.is_transposed && parameter.dim() == 2};
  }
  TORCH_CHECK(false, "the parameter ", ours,
              " belongs to another architecture; pass the one of the module");
}

// Returns a weight by its name, or by one that files of earlier versions of `transformers` have:
// without the name of the model before it, as GPT-2's, and `gamma` and `beta` of layer norms, as
// BERT's.
std::map<std::string, torch::Tensor>::const_iterator find_weight(
    const std::map<std::string, torch::Tensor>& weights, const std::string& name) {
  std::vector<std::string> names{name, name.substr(name.find('.') + 1)};
  if (const std::size_t norm = name.find("LayerNorm."); norm != std::string::npos) {
    const std::string kind = name.ends_with(".weight") ? "gamma" : "beta";
    const std::string earlier = name.substr(0, name.find_last_of('.') + 1) + kind;
    names.insert(names.end(), {earlier, earlier.substr(earlier.find('.') + 1)});
  }
  for (const std::string& candidate : names) {
    if (const auto found = weights.find(candidate); found != weights.end()) return found;
  }
  return weights.end();
}

// Returns true if a parameter belongs to one of the modules with these names.
bool is_of(const std::vector<std::string>& modules, std::string_view parameter) {
  return std::ranges::any_of(modules, [&](const std::string& module) {
    return parameter.starts_with(module) && parameter.substr(module.size()).starts_with('.');
  });
}

}  // namespace

std::map<std::string, torch::Tensor> to_hugging_face(const torch::nn::Module& module,
                                                     Architecture architecture) {
  std::map<std::string, torch::Tensor> weights;
  for (const auto& entry : module.named_parameters()) {
    const Place place = place_of(entry.key(), entry.value(), architecture);
    const torch::Tensor values = entry.value().detach();
    weights[place.name] = place.is_transposed ? values.t().contiguous() : values;
  }
  return weights;
}

std::vector<std::string> load_hugging_face(torch::nn::Module& module, Architecture architecture,
                                           const std::map<std::string, torch::Tensor>& weights,
                                           const std::vector<std::string>& new_modules) {
  std::vector<Place> places;
  const auto parameters = module.named_parameters();
  for (const auto& entry : parameters) {
    places.push_back(place_of(entry.key(), entry.value(), architecture));
  }
  std::vector<std::pair<torch::Tensor, torch::Tensor>> copies;
  std::set<std::string> used;
  for (std::size_t number = 0; number < places.size(); ++number) {
    const auto& [name, is_transposed] = places[number];
    const std::string& ours = parameters[number].key();
    torch::Tensor parameter = parameters[number].value();
    const auto found = find_weight(weights, name);
    if (found == weights.end() && is_of(new_modules, ours)) continue;
    TORCH_CHECK(found != weights.end(), "the weights have no ", name, ", which becomes ", ours,
                "; take those of the same architecture and number of layers");
    const bool turns = is_transposed && found->second.dim() == 2;
    const torch::Tensor values = turns ? found->second.t() : found->second;
    TORCH_CHECK(values.sizes() == parameter.sizes(), "the weight ", name, " becomes ",
                values.sizes(), " in ", ours, ", which is ", parameter.sizes(),
                "; make the module with the sizes of the weights");
    copies.emplace_back(std::move(parameter), values);
    used.insert(found->first);
  }
  const torch::NoGradGuard no_grad;
  for (auto& [parameter, values] : copies) parameter.copy_(values);
  std::vector<std::string> unused;
  for (const auto& [name, values] : weights) {
    if (!used.contains(name)) unused.push_back(name);
  }
  return unused;
}

}  // namespace models
