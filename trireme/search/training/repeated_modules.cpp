// SPDX-License-Identifier: Apache-2.0
#include <trireme/search/training/repeated_modules.h>

#include <trireme/base/error.h>

#include <torch/nn/module.h>

#include <algorithm>
#include <map>
#include <utility>

namespace trireme::search {
namespace {

// Names and shapes of all parameters of a module; empty if it has none.
std::string shape_of(const torch::nn::Module& module) {
  std::string text;
  for (const auto& item : module.named_parameters()) {
    text +=
        join_message(item.key(), " ", item.value().sizes(), " ", item.value().scalar_type(), "\n");
  }
  return text;
}

void collect(const torch::nn::Module& module, const std::string& path,
             std::vector<RepeatedModules>& groups) {
  std::vector<RepeatedModules> of_children;
  std::vector<std::pair<std::string, const torch::nn::Module*>> children;
  std::int64_t siblings = 0;
  for (const auto& child : module.named_children()) {
    const std::string child_path = path.empty() ? child.key() : path + "." + child.key();
    children.emplace_back(child_path, child.value().get());
    std::string shape = shape_of(*child.value());
    if (shape.empty()) continue;
    ++siblings;
    // A network without a container is itself no repetition of its two linear layers.
    if (child.value()->children().empty()) continue;
    RepeatedModules* group = nullptr;
    for (RepeatedModules& each : of_children) {
      if (each.shape == shape) group = &each;
    }
    if (group == nullptr) {
      group = &of_children.emplace_back(
          RepeatedModules{.shape = shape, .container = path.empty() ? path : path + "."});
    }
    group->paths.push_back(child_path);
  }
  const auto is_repeated = [&](const std::string& child_path) {
    for (const RepeatedModules& each : of_children) {
      for (const std::string& one : each.paths) {
        if (one == child_path) return each.paths.size() >= 2;
      }
    }
    return false;
  };
  for (const auto& [child_path, child] : children) {
    if (!is_repeated(child_path)) {
      collect(*child, child_path, groups);
      continue;
    }
    for (const RepeatedModules& each : of_children) {
      if (each.paths.front() != child_path) continue;
      groups.push_back(each);
      groups.back().siblings = siblings;
    }
  }
}

// All modules of the groups, as few patterns as possible.
std::vector<std::string> patterns_of_all(const std::vector<RepeatedModules>& groups) {
  std::map<std::string, std::int64_t> members;  // by container
  for (const RepeatedModules& group : groups) {
    members[group.container] += static_cast<std::int64_t>(group.paths.size());
  }
  std::vector<std::string> patterns;
  for (const RepeatedModules& group : groups) {
    if (members[group.container] != group.siblings || group.container.empty()) {
      patterns.insert(patterns.end(), group.paths.begin(), group.paths.end());
    } else if (std::ranges::find(patterns, group.container + "*") == patterns.end()) {
      patterns.push_back(group.container + "*");
    }
  }
  return patterns;
}

}  // namespace

std::vector<RepeatedModules> repeated_modules(ConstModuleRef module) {
  std::vector<RepeatedModules> groups;
  collect(*module, "", groups);
  return groups;
}

std::vector<std::string> spread_over(const std::vector<RepeatedModules>& groups,
                                     std::int64_t count) {
  const std::int64_t all = count_of(groups);
  if (count == all) return patterns_of_all(groups);
  std::vector<std::string> paths;
  std::int64_t number = 0;
  for (const RepeatedModules& group : groups) {
    for (const std::string& path : group.paths) {
      if ((number + 1) * count / all > number * count / all) paths.push_back(path);
      ++number;
    }
  }
  return paths;
}

std::int64_t count_of(const std::vector<RepeatedModules>& groups) {
  std::int64_t all = 0;
  for (const RepeatedModules& group : groups) all += static_cast<std::int64_t>(group.paths.size());
  return all;
}

}  // namespace trireme::search
