// SPDX-License-Identifier: Apache-2.0
#include <trireme/search/choice_limits.h>

#include <trireme/base/error.h>

#include <c10/util/Exception.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace trireme::search {
namespace {

class LimitFinder {
 public:
  LimitFinder(const Training& training, std::int64_t ranks, const cluster::Cluster& cluster,
              const Constraints& constraints, double memory_limit, RecordTable& records,
              BoundTable& bounds)
      : training_(training),
        ranks_(ranks),
        cluster_(cluster),
        constraints_(constraints),
        memory_limit_(memory_limit),
        records_(records),
        bounds_(bounds) {}

  ChoiceLimits run() {
    limits_.places = places();
    limits_.repeated = count_of(repeated_modules(training_.module));
    limits_.tensor_sizes = tensor_sizes();
    limits_.context_sizes = context_sizes();
    limits_.expert_sizes = expert_sizes();
    limits_.most_shared = most_shared();
    return std::move(limits_);
  }

 private:
  // The number of modules, in the order in which forward calls them, between which stages can
  // begin.
  std::int64_t places() {
    const ModuleRecord& record = records_.record({}, 2);
    std::int64_t count = 1;
    for (int i = 1; i < record.num_forward; ++i) {
      if (record.call(i).module != record.call(i - 1).module) ++count;
    }
    return count;
  }

  // The sizes of `tensor` to consider. Across several hosts, sharded operators wait for slow links:
  // beyond that, sizes are only considered if a constraint asks for them.
  std::vector<std::int64_t> tensor_sizes() {
    const AxisRange range = constraints_.axis("tensor");
    const std::int64_t most =
        most_shared() / (constraints_.axis("context").least * constraints_.axis("expert").least);
    std::vector<std::int64_t> sizes = sizes_within(range, most);
    std::erase_if(sizes, [this](std::int64_t size) { return !has_layouts(size); });
    return sizes;
  }

  // The divisors of the number of ranks, from 2 to `most`, that a constraint allows.
  std::vector<std::int64_t> sizes_within(const AxisRange& range, std::int64_t most) const {
    std::vector<std::int64_t> sizes = divisors(ranks_);
    std::erase_if(sizes, [&](std::int64_t size) {
      return size == 1 || size > most || !range.contains(size);
    });
    return sizes;
  }

  // The number of ranks that share rows at most.
  std::int64_t most_shared() const {
    constexpr std::int64_t kAlways = 8;
    std::int64_t devices = 0;
    for (const cluster::Hosts& hosts : cluster_.hosts) devices = std::max(devices, hosts.devices);
    const std::int64_t asked = constraints_.axis("tensor").least *
                               constraints_.axis("context").least *
                               constraints_.axis("expert").least;
    return std::max({kAlways, 2 * devices, asked});
  }

  // The sizes of `context` to consider. Ranks along it do the work of ranks along `data` and
  // communicate more. So it is for steps of fewer rows than ranks, and for rows that are large.
  std::vector<std::int64_t> context_sizes() {
    const AxisRange range = constraints_.axis("context");
    if (!has_attention()) {
      if (range.least <= 1) return {};
      throw UsageError(join_message("the constraint is context>=", range.least,
                                    ", and the model has no attention: ranks along context would "
                                    "repeat the same work"),
                       "leave context out of the constraints");
    }
    const bool is_asked_for = constraints_.axes.contains("context");
    if (!is_asked_for && training_.rows >= ranks_ && !has_large_rows()) return {};
    return sizes_within(range, most_shared());
  }

  // The sizes of `expert` to consider, in models with experts that expert_layouts() finds.
  std::vector<std::int64_t> expert_sizes() {
    const AxisRange range = constraints_.axis("expert");
    if (records_.experts().empty()) {
      if (range.least <= 1) return {};
      throw UsageError(join_message("the constraint is expert>=", range.least,
                                    ", and expert_layouts finds no experts in the model"),
                       "leave expert out of the constraints");
    }
    return sizes_within(range, most_shared());
  }

  bool has_attention() {
    const auto& calls = records_.record({}, 2).calls;
    return std::ranges::any_of(calls, [](const OperatorCall& call) {
      return call.work.kind == cluster::OperatorKind::kAttention;
    });
  }

  // Returns true if the activations of one row take a good part of a device's memory.
  bool has_large_rows() {
    constexpr double kGoodPart = 0.25;
    try {
      const Bounds bounds = bounds_.of({.rows = 1});
      return bounds.memory - bounds.least_memory > kGoodPart * memory_limit_;
    } catch (const c10::Error&) {  // Forward does not accept a single row.
      return false;
    } catch (const UsageError&) {
      return false;
    }
  }

  // Returns whether sharding parameters over so many ranks gains anything. An operator may have no
  // way to compute on shards.
  bool has_layouts(std::int64_t tensor) {
    const auto leave_out = [&](const std::string& reason) {
      limits_.without_tensor = join_message("tensor=", tensor, ": ", reason);
      return false;
    };
    try {
      return !records_.layouts(tensor).empty();
    } catch (const c10::Error& error) {
      return leave_out(error.what_without_backtrace());
    } catch (const UsageError& error) {
      return leave_out(error.what());
    }
  }

  const Training& training_;
  std::int64_t ranks_;
  const cluster::Cluster& cluster_;
  const Constraints& constraints_;
  double memory_limit_;
  RecordTable& records_;
  BoundTable& bounds_;
  ChoiceLimits limits_;
};

}  // namespace

ChoiceLimits choice_limits(const Training& training, std::int64_t ranks,
                           const cluster::Cluster& cluster, const Constraints& constraints,
                           double memory_limit, RecordTable& records, BoundTable& bounds) {
  return LimitFinder(training, ranks, cluster, constraints, memory_limit, records, bounds).run();
}

}  // namespace trireme::search
