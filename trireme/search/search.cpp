// SPDX-License-Identifier: Apache-2.0
#include <trireme/search/search.h>

#include <trireme/base/error.h>
#include <trireme/cluster/units.h>
#include <trireme/search/bounds.h>
#include <trireme/search/candidates.h>
#include <trireme/search/choice_limits.h>
#include <trireme/search/record_table.h>
#include <trireme/search/training/repeated_modules.h>
#include <trireme/search/uneven_stages.h>
#include <trireme/tensor/dry_run/kept_constants.h>

#include <c10/util/Exception.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <limits>
#include <map>
#include <set>
#include <string_view>
#include <utility>

namespace trireme::search {
namespace {

using Clock = std::chrono::steady_clock;

struct Ranked {
  Choice choice;
  Bounds bounds;
};

class Search {
 public:
  // The cluster has a device for each rank.
  Search(const Training& training, std::int64_t ranks, const cluster::Cluster& cluster,
         const Constraints& constraints, const SearchOptions& options, RecordTable& records)
      : training_(training),
        ranks_(ranks),
        cluster_(cluster),
        constraints_(constraints),
        options_(options),
        repeated_(repeated_modules(training.module)),
        records_(records),
        bounds_(training, cluster_, ranks, repeated_, records_) {}

  SearchResult run() {
    result_.memory_limit = memory_limit();
    largest_limit_ = constraints_.memory_gib > 0
                         ? result_.memory_limit
                         : kUsable * device_with(true).memory_gib * cluster::kGiB;
    const ChoiceLimits limits = choice_limits(training_, ranks_, cluster_, constraints_,
                                              result_.memory_limit, records_, bounds_);
    result_.without_tensor = limits.without_tensor;
    std::vector<Choice> choices = all_choices(training_, ranks_, constraints_, limits);
    result_.considered = static_cast<std::int64_t>(choices.size());
    rank(choices);
    predictions_begin_ = Clock::now();
    predict_in_order();
    recompute_less();
    finish();
    return std::move(result_);
  }

 private:
  Plan plan_of(const Choice& choice) {
    return make_plan(choice, training_.base, records_.layouts(choice.shared), repeated_);
  }

  const cluster::DeviceKind& device_with(bool is_most_memory) const {
    const cluster::DeviceKind* found = nullptr;
    for (const cluster::Hosts& hosts : cluster_.hosts) {
      const cluster::DeviceKind& kind = cluster_.device(hosts.device);
      const bool has_more = found == nullptr || kind.memory_gib > found->memory_gib;
      if (found == nullptr ||
          (kind.memory_gib != found->memory_gib && has_more == is_most_memory)) {
        found = &kind;
      }
    }
    return *found;
  }

  // Of the smallest device.
  double memory_limit() const {
    const cluster::DeviceKind* const smallest = &device_with(false);
    const double there = smallest->memory_gib;
    if (constraints_.memory_gib > there) {
      throw UsageError(join_message("memory_gib=", constraints_.memory_gib, " is more than the ",
                                    there, " GiB of a device of kind ", smallest->name),
                       "give at most what a device has, or leave it out for 92 % of it");
    }
    return (constraints_.memory_gib > 0 ? constraints_.memory_gib : kUsable * there) *
           cluster::kGiB;
  }

  // Nothing for numbers of rows that forward does not accept: batch norm needs more than one value.
  std::optional<Bounds> bounds_of(const Choice& choice) {
    const std::pair key = {choice.shared, choice.rows};
    if (refused_.contains(key)) {
      ++result_.invalid;
      return {};
    }
    try {
      return bounds_.of(choice);
    } catch (const c10::Error& error) {
      refuse(error.what_without_backtrace());
    } catch (const UsageError& error) {
      refuse(error.what());
    }
    refused_.insert(key);
    return {};
  }

  // Counts a plan that cannot be carried out, and keeps the first reason.
  void refuse(const std::string& reason) {
    ++result_.invalid;
    if (result_.first_invalid.empty()) result_.first_invalid = reason;
  }

