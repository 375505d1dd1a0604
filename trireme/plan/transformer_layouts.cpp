// SPDX-License-Identifier: Apache-2.0
#include <trireme/plan/transformer_layouts.h>

#include <trireme/base/error.h>

#include <torch/torch.h>

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <functional>
#include <map>
#include <ranges>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace trireme {
namespace {

struct LinearLayer {
  std::string path;
  std::int64_t inputs = 0;
  std::int64_t outputs = 0;
};

// Splits `encoder.layers.3.attention.query` into `encoder.layers.3` and `.attention.query`. The
// first part is empty for a layer outside of numbered blocks.
std::pair<std::string, std::string> split_block(const std::string& path) {
  for (std::size_t begin = 0; begin < path.size();) {
    const std::size_t end = std::min(path.find('.', begin), path.size());
    const bool is_number = std::all_of(path.begin() + static_cast<std::ptrdiff_t>(begin),
                                       path.begin() + static_cast<std::ptrdiff_t>(end),
                                       [](unsigned char letter) { return std::isdigit(letter); });
    // A number at the end is that of a layer in a Sequential, which is no block.
    if (is_number && begin > 0 && end < path.size()) return {path.substr(0, end), path.substr(end)};
    begin = end + 1;
  }
  return {"", path};
}

// Returns the path of a block with `*` for its number.
std::string pattern_of(const std::string& block) {
  return block.substr(0, block.find_last_of('.') + 1) + '*';
}

enum class Role { kColumn, kRow };

// Roles of the linear layers of a block, by their place in it. Layers without one stay whole.
std::map<std::size_t, Role> roles_in(std::span<const LinearLayer> layers, std::int64_t hidden) {
  std::map<std::size_t, Role> roles;
  for (std::size_t output = 0; output < layers.size(); ++output) {
    const std::int64_t width = layers[output].inputs;
    if (width == hidden || layers[output].outputs != hidden) continue;
    std::size_t first = output;
    while (first > 0 && layers[first - 1].inputs == hidden && layers[first - 1].outputs == width)
      roles[--first] = Role::kColumn;
    if (first < output) roles[output] = Role::kRow;
  }
  std::vector<std::size_t> attention;
  for (std::size_t place = 0; place < layers.size(); ++place) {
    if (!roles.contains(place)) attention.push_back(place);
  }
  const auto last = std::ranges::find_if(std::views::reverse(attention), [&](std::size_t place) {
    return layers[place].outputs == hidden;
  });
  if (last == std::views::reverse(attention).end()) return roles;
  const auto row =
      static_cast<std::size_t>(std::ranges::find(attention, *last) - attention.begin());
  // Attention has queries, keys and values, in one layer or in several.
  const bool has_inputs =
      row > 0 &&
      std::all_of(attention.begin(), attention.begin() + static_cast<std::ptrdiff_t>(row),
                  [&](std::size_t place) { return layers[place].inputs == hidden; });
  if (!has_inputs) return roles;
  for (std::size_t place = 0; place < row; ++place) roles[attention[place]] = Role::kColumn;
  roles[attention[row]] = Role::kRow;
  return roles;
}

// What a transformer consists of.
struct Structure {
  std::vector<std::pair<std::string, torch::nn::EmbeddingImpl*>> embeddings;
  std::vector<LinearLayer> outside;                                      // of blocks
  std::vector<std::pair<std::string, std::vector<LinearLayer>>> blocks;  // by path, in order
  std::int64_t norm_width = 0;
};

Structure structure_of(const torch::nn::Module& module) {
  Structure found;
  // named_modules() is not const, although it changes nothing.
  for (const auto& entry :
       const_cast<torch::nn::Module&>(module).named_modules("", false)) {  // NOLINT
    const std::string& path = entry.key();
    if (auto* embedding = entry.value()->as<torch::nn::EmbeddingImpl>()) {
      found.embeddings.emplace_back(path, embedding);
    } else if (const auto* norm = entry.value()->as<torch::nn::LayerNormImpl>()) {
      found.norm_width = norm->options.normalized_shape().back();
    } else if (const auto* linear = entry.value()->as<torch::nn::LinearImpl>()) {
      const auto& options = linear->options;
      LinearLayer layer{path, options.in_features(), options.out_features()};
      const auto [block, rest] = split_block(path);
      if (block.empty()) {
        found.outside.push_back(std::move(layer));
      } else {
        if (found.blocks.empty() || found.blocks.back().first != block)
          found.blocks.emplace_back(block, std::vector<LinearLayer>());
        found.blocks.back().second.push_back(std::move(layer));
      }
    }
  }
  return found;
}

}  // namespace

ParameterLayouts transformer_layouts(const torch::nn::Module& module, const std::string& axis) {
  const Structure found = structure_of(module);
  const auto rows = [](const auto& entry) { return entry.second->options.num_embeddings(); };
  const auto vocabulary = std::ranges::max_element(found.embeddings, {}, rows);
  const bool has_embedding = vocabulary != found.embeddings.end();
  const std::int64_t hidden =
      has_embedding ? vocabulary->second->options.embedding_dim() : found.norm_width;

  std::map<std::string, Role> roles;  // by pattern
  for (const auto& [block, layers] : found.blocks) {
    for (const auto& [place, role] : roles_in(layers, hidden)) {
      const std::string pattern = pattern_of(block) + layers[place].path.substr(block.size());
      const auto [known, is_new] = roles.emplace(pattern, role);
      if (!is_new && known->second != role) {
        throw UsageError("transformer_layouts: the layer " + layers[place].path +
                             " has another place in its block than those of other blocks that " +
                             pattern + " matches",
                         "name the layers with column_parallel() and row_parallel()");
      }
    }
  }
  if (roles.empty()) {
    throw UsageError(
        "transformer_layouts: the module has no blocks with linear layers from and to its hidden "
        "size, which is " +
            std::to_string(hidden),
        "name the layers with column_parallel() and row_parallel()");
  }

  ParameterLayouts layouts;
  const auto add = [&](const ParameterLayouts& more) {
    layouts.insert(layouts.end(), more.begin(), more.end());
  };
  if (has_embedding) {
    bool has_head = false;
    for (const LinearLayer& layer : found.outside) {
      if (layer.inputs != hidden || layer.outputs != rows(*vocabulary)) continue;
      add(vocabulary_parallel(layer.path, axis));
      has_head = true;
    }
    if (has_head || rows(*vocabulary) > hidden) add(vocabulary_parallel(vocabulary->first, axis));
  }
  // `*` matches dots: the longer pattern first, so that `blocks.*.output` does not take
  // `blocks.0.attention.output`.
  std::vector<std::pair<std::string, Role>> ordered(roles.begin(), roles.end());
  std::ranges::stable_sort(ordered, std::greater(),
                           [](const auto& entry) { return entry.first.size(); });
  for (const auto& [pattern, role] : ordered)
    add(role == Role::kColumn ? column_parallel(pattern, axis) : row_parallel(pattern, axis));
  return layouts;
}

}  // namespace trireme
