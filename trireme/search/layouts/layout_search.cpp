// SPDX-License-Identifier: Apache-2.0
#include <trireme/search/layouts/layout_search.h>

#include <trireme/base/error.h>
#include <trireme/cluster/operator_time.h>
#include <trireme/cluster/units.h>
#include <trireme/predict/predict.h>
#include <trireme/search/layouts/layout_replay.h>

#include <torch/nn/module.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <unordered_map>
#include <utility>

namespace trireme::search {
namespace {

// The name with `*` in place of the last part of the path of a repeated module. Names that become
// equal belong together.
std::string folded(const std::string& name, const std::vector<RepeatedModules>& repeated,
                   std::size_t& group) {
  for (std::size_t i = 0; i < repeated.size(); ++i) {
    for (const std::string& path : repeated[i].paths) {
      if (!name.starts_with(path + ".")) continue;
      group = i;
      const std::size_t dot = path.rfind('.');
      const std::string container = dot == std::string::npos ? "" : path.substr(0, dot + 1);
      return container + "*" + name.substr(path.size());
    }
  }
  return name;
}

bool matches_only(const std::string& pattern, const std::vector<std::string>& names,
                  const std::vector<std::string>& all) {
  const ParameterLayouts layouts = {{.pattern = pattern}};
  return std::ranges::all_of(all, [&](const std::string& name) {
    const bool is_member = std::ranges::find(names, name) != names.end();
    return is_member == (find_layout(layouts, name) != nullptr);
  });
}

using Variable = LayoutVariable;

std::vector<Variable> variables_of(const Training& training, const LaidOutModule& laid_out,
                                   std::int64_t ranks,
                                   const std::vector<RepeatedModules>& repeated) {
  std::unordered_map<std::string, std::size_t> positions;
  for (std::size_t i = 0; i < laid_out.tensors.size(); ++i) {
    positions.emplace(laid_out.tensors[i].name, i);
  }
  std::vector<Variable> variables;
  for (ParameterGroup& group : parameter_groups(training.module, repeated)) {
    Variable variable = {.options = {Replicate{}}};
    for (std::size_t dim = 0; dim < group.sizes.size(); ++dim) {
      if (group.sizes[dim] >= ranks) {
        variable.options.emplace_back(Shard{static_cast<int>(dim)});
      }
    }
    for (const std::string& name : group.names) variable.tensors.push_back(positions.at(name));
    variable.elements = static_cast<double>(group.names.size());
    for (const std::int64_t size : group.sizes) variable.elements *= static_cast<double>(size);
    variable.group = std::move(group);
    if (variable.options.size() > 1) variables.push_back(std::move(variable));
  }
  // Large parameters decide; small ones, such as biases, follow them.
  std::ranges::stable_sort(variables, std::ranges::greater(), &Variable::elements);
  return variables;
}

class Descent {
 public:
  Descent(LayoutReplay& replay, const std::vector<Variable>& variables, std::size_t num_tensors)
      : replay_(replay), variables_(variables), placements_(num_tensors) {}

  // Begins with the option of each variable that `choose` returns, and improves one after the
  // other.
  template <typename Choose>
  void run(const Choose& choose) {
    chosen_.assign(variables_.size(), 0);
    for (std::size_t i = 0; i < variables_.size(); ++i) set(i, choose(variables_[i]));
    seconds_ = replay_.seconds(placements_);
    while (improve_one()) {
    }
    keep_if_best();
  }

  // Continues from the best choices with pairs of variables, which take most of the time.
  void run_pairs() {
    for (std::size_t i = 0; i < variables_.size(); ++i) set(i, best_[i]);
    seconds_ = best_seconds_;
    while (improve_pairs() || improve_one()) {
    }
    keep_if_best();
  }

  const std::vector<std::size_t>& best() const { return best_; }
  double best_seconds() const { return best_seconds_; }