  // Orders choices: those that probably fit first, and of these the fastest first.
  void rank(const std::vector<Choice>& choices) {
    std::vector<Ranked> small;
    for (const Choice& choice : choices) {
      const auto bounds = bounds_of(choice);
      if (!bounds) continue;
      const Ranked ranked = {.choice = choice, .bounds = *bounds};
      if (ranked.bounds.least_memory > largest_limit_) {
        ++result_.too_large;
        if (smallest_unpredicted_.empty() ||
            ranked.bounds.memory < smallest_unpredicted_.front().bounds.memory) {
          smallest_unpredicted_.assign(1, ranked);
        }
      } else {
        small.push_back(ranked);
      }
    }
    // Predictions of memory are about as far off as this.
    constexpr double kTolerance = 1.1;
    std::ranges::stable_sort(small, {}, [&](const Ranked& each) {
      return std::pair(each.bounds.memory > kTolerance * largest_limit_, each.bounds.seconds);
    });
    order_ = std::move(small);
  }

  bool is_out_of_time() const {
    return std::chrono::duration<double>(Clock::now() - predictions_begin_).count() >
           options_.seconds;
  }

  double best_seconds() const {
    return result_.best.empty() ? std::numeric_limits<double>::infinity()
                                : result_.best.front().prediction.step_seconds;
  }

  // First the plans that probably fit, by what is learned of estimates on the way, then the others.
  void predict_in_order() {
    std::vector<Ranked> postponed;
    for (const Ranked& each : order_) {
      if (is_probably_too_large(each)) {
        postponed.push_back(each);
      } else {
        predict_unless_excluded(each);
      }
    }
    for (const Ranked& each : postponed) predict_unless_excluded(each);
    // A plan that was left out because of a worse best plan cannot be faster than it.
    result_.lower_bound = std::min(best_seconds(), least_left_);
    result_.is_complete = least_left_ >= best_seconds();
  }

  bool is_probably_too_large(const Ranked& each) const {
    const auto found = memory_factors_.find({each.choice.schedule, each.choice.recomputed > 0});
    return found != memory_factors_.end() && each.bounds.memory * found->second > largest_limit_;
  }

  void predict_unless_excluded(const Ranked& each) {
    if (each.bounds.least_seconds >= best_seconds()) {
      ++result_.bounded;
      return;
    }
    if (has_too_many_rows(each.choice)) {
      ++result_.too_large;
      return;
    }
    // Estimates order plans well: the first few are worth their time.
    constexpr std::int64_t kAlways = 20;
    const bool is_over = is_out_of_time() && result_.predicted >= kAlways;
    if (is_over || without_success_ >= options_.patience) {
      ++result_.left;
      least_left_ = std::min(least_left_, each.bounds.least_seconds);
      return;
    }
    const double before = best_seconds();
    predict_choice(each);
    without_success_ = best_seconds() < before || result_.best.empty() ? 0 : without_success_ + 1;
  }

  // A plan that did not fit does not fit with more rows in a micro-batch either, as long as every
  // stage has work for as many micro-batches. Fewer rows than ranks along `tensor` may need more
  // memory than more rows, because they cannot be sharded.
  static std::optional<Choice> without_rows(Choice choice) {
    if (choice.micro_batches < choice.pipe || choice.schedule == "gpipe") return {};
    if (choice.rows < choice.shared.tensor) return {};
    choice.rows = 0;
    choice.micro_batches = 0;
    return choice;
  }
  bool has_too_many_rows(const Choice& choice) const {
    const auto key = without_rows(choice);
    if (!key) return false;
    const auto found =
        std::ranges::find(too_many_rows_, *key, &std::pair<Choice, std::int64_t>::first);
    return found != too_many_rows_.end() && choice.rows >= found->second;
  }
  void note_too_large(const Choice& choice) {
    too_large_.push_back(choice);
    const auto key = without_rows(choice);
    if (!key) return;
    const auto found =
        std::ranges::find(too_many_rows_, *key, &std::pair<Choice, std::int64_t>::first);
    if (found == too_many_rows_.end()) {
      too_many_rows_.emplace_back(*key, choice.rows);
    } else {
      found->second = std::min(found->second, choice.rows);
    }
  }

  PlanEntry entry_for(const Plan& plan) const {
    if (training_.entry != PlanEntry::kAny) return training_.entry;
    return needs_training_step(plan) ? PlanEntry::kTrainingStep : PlanEntry::kParallelize;
  }

  // Predicts one plan, if it can be carried out.
  std::optional<Candidate> predicted(const Choice& choice, const ModuleRecord& record) {
    auto candidate = predicted(plan_of(choice), choice, record);
    if (choice.pipe == 1 || has_one_kind_) return candidate;
    return with_uneven_stages(std::move(candidate), choice, record);
  }

