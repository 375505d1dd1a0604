// SPDX-License-Identifier: Apache-2.0
#include <trireme/predict/stage_work.h>

#include <trireme/base/error.h>

#include <fnmatch.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <set>
#include <string>
#include <string_view>

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

// The region that a call belongs to, as text that consecutive calls of a region share.
std::string region_of(const OperatorCall& call, const std::string& pattern) {
  if (pattern.find("::") != std::string::npos) {
    const bool is_named =
        matches(pattern, call.name) || matches(pattern, without_overload(call.name));
    return is_named ? "operators" : std::string();
  }
  return outermost_match(call.module, pattern);
}

// The stage of each call of forward.
std::vector<int> named_stages(const ModuleRecord& record, const Plan& plan, int num_stages) {
  std::vector<int> stages;
  std::set<std::string> unused;
  for (const auto& [name, stage] : plan.stages) {
    unused.insert(name);
    if (stage >= num_stages) {
      throw UsageError(
          join_message("stage ", stage, " of ", name, " is not among the ", num_stages,
                       " stages of the plan"),
          "stages are counted from 0; chunks times the ranks along pipe is their number");
    }
  }
  int current = 0;
  for (int i = 0; i < record.num_forward; ++i) {
    for (const auto& [name, stage] : plan.stages) {
      if (!is_in_module(record.call(i).module, name)) continue;
      unused.erase(name);
      current = std::max(current, stage);
    }
    stages.push_back(current);
  }
  if (!unused.empty()) {
    throw UsageError(join_message("no parameter that forward reads is in module ", *unused.begin(),
                                  ", where plan.stages begins a stage"),
                     "name modules by their paths; marks are not known to a prediction");
  }
  return stages;
}

// The number of parts that are needed if none may take longer than `limit`.
int parts_within(std::span<const double> blocks, double limit) {
  int parts = 1;
  double sum = 0;
  for (const double block : blocks) {
    if (sum > 0 && sum + block > limit) {
      ++parts;
      sum = 0;
    }
    sum += block;
  }
  return parts;
}

std::vector<int> balanced_stages(const ModuleRecord& record, int num_stages,
                                 std::span<const double> work) {
  // Calls between two changes of the module stay together.
  std::vector<int> block_of;
  std::vector<double> blocks;
  for (int i = 0; i < record.num_forward; ++i) {
    if (i == 0 || record.call(i).module != record.call(i - 1).module) blocks.push_back(0);
    block_of.push_back(static_cast<int>(blocks.size()) - 1);
  }
  for (int i = 0; i < record.num_calls(); ++i) {
    const auto block =
        static_cast<std::size_t>(block_of[static_cast<std::size_t>(record.call(i).forward_call)]);
    blocks[block] += work[static_cast<std::size_t>(i)];
  }
  if (static_cast<int>(blocks.size()) < num_stages) {
    throw UsageError(join_message("the module has ", blocks.size(), " places to cut for ",
                                  num_stages, " stages"),
                     "use fewer ranks along pipe, or fewer chunks");
  }
  double low = *std::ranges::max_element(blocks);
  double high = 0;
  for (const double block : blocks) high += block;
  constexpr int kHalvings = 60;
  for (int i = 0; i < kHalvings; ++i) {
    const double middle = (low + high) / 2;
    (parts_within(blocks, middle) <= num_stages ? high : low) = middle;
  }
  std::vector<int> stage_of_block;
  int stage = 0;
  double sum = 0;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const auto left = static_cast<int>(blocks.size() - i);
    // Each of the later stages needs a block too.
    const bool must_begin = left <= num_stages - 1 - stage && sum > 0;
    if ((sum > 0 && sum + blocks[i] > high && stage + 1 < num_stages) || must_begin) {
      ++stage;
      sum = 0;
    }
    sum += blocks[i];
    stage_of_block.push_back(stage);
  }
  std::vector<int> stages;
  for (const int block : block_of)
    stages.push_back(stage_of_block[static_cast<std::size_t>(block)]);
  return stages;
}

}  // namespace

std::vector<RecomputedRegion> recomputed_regions(const ModuleRecord& record, const Plan& plan) {
  std::vector<bool> is_repeated(static_cast<std::size_t>(record.num_forward), false);
  std::vector<std::string> label(static_cast<std::size_t>(record.num_forward));
  for (const std::string& pattern : plan.recompute) {
    bool is_used = false;
    for (int i = 0; i < record.num_forward; ++i) {
      const std::string region = region_of(record.call(i), pattern);
      if (region.empty()) continue;
      is_used = true;
      // The module that is named first is the outer one.
      if (label[static_cast<std::size_t>(i)].empty()) label[static_cast<std::size_t>(i)] = region;
    }
    if (is_used) continue;
    throw UsageError(join_message("plan.recompute has '", pattern,
                                  "', which matches no module and no operator of forward"),
                     "use paths of modules such as blocks.*, or operators such as aten::gelu");
  }
  std::vector<RecomputedRegion> regions;
  std::string before;
  for (int i = 0; i < record.num_forward; ++i) {
    const std::string& here = label[static_cast<std::size_t>(i)];
    if (here.empty()) {
      // Views between two operators keep no memory of their own.
      if (record.call(i).result_bytes > 0) before.clear();
      continue;
    }
    if (here == before) {
      regions.back().last = i;
    } else {
      regions.push_back({i, i});
    }
    before = here;
  }
  return regions;
}

std::vector<StageWork> divide(const ModuleRecord& record, const Plan& plan, int num_stages,
                              std::span<const double> work) {
  std::vector<int> stages;
  if (num_stages == 1) {
    stages.assign(static_cast<std::size_t>(record.num_forward), 0);
  } else {
    stages = plan.stages.empty() ? balanced_stages(record, num_stages, work)
                                 : named_stages(record, plan, num_stages);
  }
  const auto stage_of = [&](int call) {
    return static_cast<std::size_t>(
        stages[static_cast<std::size_t>(record.call(call).forward_call)]);
  };
  std::vector<StageWork> all(static_cast<std::size_t>(num_stages));
  std::vector<std::set<int>> parameters(all.size());
  std::vector<std::size_t> last_reader(static_cast<std::size_t>(record.num_forward), 0);
  for (int i = 0; i < record.num_calls(); ++i) {
    const std::size_t stage = stage_of(i);
    (i < record.num_forward ? all[stage].forward : all[stage].backward).push_back(i);
    for (const int parameter : record.call(i).parameters) parameters[stage].insert(parameter);
    if (i >= record.num_forward) continue;
    for (const int read : record.call(i).reads) {
      std::size_t& last = last_reader[static_cast<std::size_t>(read)];
      last = std::max(last, stage);
    }
  }
  for (int i = 0; i < record.num_forward; ++i) {
    const std::size_t from = stage_of(i);
    for (std::size_t stage = from; stage < last_reader[static_cast<std::size_t>(i)]; ++stage) {
      all[stage].boundary_bytes += record.call(i).result_bytes;
    }
  }
  for (std::size_t stage = 0; stage < all.size(); ++stage) {
    all[stage].parameters.assign(parameters[stage].begin(), parameters[stage].end());
  }
  for (const RecomputedRegion& region : recomputed_regions(record, plan)) {
    // A region that crosses a boundary is cut there.
    for (int first = region.first; first <= region.last;) {
      int last = first;
      while (last < region.last && stage_of(last + 1) == stage_of(first)) ++last;
      all[stage_of(first)].regions.push_back({first, last});
      first = last + 1;
    }
  }
  return all;
}

}  // namespace trireme::predict
