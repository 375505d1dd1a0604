// SPDX-License-Identifier: Apache-2.0
#include <trireme/plan/transformer_layouts.h>

#include <trireme/base/error.h>

#include <torch/torch.h>

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

namespace trireme {
namespace {

constexpr const char* kHint = "name the layers with column_parallel() and row_parallel()";

enum class Role { kWhole, kColumn, kRow };

struct LinearLayer {
  std::string path;
  std::string pattern;  // the path with `*` for each number
  std::string block;    // the path up to the last number before its end; empty outside of blocks
  std::int64_t inputs = 0;
  std::int64_t outputs = 0;
  bool has_bias = false;
  Role role = Role::kWhole;
};

struct EmbeddingTable {
  std::string path;
  std::int64_t rows = 0;
  std::int64_t width = 0;
};

struct Structure {
  std::vector<EmbeddingTable> embeddings;
  std::vector<LinearLayer> layers;  // in the order of their registration
};

bool is_number(std::string_view part) {
  return !part.empty() &&
         std::ranges::all_of(part, [](unsigned char letter) { return std::isdigit(letter) != 0; });
}

// Fills pattern and block of a layer. A number at the end of its path is its place in a Sequential,
// such as an MLP, and makes no block.
void split_path(LinearLayer& layer) {
  for (std::size_t begin = 0; begin <= layer.path.size();) {
    const std::size_t end = std::min(layer.path.find('.', begin), layer.path.size());
    const std::string part = layer.path.substr(begin, end - begin);
    const bool is_last = end == layer.path.size();
    if (is_number(part) && !is_last) layer.block = layer.path.substr(0, end);
    layer.pattern += is_number(part) && !is_last ? "*" : part;
    if (!is_last) layer.pattern += '.';
    begin = end + 1;
  }
}

Structure structure_of(const torch::nn::Module& module) {
  // A parameter that modules share has one name.
  std::set<std::string> names;
  for (const auto& entry : module.named_parameters()) names.insert(entry.key());
  Structure found;
  std::vector<std::string> attentions;  // of LibTorch; their paths end with a dot
  for (const auto& entry : module.named_modules("", /*include_self=*/false)) {
    const std::string& path = entry.key();
    if (entry.value()->as<torch::nn::MultiheadAttentionImpl>() != nullptr) {
      attentions.push_back(path + '.');
    }
    if (!names.contains(path + ".weight")) continue;
    if (const auto* embedding = entry.value()->as<torch::nn::EmbeddingImpl>()) {
      const auto& options = embedding->options;
      found.embeddings.push_back({path, options.num_embeddings(), options.embedding_dim()});
    } else if (const auto* linear = entry.value()->as<torch::nn::LinearImpl>()) {
      const auto is_above = [&](const std::string& attention) {
        return path.starts_with(attention);
      };
      if (std::ranges::any_of(attentions, is_above)) continue;
      LinearLayer layer{.path = path,
                        .inputs = linear->options.in_features(),
                        .outputs = linear->options.out_features(),
                        .has_bias = linear->options.bias()};
      split_path(layer);
      found.layers.push_back(std::move(layer));
    }
  }
  return found;
}

// Returns the layer that maps features to as many outputs as an embedding has rows, and the
// embedding; without such a layer the first embedding. Null for what there is not.
std::pair<const EmbeddingTable*, const LinearLayer*> vocabulary_of(const Structure& structure) {
  for (const EmbeddingTable& embedding : structure.embeddings) {
    for (const LinearLayer& layer : structure.layers) {
      // A square layer is rather a transform of features, as before the head of BERT.
      if (layer.block.empty() && layer.inputs == embedding.width &&
          layer.outputs == embedding.rows && layer.inputs != layer.outputs) {
        return {&embedding, &layer};
      }
    }
  }
  return {structure.embeddings.empty() ? nullptr : structure.embeddings.data(), nullptr};
}

std::int64_t most_frequent_inputs(const std::vector<LinearLayer>& layers) {
  std::map<std::int64_t, int> counts;
  for (const LinearLayer& layer : layers) counts[layer.inputs] += layer.block.empty() ? 0 : 1;
  const auto most =
      std::ranges::max_element(counts, {}, [](const auto& entry) { return entry.second; });
  return most == counts.end() ? 0 : most->first;
}

using Layers = std::vector<LinearLayer*>;

void find_mlps(const Layers& block, std::int64_t hidden) {
  for (LinearLayer* output : block) {
    if (output->inputs == hidden || output->outputs != hidden) continue;
    for (LinearLayer* input : block) {
      if (input->inputs != hidden || input->outputs != output->inputs) continue;
      input->role = Role::kColumn;
      output->role = Role::kRow;
    }
  }
}

// @param layers those below one child of a block that belong to no MLP.
void find_attention(const Layers& layers, std::int64_t hidden) {
  constexpr std::size_t kMost = 4;  // queries, keys, values and outputs
  const auto takes_hidden = [&](const LinearLayer* layer) { return layer->inputs == hidden; };
  if (layers.size() < 2 || !std::ranges::all_of(layers, takes_hidden) ||
      layers.back()->outputs != hidden) {
    return;
  }
  if (layers.size() > kMost) {
    throw UsageError("transformer_layouts: the block " + layers.front()->block + " has " +
                         std::to_string(layers.size()) + " layers beside each other, from " +
                         layers.front()->path + " to " + layers.back()->path +
                         ", that could be of attention, expected at most 4",
                     kHint);
  }
  for (LinearLayer* layer : layers) layer->role = Role::kColumn;
  layers.back()->role = Role::kRow;
}

void find_roles(std::vector<LinearLayer>& layers, std::int64_t hidden) {
  std::map<std::string, Layers> blocks;
  for (LinearLayer& layer : layers) {
    if (!layer.block.empty()) blocks[layer.block].push_back(&layer);
  }
  for (const auto& [path, block] : blocks) {
    find_mlps(block, hidden);
    std::map<std::string, Layers> children;
    for (LinearLayer* layer : block) {
      if (layer->role != Role::kWhole) continue;
      const std::string rest = layer->path.substr(path.size() + 1);
      const std::size_t dot = rest.find('.');
      children[dot == std::string::npos ? "" : rest.substr(0, dot)].push_back(layer);
    }
    for (const auto& [child, others] : children) find_attention(others, hidden);
  }
}

// Patterns of layers, longer ones first, so that `blocks.*.output` does not take
// `blocks.0.attention.output`: `*` matches dots.
ParameterLayouts layouts_of(const std::vector<LinearLayer>& layers, const std::string& axis) {
  std::map<std::string, const LinearLayer*> by_pattern;
  for (const LinearLayer& layer : layers) {
    const auto [known, is_new] = by_pattern.emplace(layer.pattern, &layer);
    if (is_new || known->second->role == layer.role) continue;
    throw UsageError("transformer_layouts: the layers " + known->second->path + " and " +
                         layer.path + " have different places in their blocks, and the pattern " +
                         layer.pattern + " matches both",
                     kHint);
  }
  std::vector<std::pair<std::string, Role>> ordered;
  for (const auto& [pattern, layer] : by_pattern) {
    if (layer->role != Role::kWhole) ordered.emplace_back(pattern, layer->role);
  }
  std::ranges::stable_sort(ordered, std::greater(),
                           [](const auto& entry) { return entry.first.size(); });
  std::vector<ParameterLayouts> lists;
  lists.reserve(ordered.size());
  for (const auto& [pattern, role] : ordered) {
    lists.push_back(role == Role::kColumn ? column_parallel(pattern, axis)
                                          : row_parallel(pattern, axis));
  }
  return join(lists);
}

// Returns layouts that keep whole what a pattern of another layer matches by its `*`.
ParameterLayouts exceptions_to(const ParameterLayouts& layouts,
                               const std::vector<LinearLayer>& layers) {
  ParameterLayouts exceptions;
  std::set<std::string> known;
  for (const LinearLayer& layer : layers) {
    if (layer.role == Role::kColumn) continue;
    const auto except = [&](const std::string& ending) {
      const std::string pattern = layer.pattern + ending;
      if (find_layout(layouts, layer.path + ending) != nullptr && known.insert(pattern).second) {
        exceptions.push_back({.pattern = pattern, .placements = {}});
      }
    };
    if (layer.role == Role::kWhole) except(".weight");
    if (layer.has_bias) except(".bias");
  }
  return exceptions;
}

}  // namespace

ParameterLayouts transformer_layouts(const torch::nn::Module& module, const std::string& axis) {
  Structure found = structure_of(module);
  const auto [embedding, head] = vocabulary_of(found);
  const std::int64_t hidden =
      embedding != nullptr ? embedding->width : most_frequent_inputs(found.layers);
  find_roles(found.layers, hidden);
  const ParameterLayouts layers = layouts_of(found.layers, axis);
  if (layers.empty()) {
    throw UsageError(
        "transformer_layouts: the module has no attention and no MLP of linear layers "
        "in numbered blocks whose hidden size is " +
            std::to_string(hidden) + ", that of " +
            (embedding != nullptr ? embedding->path : "most layers in blocks"),
        kHint);
  }
  ParameterLayouts vocabulary;
  if (head != nullptr) vocabulary = vocabulary_parallel(head->path, axis);
  if (embedding != nullptr) {
    vocabulary = join({vocabulary, vocabulary_parallel(embedding->path, axis)});
  }
  return join({vocabulary, exceptions_to(layers, found.layers), layers});
}

}  // namespace trireme