  // @param is_trial says that nobody hears why the plan is refused.
  std::optional<Candidate> predicted(Plan plan, const Choice& choice, const ModuleRecord& record,
                                     bool is_trial = false) {
    Candidate candidate = {
        .plan = std::move(plan), .rows = choice.rows, .recomputed = choice.recomputed};
    const auto problems =
        plan_problems(candidate.plan,
                      {.ranks = static_cast<int>(choice.pipe * choice.data * choice.shared.size()),
                       .entry = entry_for(candidate.plan)});
    if (!problems.empty()) {
      if (!is_trial) refuse(problems.front().text);
      return {};
    }
    try {
      candidate.prediction = predict::predict(record, candidate.plan, cluster_, training_.options);
    } catch (const UsageError& error) {  // such as fewer places than stages
      if (!is_trial) refuse(error.what());
      return {};
    }
    candidate.fits = fits(candidate);
    return candidate;
  }

  // Returns how many bytes a rank may use.
  double usable_bytes(const StageDevices& devices) const {
    const double usable = kUsable * devices.memory_bytes;
    return constraints_.memory_gib > 0 ? std::min(usable, result_.memory_limit) : usable;
  }

  // Returns whether the ranks of each stage have the memory.
  bool fits(Candidate& candidate) const {
    if (has_one_kind_) return candidate.prediction.peak_memory() <= result_.memory_limit;
    bool all_fit = true;
    for (const StageDevices& devices : devices_of_stages(candidate.plan, cluster_)) {
      const double limit = usable_bytes(devices);
      const double needed = candidate.prediction.memory[candidate.devices.size()].total();
      candidate.devices.push_back({.kind = devices.slowest, .memory_limit = limit});
      all_fit = all_fit && needed <= limit;
    }
    return all_fit;
  }

  // Returns the share of its device's memory that the fullest rank needs.
  double memory_share(const Candidate& candidate) const {
    const RankMemory memory = fullest_rank(candidate, result_.memory_limit);
    return memory.needed / memory.limit;
  }

  bool is_better(const Candidate& one, const Candidate& other) const {
    if (one.fits != other.fits) return one.fits;
    return one.fits ? one.prediction.step_seconds < other.prediction.step_seconds
                    : memory_share(one) < memory_share(other);
  }

  // Returns the plan with the best stages that are found: those of equal work, or stages by the
  // speed and the memory of their devices, improved by moving boundaries.
  std::optional<Candidate> with_uneven_stages(std::optional<Candidate> even, const Choice& choice,
                                              const ModuleRecord& record) {
    if (!even || is_out_of_time()) return even;
    const Plan plan = even->plan;
    std::vector<double> limits;
    for (const StageDevices& devices : devices_of_stages(plan, cluster_)) {
      limits.push_back(usable_bytes(devices));
    }
    const UnevenStages uneven(record, plan, cluster_, training_.options, repeated_, limits);
    const auto divided = [&](const Stages& stages) {
      Plan other = plan;
      other.stages = stages;
      ++result_.predicted;
      return predicted(std::move(other), choice, record, /*is_trial=*/true);
    };
    const Stages by_devices = uneven.by_devices();
    if (by_devices.empty()) return even;
    std::optional<Candidate> best = divided(by_devices);
    if (!best) return even;
    const auto improves = [&](const Stages& stages) {
      if (is_out_of_time()) return false;
      auto candidate = divided(stages);
      if (!candidate || !is_better(*candidate, *best)) return false;
      best = std::move(candidate);
      return true;
    };
    constexpr int kMostMoves = 8;
    for (int move = 0; move < kMostMoves; ++move) {
      if (std::ranges::none_of(uneven.neighbours(best->plan.stages), improves)) break;
    }
    return is_better(*best, *even) ? best : even;
  }

  void predict_choice(const Ranked& ranked) {
    const Choice& choice = ranked.choice;
    auto candidate = predicted(choice, records_.record(choice.shared, choice.rows));
    ++result_.predicted;
    if (!candidate) return;
    if (!candidate->fits) {
      note_too_large(choice);
      const double factor = candidate->prediction.peak_memory() / ranked.bounds.memory;
      const auto [known, is_new] =
          memory_factors_.try_emplace({choice.schedule, choice.recomputed > 0}, factor);
      if (!is_new) known->second = std::min(known->second, factor);
      keep_smallest(std::move(*candidate));
      return;
    }
    insert(std::move(*candidate), choice);
  }

