// SPDX-License-Identifier: Apache-2.0
#include <trireme/predict/stage_pass.h>

#include <algorithm>
#include <utility>

namespace trireme::predict {

void StagePass::add(const PassOptions& options) {
  if (options.has_forward) forward(options);
  if (options.has_backward) backward(options);
  ++micro_batches_;
}

void StagePass::add_gradient_layouts() {
  flush(/*always=*/false);
  label_ = pass_;
  label_.kind = TaskLabel::Kind::kLayouts;
  label_.call = stage_.work.backward.empty() ? -1 : stage_.work.backward.back();
  compute_ += costs_.gradient_layouts(stage_.work.parameters);
  flush(/*always=*/false);
}

void StagePass::add_last(double seconds) {
  label_ = {.kind = TaskLabel::Kind::kOptimizer};
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

std::vector<LabelledSpan> StagePass::spans() {
  flush(/*always=*/false);
  std::vector<LabelledSpan> all;
  const std::vector<TaskSpan> spans = run_streams(tasks_);
  for (std::size_t i = 0; i < spans.size(); ++i) {
    all.push_back({.label = labels_[i], .span = spans[i]});
  }
  return all;
}

bool StagePass::gathers(const Bucket& bucket, bool at_start) const {
  if (costs_.data_ranks() == 1) return false;
  return bucket.zero_level == 3 || (at_start && bucket.zero_level > 0);
}

void StagePass::forward(const PassOptions& options) {
  begin_gathers();
  pass_ = {.micro_batch = micro_batches_};
  next_call_ = 0;
  for (std::size_t i = 0; i < stage_.work.forward.size(); ++i) {
    const int call = stage_.work.forward[i];
    gather_for(call, options.gathers_at_start, /*is_ahead=*/true);
    compute(call, static_cast<int>(i), /*is_repeated=*/false);
  }
  end_pass(static_cast<int>(stage_.work.forward.size()));
}

void StagePass::backward(const PassOptions& options) {
  // Without a limit of gathered buckets, those of forward stay gathered.
  if (costs_.plan().gathered_buckets > 0) begin_gathers();
  pass_ = {.micro_batch = micro_batches_, .is_backward = true};
  next_call_ = 0;
  std::set<std::size_t> repeated;
  std::size_t next_bucket = 0;
  for (std::size_t i = 0; i < stage_.work.backward.size(); ++i) {
    const int call = stage_.work.backward[i];
    repeat_region(costs_.record().call(call).forward_call, repeated);
    gather_for(call, /*at_start=*/false, costs_.options().gathers_ahead_in_backward);
    compute(call, static_cast<int>(i), /*is_repeated=*/false);
    while (options.reduces && next_bucket < stage_.buckets.size() &&
           stage_.buckets[next_bucket].ready_after == static_cast<int>(i)) {
      reduce(static_cast<int>(next_bucket++));
    }
  }
  end_pass(static_cast<int>(stage_.work.backward.size()));
}

void StagePass::repeat_region(int forward_call, std::set<std::size_t>& repeated) {
  const auto& regions = stage_.work.regions;
  const auto after = std::ranges::upper_bound(regions, forward_call, {}, &RecomputedRegion::first);
  if (after == regions.begin()) return;
  const auto number = static_cast<std::size_t>(after - regions.begin() - 1);
  if (regions[number].last < forward_call || !repeated.insert(number).second) return;
  for (int call = regions[number].first; call <= regions[number].last_repeated; ++call) {
    gather_for(call, /*at_start=*/false, costs_.options().gathers_ahead_in_backward);
    compute(call, /*position=*/-1, /*is_repeated=*/true);
  }
}

void StagePass::compute(int call, int position, bool is_repeated) {
  if (detail_ == PassDetail::kExchanges) {
    compute_ += costs_.seconds(call);
    return;
  }
  TaskLabel label = pass_;
  label.call = call;
  label.is_repeated = is_repeated;
  if (position >= 0) {
    // Calls that take no time belong to the next one that does.
    label.first = next_call_;
    label.last = position;
  }
  label.flops = costs_.record().call(call).work.flops;
  compute(label, costs_.compute(call));
  label.flops = 0;
  label.kind = TaskLabel::Kind::kLayouts;
  compute(label, costs_.layouts(call));
  if (position >= 0 && costs_.seconds(call) > 0) next_call_ = position + 1;
}

void StagePass::compute(const TaskLabel& label, double seconds) {
  if (seconds <= 0) return;
  if (compute_ > 0 && continues(label)) {
    if (label_.first < 0) label_.first = label.first;
    label_.last = std::max(label_.last, label.last);
    label_.flops += label.flops;
  } else {
    if (detail_ != PassDetail::kExchanges) flush(/*always=*/false);
    label_ = label;
  }
  compute_ += seconds;
}

// Whether a computation is part of the task that is being made.
bool StagePass::continues(const TaskLabel& label) const {
  if (detail_ == PassDetail::kExchanges || detail_ == PassDetail::kOperators) return false;
  const bool is_same_pass =
      label.micro_batch == label_.micro_batch && label.is_backward == label_.is_backward;
  if (!is_same_pass || detail_ == PassDetail::kPasses) return is_same_pass;
  return label.kind == label_.kind && label.is_repeated == label_.is_repeated &&
         costs_.record().call(label.call).module == costs_.record().call(label_.call).module;
}

// The last calls of a pass may take no time.
void StagePass::end_pass(int num_calls) {
  if (compute_ > 0 && label_.first >= 0) label_.last = num_calls - 1;
  flush(/*always=*/false);
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
    const auto limit = static_cast<std::size_t>(costs_.plan().gathered_buckets);
    // Space is there once the bucket that many gathers before is not used any more.
    const bool waits = bucket.zero_level == 3 && limit > 0 && before_gather_.size() >= limit;
    const int freed = waits ? before_gather_[before_gather_.size() - limit] : -1;
    needed_.push_back(communicate(costs_.gather_seconds(bucket),
                                  {.kind = TaskLabel::Kind::kGather, .bucket = number},
                                  is_ahead ? freed : last_compute_));
  }
}

void StagePass::reduce(int number) {
  if (costs_.data_ranks() == 1 || !costs_.plan().data_parallel) return;
  flush(/*always=*/false);
  communicate(costs_.reduce_seconds(stage_.buckets[static_cast<std::size_t>(number)]),
              {.kind = TaskLabel::Kind::kReduce, .bucket = number}, last_compute_);
}

// Adds a communication that starts after a task (-1: none), and returns its number.
int StagePass::communicate(double seconds, const TaskLabel& label, int after) {
  Task task = {.stream = Stream::kCommunication,
               .seconds = seconds,
               .compute_share = costs_.exchange_share()};
  if (after >= 0) task.after.push_back(after);
  TaskLabel labelled = label;
  labelled.micro_batch = pass_.micro_batch;
  labelled.is_backward = pass_.is_backward;
  tasks_.push_back(std::move(task));
  labels_.push_back(labelled);
  return static_cast<int>(tasks_.size()) - 1;
}

void StagePass::flush(bool always) {
  if (compute_ <= 0 && !always) return;
  last_compute_ = static_cast<int>(tasks_.size());
  tasks_.push_back({.seconds = compute_, .after = std::move(needed_)});
  labels_.push_back(label_);
  needed_.clear();
  compute_ = 0;
}

}  // namespace trireme::predict
