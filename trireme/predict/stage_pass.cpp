// SPDX-License-Identifier: Apache-2.0
#include <trireme/predict/stage_pass.h>

#include <algorithm>
#include <utility>

namespace trireme::predict {

void StagePass::add(const PassOptions& options) {
  if (options.has_forward) forward(options);
  if (options.has_backward) backward(options);
}

void StagePass::add_last(double seconds) {
  compute_ += seconds;
  for (std::size_t i = 0; i < tasks_.size(); ++i) {
    if (tasks_[i].stream == Stream::kCommunication) needed_.push_back(static_cast<int>(i));
  }
  flush(/*always=*/true);
}

double StagePass::seconds() {
  flush(/*always=*/false);
  double end = 0;
  for (const TaskSpan& span : run_streams(tasks_)) end = std::max(end, span.end);
  return end;
}

bool StagePass::gathers(const Bucket& bucket, bool at_start) const {
  if (costs_.data_ranks() == 1) return false;
  return bucket.zero_level == 3 || (at_start && bucket.zero_level > 0);
}

void StagePass::forward(const PassOptions& options) {
  begin_gathers();
  for (const int call : stage_.work.forward) {
    gather_for(call, options.gathers_at_start, /*is_ahead=*/true);
    compute_ += costs_.seconds(call);
  }
  flush(/*always=*/false);
}

void StagePass::backward(const PassOptions& options) {
  // Without a limit of gathered buckets, those of forward stay gathered.
  if (costs_.plan().gathered_buckets > 0) begin_gathers();
  std::set<std::size_t> repeated;
  std::size_t next_bucket = 0;
  for (std::size_t i = 0; i < stage_.work.backward.size(); ++i) {
    const int call = stage_.work.backward[i];
    repeat_region(costs_.record().call(call).forward_call, repeated);
    gather_for(call, /*at_start=*/false, costs_.options().gathers_ahead_in_backward);
    compute_ += costs_.seconds(call);
    while (options.reduces && next_bucket < stage_.buckets.size() &&
           stage_.buckets[next_bucket].ready_after == static_cast<int>(i)) {
      reduce(stage_.buckets[next_bucket++]);
    }
  }
  flush(/*always=*/false);
}

void StagePass::repeat_region(int forward_call, std::set<std::size_t>& repeated) {
  const auto& regions = stage_.work.regions;
  const auto after = std::ranges::upper_bound(regions, forward_call, {}, &RecomputedRegion::first);
  if (after == regions.begin()) return;
  const auto number = static_cast<std::size_t>(after - regions.begin() - 1);
  if (regions[number].last < forward_call || !repeated.insert(number).second) return;
  for (int call = regions[number].first; call <= regions[number].last; ++call) {
    gather_for(call, /*at_start=*/false, costs_.options().gathers_ahead_in_backward);
    compute_ += costs_.seconds(call);
  }
}

void StagePass::begin_gathers() {
  gathered_.clear();
  before_gather_.clear();
}

void StagePass::gather_for(int call, bool at_start, bool is_ahead) {
  for (const int parameter : costs_.record().call(call).parameters) {
    const int number = stage_.bucket_of[static_cast<std::size_t>(parameter)];
    if (number < 0) continue;
    const Bucket& bucket = stage_.buckets[static_cast<std::size_t>(number)];
    if (!gathers(bucket, at_start) || !gathered_.insert(number).second) continue;
    flush(/*always=*/false);
    before_gather_.push_back(last_compute_);
    Task task = communication(costs_.gather_seconds(bucket));
    const auto limit = static_cast<std::size_t>(costs_.plan().gathered_buckets);
    // Space is there once the bucket that many gathers before is not used any more.
    if (bucket.zero_level == 3 && limit > 0 && before_gather_.size() >= limit) {
      const int freed = before_gather_[before_gather_.size() - limit];
      if (freed >= 0) task.after.push_back(freed);
    }
    if (!is_ahead && last_compute_ >= 0) task.after.push_back(last_compute_);
    needed_.push_back(static_cast<int>(tasks_.size()));
    tasks_.push_back(std::move(task));
  }
}

void StagePass::reduce(const Bucket& bucket) {
  if (costs_.data_ranks() == 1 || !costs_.plan().data_parallel) return;
  flush(/*always=*/false);
  Task task = communication(costs_.reduce_seconds(bucket));
  if (last_compute_ >= 0) task.after.push_back(last_compute_);
  tasks_.push_back(std::move(task));
}

Task StagePass::communication(double seconds) const {
  return {.stream = Stream::kCommunication,
          .seconds = seconds,
          .compute_share = costs_.exchange_share()};
}

void StagePass::flush(bool always) {
  if (compute_ <= 0 && !always) return;
  last_compute_ = static_cast<int>(tasks_.size());
  tasks_.push_back({.seconds = compute_, .after = std::move(needed_)});
  needed_.clear();
  compute_ = 0;
}

}  // namespace trireme::predict