 private:
  void keep_if_best() {
    if (best_.empty() || seconds_ < best_seconds_) {
      best_ = chosen_;
      best_seconds_ = seconds_;
    }
  }

  void set(std::size_t variable, std::size_t option) {
    chosen_[variable] = option;
    for (const std::size_t tensor : variables_[variable].tensors) {
      placements_[tensor] = variables_[variable].options[option];
    }
  }

  // Keeps the present placements if they are better than the best so far.
  bool is_improved() {
    const double seconds = replay_.seconds(placements_);
    // Sums in another order differ in the last digits.
    constexpr double kNoise = 1e-9;
    if (seconds >= seconds_ * (1 - kNoise)) return false;
    seconds_ = seconds;
    return true;
  }

  bool try_options(std::size_t variable) {
    bool any = false;
    for (std::size_t option = 0; option < variables_[variable].options.size(); ++option) {
      const std::size_t before = chosen_[variable];
      if (option == before) continue;
      set(variable, option);
      if (is_improved()) {
        any = true;
      } else {
        set(variable, before);
      }
    }
    return any;
  }

  bool improve_one() {
    bool any = false;
    for (std::size_t i = 0; i < variables_.size(); ++i) any = try_options(i) || any;
    return any;
  }

  // Two products in a row gain only if both change. The largest groups are tried together.
  bool improve_pairs() {
    constexpr std::size_t kPaired = 12;
    const std::size_t count = std::min(kPaired, variables_.size());
    for (std::size_t first = 0; first < count; ++first) {
      for (std::size_t second = first + 1; second < count; ++second) {
        if (improve_pair(first, second)) return true;
      }
    }
    return false;
  }

  bool improve_pair(std::size_t first, std::size_t second) {
    const std::pair before = {chosen_[first], chosen_[second]};
    for (std::size_t i = 0; i < variables_[first].options.size(); ++i) {
      for (std::size_t j = 0; j < variables_[second].options.size(); ++j) {
        if (i == before.first || j == before.second) continue;  // one alone was tried
        set(first, i);
        set(second, j);
        if (is_improved()) return true;
      }
    }
    set(first, before.first);
    set(second, before.second);
    return false;
  }

