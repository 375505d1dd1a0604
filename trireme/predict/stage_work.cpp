// SPDX-License-Identifier: Apache-2.0
#include <trireme/predict/stage_work.h>

#include <trireme/base/error.h>
#include <trireme/graph/balance.h>
#include <trireme/graph/module_path.h>

#include <fnmatch.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <limits>
#include <string>
#include <unordered_map>
#include <utility>

namespace trireme::predict {
namespace {

bool matches(const std::string& pattern, const std::string& text) {
  return ::fnmatch(pattern.c_str(), text.c_str(), 0) == 0;
}

bool is_in_module(const std::string& path, const std::string& module) {
  return path == module || (path.starts_with(module) && path[module.size()] == '.');
}

// The outermost module around `path` that a pattern matches; empty if there is none.
std::string outermost_match(const std::string& path, const std::string& pattern) {
  std::size_t end = 0;
  while (end != std::string::npos && !path.empty()) {
    end = path.find('.', end + 1);
    const std::string module = path.substr(0, end);
    if (matches(pattern, module)) return module;
  }
  return {};
}

std::string without_overload(const std::string& name) { return name.substr(0, name.find('.')); }

bool is_of_operators(const std::string& pattern) { return pattern.find("::") != std::string::npos; }

// The regions that calls belong to, as texts that consecutive calls of a region share. There may be
// a pattern for each of many modules, so each module is compared with them once.
class RegionNames {
 public:
  explicit RegionNames(const std::vector<std::string>& patterns)
      : patterns_(patterns), is_used_(patterns.size(), false) {}

  // The module that is named first is the outer one.
  const std::string& of(const OperatorCall& call) {
    const auto [module, is_new] = modules_.try_emplace(call.module);
    if (is_new) module->second = find_module(call.module);
    const auto [op, is_new_op] = operators_.try_emplace(call.name);
    if (is_new_op) op->second = find_operator(call.name);
    return module->second.pattern <= op->second.pattern ? module->second.region : op->second.region;
  }

  // Throws UsageError for a pattern that no call has matched.
  void check_all_used() const {
    for (std::size_t i = 0; i < patterns_.size(); ++i) {
      if (is_used_[i]) continue;
      throw UsageError(join_message("plan.recompute has '", patterns_[i],
                                    "', which matches no module and no operator of forward"),
                       "use paths of modules such as blocks.*, or operators such as aten::gelu");
    }
  }

 private:
  struct Match {
    std::size_t pattern = std::numeric_limits<std::size_t>::max();
    std::string region{};  // empty if no pattern matches
  };

  Match find_module(const std::string& path) {
    Match first;
    for (std::size_t i = 0; i < patterns_.size(); ++i) {
      if (is_of_operators(patterns_[i])) continue;
      std::string region = outermost_match(path, patterns_[i]);
      if (region.empty()) continue;
      is_used_[i] = true;
      if (first.region.empty()) first = {.pattern = i, .region = std::move(region)};
    }
    return first;
  }

  Match find_operator(const std::string& name) {
    Match first;
    for (std::size_t i = 0; i < patterns_.size(); ++i) {
      if (!is_of_operators(patterns_[i])) continue;
      if (!matches(patterns_[i], name) && !matches(patterns_[i], without_overload(name))) continue;
      is_used_[i] = true;
      if (first.region.empty()) first = {.pattern = i, .region = "operators"};
    }
    return first;
  }

