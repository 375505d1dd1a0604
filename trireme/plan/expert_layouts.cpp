// SPDX-License-Identifier: Apache-2.0
#include <trireme/plan/expert_layouts.h>

#include <trireme/base/error.h>

#include <torch/torch.h>

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <set>
#include <string_view>
#include <vector>

namespace trireme {
namespace {

constexpr std::int64_t kStackedDims = 3;  // of a stacked matrix

using Parameters = torch::OrderedDict<std::string, at::Tensor>;

// A module with its path, and the path of the module that contains it.
struct Candidate {
  std::string path;
  std::string parent;
  std::shared_ptr<torch::nn::Module> module;
};

struct Router {
  std::string path;
  std::int64_t inputs = 0;
  std::int64_t outputs = 0;
};

std::string joined(const std::string& path, const std::string& name) {
  return path.empty() ? name : path + '.' + name;
}

bool is_below(const std::string& path, const std::string& above) {
  return above.empty() || path.starts_with(above + '.');
}

std::vector<Candidate> candidates_of(const torch::nn::Module& module) {
  std::vector<Candidate> all;
  for (const auto& entry : module.named_modules("", /*include_self=*/false)) {
    const std::size_t dot = entry.key().rfind('.');
    const std::string parent = dot == std::string::npos ? "" : entry.key().substr(0, dot);
    all.push_back({entry.key(), parent, entry.value()});
  }
  return all;
}

// Returns the number of experts that the parameters of one module are stacked for, or 0. A first
// size of 1 is no stack, but that of a row such as the class token of a vision transformer.
std::int64_t experts_of(const Parameters& parameters) {
  std::int64_t experts = 0;
  for (const auto& item : parameters) {
    if (item.value().dim() < kStackedDims) continue;
    if (experts != 0 && item.value().size(0) != experts) return 0;
    experts = item.value().size(0);
  }
  return experts > 1 ? experts : 0;
}

bool routes_to(const Router& router, const Parameters& parameters, std::int64_t experts) {
  return router.outputs == experts && std::ranges::any_of(parameters, [&](const auto& item) {
           const at::Tensor& tensor = item.value();
           return tensor.dim() == kStackedDims &&
                  (tensor.size(1) == router.inputs || tensor.size(2) == router.inputs);
         });
}

bool is_stacked(const at::Tensor& tensor, const Parameters& parameters, std::int64_t experts) {
  if (tensor.dim() < 2 || tensor.size(0) != experts) return false;
  return tensor.dim() >= kStackedDims || std::ranges::any_of(parameters, [&](const auto& item) {
           return item.value().dim() >= kStackedDims && item.value().size(-1) == tensor.size(1);
         });
}

std::string with_stars(std::string_view path) {
  std::string pattern;
  for (std::size_t begin = 0; begin <= path.size();) {
    const std::size_t end = std::min(path.find('.', begin), path.size());
    const std::string_view part = path.substr(begin, end - begin);
    const bool is_number = !part.empty() && std::ranges::all_of(part, [](unsigned char letter) {
      return std::isdigit(letter) != 0;
    });
    pattern += is_number ? "*" : std::string(part);
    if (end < path.size()) pattern += '.';
    begin = end + 1;
  }
  return pattern;
}

ParameterLayouts layouts_of(const std::vector<std::string>& stacked,
                            const torch::nn::Module& module, const std::string& axis) {
  const std::set<std::string> all(stacked.begin(), stacked.end());
  const Parameters parameters = module.named_parameters();
  ParameterLayouts layouts;
  std::set<std::string> known;
  for (const std::string& name : stacked) {
    const auto layout_for = [&](std::string pattern) {
      return ParameterLayout{.pattern = std::move(pattern), .placements = {{axis, Shard{0}}}};
    };
    ParameterLayout layout = layout_for(with_stars(name));
    const bool is_too_wide = std::ranges::any_of(parameters, [&](const auto& item) {
      return !all.contains(item.key()) && find_layout({layout}, item.key()) != nullptr;
    });
    if (is_too_wide) layout = layout_for(name);
    if (known.insert(layout.pattern).second) layouts.push_back(std::move(layout));
  }
  return layouts;
}

}  // namespace

ParameterLayouts expert_layouts(const torch::nn::Module& module, const std::string& axis) {
  const std::vector<Candidate> candidates = candidates_of(module);
  std::vector<Router> routers;
  for (const Candidate& candidate : candidates) {
    const auto* const linear = candidate.module->as<torch::nn::LinearImpl>();
    if (linear == nullptr) continue;
    routers.push_back(
        {candidate.path, linear->options.in_features(), linear->options.out_features()});
  }
  std::vector<std::string> stacked;
  const auto look_at = [&](const torch::nn::Module& each, const std::string& path,
                           const std::string& parent) {
    if (each.name().starts_with("torch::nn::")) return;
    const Parameters parameters = each.named_parameters(/*recurse=*/false);
    const std::int64_t experts = experts_of(parameters);
    if (experts == 0) return;
    const bool is_routed = std::ranges::any_of(routers, [&](const Router& router) {
      return is_below(router.path, parent) && routes_to(router, parameters, experts);
    });
    if (!is_routed) return;
    for (const auto& item : parameters) {
      if (is_stacked(item.value(), parameters, experts)) {
        stacked.push_back(joined(path, item.key()));
      }
    }
  };
  look_at(module, "", "");
  for (const Candidate& candidate : candidates) {
    look_at(*candidate.module, candidate.path, candidate.parent);
  }
  if (stacked.empty()) {
    throw UsageError(
        join_message("expert_layouts: ", module.name(),
                     " has no module whose own parameters are stacked experts, [experts, inputs, "
                     "outputs], with a linear layer of as many outputs beside it or below it, the "
                     "router"),
        "stack the parameters of all experts of a layer in one tensor each: experts that are "
        "modules of their own cannot be divided along an axis; or name stacked parameters in "
        "plan.layouts, as in {\"*.experts.weight\", {{\"expert\", Shard{0}}}}");
  }
  return layouts_of(stacked, module, axis);
}

}  // namespace trireme