  LayoutReplay& replay_;
  const std::vector<Variable>& variables_;
  std::vector<Placement> placements_;
  std::vector<std::size_t> chosen_;  // option of each variable
  double seconds_ = 0;
  std::vector<std::size_t> best_;
  double best_seconds_ = 0;
};

std::vector<double> seconds_of_calls(const ModuleRecord& record, const cluster::Cluster& cluster) {
  const cluster::DeviceKind& device = cluster.device(cluster.hosts.front().device);
  std::vector<double> seconds;
  for (const OperatorCall& call : record.calls) {
    const bool works = call.work.flops > 0 || call.work.bytes > 0;
    seconds.push_back(works ? cluster::seconds(device, call.work,
                                               cluster::measured_operator(cluster, device.name,
                                                                          call.name, call.work))
                            : 0);
  }
  return seconds;
}

std::vector<double> seconds_of_parameters(const ModuleRecord& record, const Training& training,
                                          const cluster::Cluster& cluster) {
  const cluster::DeviceKind& device = cluster.device(cluster.hosts.front().device);
  const double bandwidth = device.memory_gb_per_s * cluster::kGiga * device.efficiency.memory;
  std::vector<double> seconds;
  for (const ParameterRecord& parameter : record.parameters) {
    const double bytes =
        parameter.elements * (2 * predict::optimizer_bytes(parameter, training.options) +
                              predict::gradient_bytes(parameter, training.options)) +
        2 * parameter.bytes;
    seconds.push_back(parameter.requires_grad ? bytes / bandwidth : 0);
  }
  return seconds;
}

ParameterLayouts layouts_of(const std::vector<Variable>& variables,
                            const std::vector<std::size_t>& chosen) {
  ParameterLayouts layouts;
  for (std::size_t i = 0; i < variables.size(); ++i) {
    const Placement& placement = variables[i].options[chosen[i]];
    if (!placement.is_shard()) continue;
    for (const std::string& pattern : variables[i].group.patterns) {
      layouts.push_back({.pattern = pattern, .placements = {{"tensor", placement}}});
    }
  }
  return layouts;
}

}  // namespace

std::vector<ParameterGroup> parameter_groups(ConstModuleRef module,
                                             const std::vector<RepeatedModules>& repeated) {
  std::vector<ParameterGroup> groups;
  std::vector<std::string> patterns;
  std::vector<std::string> all;
  std::map<std::string, std::size_t> numbers;
  for (const auto& item : (*module).named_parameters()) {
    const std::string& name = item.key();
    std::size_t of_modules = repeated.size();
    const std::string pattern = folded(name, repeated, of_modules);
    all.push_back(name);
    const auto [found, is_new] =
        numbers.try_emplace(join_message(of_modules, " ", pattern), groups.size());
    if (is_new) {
      groups.push_back({.sizes = item.value().sizes().vec()});
      patterns.push_back(pattern);
    }
    groups[found->second].names.push_back(name);
  }
  for (std::size_t i = 0; i < groups.size(); ++i) {
    groups[i].patterns = matches_only(patterns[i], groups[i].names, all)
                             ? std::vector<std::string>{patterns[i]}
                             : groups[i].names;
  }
  return groups;
}

LayoutChoices layout_choices(const Training& training, const cluster::Cluster& cluster,
                             std::int64_t ranks, std::int64_t tensor, std::int64_t rows,
                             const std::vector<RepeatedModules>& repeated,
                             const TracedModule* traced) {
  Plan plan;
  plan.mesh = {{kDataAxis, ranks / tensor}, {"tensor", tensor}};
  plan.layouts = {{"*", {{"tensor", Replicate{}}}}};
  const LaidOutModule laid_out = lay_out_module(training.module, plan, &cluster);
  const auto choices = [&](const detail::ModuleDryRun& dry_run, const AlongAxis& along_axis,
                           const ModuleRecord& record) -> LayoutChoices {
    return {
        .replay = LayoutReplay(dry_run, along_axis, laid_out, 0, seconds_of_calls(record, cluster),
                               seconds_of_parameters(record, training, cluster)),
        .variables = variables_of(training, laid_out, tensor, repeated),
        .num_tensors = laid_out.tensors.size()};
  };
  if (traced != nullptr) {
    const auto replayed = replay_module(*traced, laid_out, 0);
    if (replayed) return choices(traced->dry_run, replayed->along_axis, replayed->record);
  }
  const detail::ModuleDryRun dry_run =
      detail::dry_run_module(laid_out.tensors, laid_out.layouts, loss_of_rows(training, rows), 0);
  return choices(dry_run, dry_run.along_axis, make_record(laid_out, dry_run));
}

FoundLayouts find_layouts(const Training& training, const cluster::Cluster& cluster,
                          std::int64_t ranks, std::int64_t tensor, std::int64_t rows,
                          const std::vector<RepeatedModules>& repeated,
                          const TracedModule* traced) {
  LayoutChoices choices = layout_choices(training, cluster, ranks, tensor, rows, repeated, traced);
  const std::vector<Variable>& variables = choices.variables;
  FoundLayouts found = {.replicated_seconds =
                            choices.replay.seconds(std::vector<Placement>(choices.num_tensors))};
  found.seconds = found.replicated_seconds;
  if (variables.empty()) return found;
  Descent descent(choices.replay, variables, choices.num_tensors);
  descent.run([](const Variable&) { return std::size_t{0}; });
  descent.run([](const Variable&) { return std::size_t{1}; });
  descent.run([](const Variable& variable) { return variable.options.size() - 1; });
  descent.run_pairs();
  found.layouts = layouts_of(variables, descent.best());
  found.seconds = descent.best_seconds();
  return found;
}

}  // namespace trireme::search