  void keep_smallest(Candidate candidate) {
    if (!result_.smallest || memory_share(candidate) < memory_share(*result_.smallest)) {
      result_.smallest = std::move(candidate);
    }
  }

  void insert(Candidate candidate, const Choice& choice) {
    const double seconds = candidate.prediction.step_seconds;
    const auto place = std::ranges::upper_bound(
        result_.best, seconds, {},
        [](const Candidate& each) { return each.prediction.step_seconds; });
    const auto offset = place - result_.best.begin();
    result_.best.insert(place, std::move(candidate));
    choices_.insert(choices_.begin() + offset, choice);
    const auto most = static_cast<std::size_t>(std::max<std::int64_t>(1, options_.most_best));
    if (result_.best.size() > most) {
      result_.best.pop_back();
      choices_.pop_back();
    }
  }

  // Plans that recompute all repeated modules, or none and then do not fit, may fit with some.
  void recompute_less() {
    if (constraints_.recomputation) return;
    if (count_of(repeated_) < 2) return;
    constexpr std::size_t kTried = 8;
    std::vector<Choice> bases;
    for (const Choice& choice : choices_) {
      if (choice.recomputed > 0) bases.push_back(choice);
    }
    for (const Choice& choice : too_large_) {
      if (choice.recomputed > 0) continue;
      Choice all = choice;
      all.recomputed = count_of(repeated_);
      const bool is_known = std::ranges::find(bases, all) != bases.end();
      if (!is_known && bounds_.of(choice).least_seconds < best_seconds()) bases.push_back(all);
    }
    if (bases.size() > kTried) {
      for (std::size_t i = kTried; i < bases.size(); ++i) leave_out(bases[i]);
      bases.resize(kTried);
    }
    for (const Choice& base : bases) bisect(base);
  }

  // Some of the modules could be recomputed, which is not tried.
  void leave_out(Choice choice) {
    choice.recomputed = 0;
    const double least = bounds_.of(choice).least_seconds;
    if (least >= best_seconds()) return;
    result_.lower_bound = std::min(result_.lower_bound, least);
    result_.is_complete = false;
  }

  // Finds the smallest number of recomputed modules that fits.
  void bisect(Choice choice) {
    std::int64_t too_few = -1;
    std::int64_t enough = choice.recomputed;
    std::optional<Candidate> best;
    while (enough - too_few > 1) {
      if (is_out_of_time()) {
        leave_out(choice);
        break;
      }
      choice.recomputed = (too_few + enough) / 2;
      auto candidate = predicted(choice, records_.record(choice.shared, choice.rows));
      ++result_.refined;
      if (!candidate) break;
      if (candidate->fits) {
        best = std::move(candidate);
        enough = choice.recomputed;
      } else {
        too_few = choice.recomputed;
      }
    }
    choice.recomputed = enough;
    const bool is_known = std::ranges::find(choices_, choice) != choices_.end();
    if (best && !is_known) insert(std::move(*best), choice);
  }

  // Predicts the best plan again from a record of exactly its rows, until the best one is such.
  void check_best() {
    std::vector<Choice> checked;
    while (!result_.best.empty() && std::ranges::find(checked, choices_.front()) == checked.end()) {
      const Choice choice = choices_.front();
      checked.push_back(choice);
      result_.best.erase(result_.best.begin());
      choices_.erase(choices_.begin());
      std::optional<Candidate> candidate;
      try {
        candidate = predicted(choice, records_.checked_record(choice.shared, choice.rows));
      } catch (const c10::Error& error) {  // forward does not accept so few rows
        refuse(error.what_without_backtrace());
      } catch (const UsageError& error) {
        refuse(error.what());
      }
      if (candidate && candidate->fits) {
        insert(std::move(*candidate), choice);
      } else if (candidate) {
        keep_smallest(std::move(*candidate));
      }
    }
  }