  const std::vector<std::string>& patterns_;
  std::vector<bool> is_used_;
  std::unordered_map<std::string, Match> modules_;
  std::unordered_map<std::string, Match> operators_;
};

bool reads_parameter_of(const ModuleRecord& record, int call, const std::string& module) {
  return std::ranges::any_of(record.call(call).parameters, [&](int parameter) {
    const std::string& name = record.parameters[static_cast<std::size_t>(parameter)].name;
    return is_in_module(graph::detail::module_of(name), module);
  });
}

// The first call of forward that reads a parameter of a module.
int first_call_of(const ModuleRecord& record, const std::string& module) {
  for (int call = 0; call < record.num_forward; ++call) {
    if (reads_parameter_of(record, call, module)) return call;
  }
  throw UsageError(join_message("no parameter that forward reads is in module ", module,
                                ", where plan.stages begins a stage"),
                   "name modules by their paths; marks are not known to a prediction");
}

// The stage of each call of forward. A stage begins with the first call of its modules; stage 0
// begins with forward.
std::vector<int> named_stages(const ModuleRecord& record, const Plan& plan, int num_stages) {
  std::vector<std::pair<int, int>> begins;  // first call and stage of each module
  for (const auto& [name, stage] : plan.stages) {
    if (stage >= num_stages) {
      throw UsageError(
          join_message("stage ", stage, " of ", name, " is not among the ", num_stages,
                       " stages of the plan"),
          "stages are counted from 0; chunks times the ranks along pipe is their number");
    }
    begins.emplace_back(first_call_of(record, name), stage);
  }
  std::ranges::sort(begins);
  if (begins.front().second > 0) begins.insert(begins.begin(), {0, 0});
  std::vector<int> stages(static_cast<std::size_t>(record.num_forward), 0);
  for (std::size_t i = 1; i < begins.size(); ++i) {
    const auto [call, stage] = begins[i];
    const int before = begins[i - 1].second;
    if (stage != before && stage != before + 1) {
      throw UsageError(join_message("what plan.stages lists for stage ", stage,
                                    " is reached by forward directly after stage ", before),
                       "number stages in the order in which forward calls their modules, without "
                       "gaps");
    }
    std::fill(stages.begin() + call, stages.end(), stage);
  }
  if (begins.back().second + 1 < num_stages) {
    throw UsageError(join_message("plan.stages lists ", begins.back().second + 1,
                                  " stages, and the schedule has ", num_stages),
                     "name as many stages, or choose another schedule");
  }
  return stages;
}

// Stages of equal cost, divided as a TrainingStep divides them.
std::vector<int> balanced_stages(const ModuleRecord& record, int num_stages) {
  graph::OperatorLine line = {.bytes = bytes_across(record)};
  line.costs.resize(static_cast<std::size_t>(record.num_forward), 0);
  double all = 0;
  for (const OperatorCall& call : record.calls) {
    line.costs[static_cast<std::size_t>(call.forward_call)] += call.counted_flops;
    all += call.counted_flops;
  }
  for (int i = 0; all == 0 && i < record.num_forward; ++i) {
    line.costs[static_cast<std::size_t>(i)] = record.call(i).result_bytes;
  }
  line.is_place.assign(line.bytes.size(), true);
  // A view is made where it is used: a graph has it as a part of the operator, or counts its bytes.
  for (int i = 0; i < record.num_forward; ++i) {
    if (record.call(i).is_view) line.is_place[static_cast<std::size_t>(i) + 1] = false;
  }
  const std::vector<int> boundaries = graph::balance(line, num_stages);
  std::vector<int> stages;
  for (int stage = 0; stage < num_stages; ++stage) {
    const auto begin = static_cast<std::size_t>(stage);
    stages.insert(stages.end(), static_cast<std::size_t>(boundaries[begin + 1] - boundaries[begin]),
                  stage);
  }
  return stages;
}

}  // namespace

std::vector<RecomputedRegion> recomputed_regions(const ModuleRecord& record, const Plan& plan) {
  if (plan.recompute.empty()) return {};
  RegionNames names(plan.recompute);
  std::vector<RecomputedRegion> regions;
  std::string before;
  for (int i = 0; i < record.num_forward; ++i) {
    const std::string& here = names.of(record.call(i));
    if (here.empty()) {
      // Views between two operators keep no memory of their own.
      if (record.call(i).result_bytes > 0) before.clear();
      continue;
    }
    if (here == before) {
      regions.back().last = i;
    } else {
      regions.push_back({.first = i, .last = i});
    }
    before = here;
  }
  names.check_all_used();
  return regions;
}

std::vector<StageWork> divide(const ModuleRecord& record, const Plan& plan, int num_stages) {
  std::vector<int> stages;
  if (num_stages == 1) {
    stages.assign(static_cast<std::size_t>(record.num_forward), 0);
  } else {
    stages = plan.stages.empty() ? balanced_stages(record, num_stages)
                                 : named_stages(record, plan, num_stages);
  }
  const auto stage_of = [&](int call) {
    return static_cast<std::size_t>(
        stages[static_cast<std::size_t>(record.call(call).forward_call)]);
  };
  std::vector<StageWork> all(static_cast<std::size_t>(num_stages));
  const std::vector<double> passed = passed_bytes(record);
  for (int i = 0; i < record.num_calls(); ++i) {
    const std::size_t stage = stage_of(i);
    (i < record.num_forward ? all[stage].forward : all[stage].backward).push_back(i);
    for (const int parameter : record.call(i).parameters) {
      all[stage].parameters.push_back(parameter);
    }
    for (const int read : record.call(i).reads) {
      // Backward reads what forward has received, and gradients of later stages.
      if (read >= record.num_forward || stage_of(read) == stage) continue;
      const double bytes = passed[static_cast<std::size_t>(read)];
      const bool is_new = all[stage].received.emplace(read, bytes).second;
      if (is_new && i < record.num_forward) {
        all[stage_of(read)].sent[static_cast<int>(stage)] += bytes;
      }
    }
  }
  for (StageWork& stage : all) {
    std::ranges::sort(stage.parameters);
    const auto equal = std::ranges::unique(stage.parameters);
    stage.parameters.erase(equal.begin(), equal.end());
  }
  for (const RecomputedRegion& region : recomputed_regions(record, plan)) {
    // A region that crosses a boundary is cut there.
    for (int first = region.first; first <= region.last;) {
      int last = first;
      while (last < region.last && stage_of(last + 1) == stage_of(first)) ++last;
      all[stage_of(first)].regions.push_back({.first = first, .last = last});
      first = last + 1;
    }
  }
  for (StageWork& stage : all) set_repeated(record, stage);
  return all;
}

double sent_bytes(const StageWork& stage, int to) {
  const auto found = stage.sent.find(to);
  return found == stage.sent.end() ? 0 : found->second;
}

void set_repeated(const ModuleRecord& record, StageWork& stage) {
  for (RecomputedRegion& region : stage.regions) region.last_repeated = region.first - 1;
  for (const int number : stage.backward) {
    const OperatorCall& call = record.call(number);
    const auto after =
        std::ranges::upper_bound(stage.regions, call.forward_call, {}, &RecomputedRegion::first);
    if (after == stage.regions.begin()) continue;
    RecomputedRegion& region = *std::prev(after);
    if (call.forward_call > region.last) continue;
    for (const int read : call.reads) {
      if (read <= region.last) region.last_repeated = std::max(region.last_repeated, read);
    }
  }
}

}  // namespace trireme::predict