  void finish() {
    check_best();
    if (!result_.best.empty()) {
      result_.lower_bound = std::min(result_.lower_bound, best_seconds());
      // With its exact record, the best plan may be slower than a bound that excluded another one.
      constexpr double kTolerance = 1e-6;
      result_.is_complete = result_.is_complete && result_.gap() <= kTolerance;
    } else if (!smallest_unpredicted_.empty()) {
      const Choice& choice = smallest_unpredicted_.front().choice;
      if (auto candidate = predicted(choice, records_.record(choice.shared, choice.rows))) {
        keep_smallest(std::move(*candidate));
      }
    }
    if (result_.best.empty() && !result_.smallest && !result_.first_invalid.empty()) {
      throw UsageError(
          join_message("no plan can be carried out; the first reason: ", result_.first_invalid),
          "change the settings that all plans have, or the constraints");
    }
    add_one_device();
    result_.seconds = std::chrono::duration<double>(Clock::now() - begin_).count();
  }

  // The same rows on one device, with the micro-batches and the recomputation that are fastest
  // there.
  void add_one_device() {
    if (ranks_ == 1) {
      if (!result_.best.empty()) result_.one_device = result_.best.front();
      return;
    }
    Training training = training_;
    training.base.shard_ranks = 0;
    Constraints constraints;
    constraints.memory_gib = constraints_.memory_gib;
    // One device of the cluster: the first.
    const SearchOptions options = {
        .seconds = options_.seconds, .patience = kPatienceOfOne, .most_best = 1};
    try {
      const cluster::Cluster device = cluster_.with_ranks(1);
      SearchResult one = Search(training, 1, device, constraints, options, records_).run();
      result_.one_device = one.best.empty() ? std::move(one.smallest) : std::move(one.best.front());
    } catch (const UsageError&) {
      result_.one_device.reset();  // no plan for one device: there is nothing to compare with
    }
  }

  // What the libraries and the allocator of a device need is not predicted.
  static constexpr double kUsable = 0.92;
  static constexpr std::int64_t kPatienceOfOne = 8;

  const Training& training_;
  std::int64_t ranks_;
  const cluster::Cluster& cluster_;
  const Constraints& constraints_;
  const SearchOptions& options_;
  Clock::time_point begin_ = Clock::now();
  Clock::time_point predictions_begin_ = begin_;  // records and bounds are before it
  std::vector<RepeatedModules> repeated_;
  bool has_one_kind_ = std::ranges::all_of(cluster_.hosts, [&](const auto& each) {
    return each.device == cluster_.hosts.front().device;
  });
  double largest_limit_ = 0;  // bytes that a rank on the device with most memory may use
  RecordTable& records_;
  BoundTable bounds_;
  std::vector<Ranked> order_;
  std::vector<Ranked> smallest_unpredicted_;  // one or none
  std::vector<Choice> too_large_;             // that were predicted
  std::vector<Choice> choices_;               // of result_.best
  std::int64_t without_success_ = 0;          // predictions without a better plan
  double least_left_ = std::numeric_limits<double>::infinity();  // bound of plans that were left
  // Predicted over estimated memory of plans that did not fit, the smallest: by schedule, and
  // whether modules are recomputed.
  std::map<std::pair<std::string_view, bool>, double> memory_factors_;
  // Least rows with which a choice did not fit, by the choice without its rows.
  std::vector<std::pair<Choice, std::int64_t>> too_many_rows_;
  std::set<std::pair<SharedAxes, std::int64_t>> refused_;  // and rows
  SearchResult result_;
};

}  // namespace

SearchResult find_plan(const Training& training, std::int64_t ranks,
                       const cluster::Cluster& cluster, const Constraints& constraints,
                       const SearchOptions& options) {
  if (ranks < 1 || training.rows < 1) {
    throw UsageError(
        join_message("a search for a plan of ", ranks, " ranks and ", training.rows, " rows"),
        "there must be at least one of each");
  }
  if (!training.forward) {
    throw UsageError("a search for a plan without a forward pass",
                     "set Training::forward to the function that a TrainingStep gets");
  }
  const cluster::Cluster devices = cluster.with_ranks(ranks);
  cluster::check_cluster(devices);
  const tensor::KeptConstants constants;  // of all records
  RecordTable records(training, ranks, devices);
  SearchResult result = Search(training, ranks, devices, constraints, options, records).run();
  if (records.is_right()) return result;
  RecordTable dry_runs(training, ranks, devices, /*replays=*/false);
  return Search(training, ranks, devices, constraints, options, dry_runs).run();
}

}  // namespace trireme::search
