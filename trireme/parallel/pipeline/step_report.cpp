// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/pipeline/step_report.h>

#include <trireme/comm/collectives.h>

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <limits>
#include <sstream>
#include <string>
#include <unordered_map>
#include <utility>

namespace trireme::pipeline {

using schedule::Action;
using schedule::ActionKind;
using schedule::item;
using schedule::Span;
using schedule::StageBytes;

// What was allocated while it counted, and is not free yet.
class StepRecorder::Allocations : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void* memory, std::int64_t bytes, std::size_t /*total*/,
                         std::size_t /*reserved*/, c10::Device /*device*/) override {
    if (bytes < 0) {
      forget(memory);
    } else if (counts) {
      live_[memory] = bytes;
      total += bytes;
    }
  }
  bool memoryProfilingEnabled() const override { return true; }

  void forget(const void* memory) {
    const auto found = live_.find(memory);
    if (found == live_.end()) return;
    total -= found->second;
    live_.erase(found);
  }

  bool counts = false;
  std::int64_t total = 0;

 private:
  std::unordered_map<const void*, std::int64_t> live_;
};

struct StepRecorder::Installed {
  explicit Installed(const std::shared_ptr<Allocations>& allocations)
      : guard(c10::DebugInfoKind::PROFILER_STATE, allocations) {}
  c10::DebugInfoGuard guard;
};

struct StepRecorder::Pair {
  bool is_recomputed = false;
  std::int64_t inputs = 0;
  std::int64_t allocated = 0;
};

StepRecorder::StepRecorder(const schedule::Schedule& schedule, const comm::Group& group)
    : schedule_(schedule), allocations_(std::make_shared<Allocations>()) {
  const auto count = static_cast<std::size_t>(schedule.num_stages()) *
                     static_cast<std::size_t>(schedule.micro_batches);
  pairs_.resize(count);
  for (const Action& action : item(schedule.ranks, group.rank())) {
    if (action.kind == ActionKind::kRecompute) pair_of(action).is_recomputed = true;
  }
  stage_bytes_.resize(static_cast<std::size_t>(schedule.num_stages()),
                      {.activations = 0, .weight_inputs = 0, .stage_inputs = 0});
  comm::barrier(group);
  installed_ = std::make_unique<Installed>(allocations_);
  start_ = std::chrono::steady_clock::now();
}

StepRecorder::~StepRecorder() = default;

double StepRecorder::now() const {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start_)
      .count();
}

StepRecorder::Pair& StepRecorder::pair_of(const Action& action) {
  return item(pairs_, action.stage * schedule_.micro_batches + action.micro_batch);
}

void StepRecorder::begin(const Action& action) {
  allocations_->counts = action.kind == ActionKind::kForward ||
                         action.kind == ActionKind::kRecompute ||
                         action.kind == ActionKind::kBackwardInput;
  bytes_before_ = allocations_->total;
}

void StepRecorder::end(const Action& action, double began) {
  allocations_->counts = false;
  const double ended = now();
  spans_.push_back({.action = action,
                    .begin = action.kind == ActionKind::kReceive ? ended : began,
                    .end = ended});
  if (!computes(action.kind)) return;
  Pair& pair = pair_of(action);
  StageBytes& bytes = item(stage_bytes_, action.stage);
  const std::int64_t change = allocations_->total - bytes_before_;
  pair.allocated += change;
  if (action.kind == ActionKind::kForward) {
    pair.inputs = std::exchange(input_bytes_, 0);
    held_ += pair.inputs;
    std::int64_t& kept = pair.is_recomputed ? bytes.stage_inputs : bytes.activations;
    kept = std::max(kept, pair.inputs + pair.allocated);
  } else if (action.kind == ActionKind::kRecompute) {
    bytes.activations = std::max(bytes.activations, change);
  } else if (action.kind == ActionKind::kBackwardInput) {
    bytes.weight_inputs = std::max(bytes.weight_inputs, pair.inputs + pair.allocated);
  } else {
    held_ -= pair.inputs;
    pair = {};
  }
  peak_ = std::max(peak_, held_ + allocations_->total);
}

void StepRecorder::give(const std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined() && tensor.has_storage() && tensor.storage().use_count() == 1) {
      allocations_->forget(tensor.storage().data());
    }
  }
}

void StepRecorder::leave_out(const at::Tensor& gradient) {
  if (gradient.defined() && gradient.has_storage()) {
    allocations_->forget(gradient.storage().data());
  }
}

// The peak; three numbers for each stage; three words for each span.
std::string StepRecorder::to_text() const {
  std::ostringstream text;
  text.precision(17);
  text << peak_ << "\n";
  for (const StageBytes& bytes : stage_bytes_) {
    text << bytes.activations << " " << bytes.weight_inputs << " " << bytes.stage_inputs << "\n";
  }
  for (const Span& span : spans_) {
    text << schedule::to_text(span.action) << " " << span.begin << " " << span.end << "\n";
  }
  return text.str();
}

void StepRecorder::read(const std::string& text, std::size_t rank, StepReport& report) const {
  std::istringstream words(text);
  words >> report.peak_bytes[rank];
  for (int stage = 0; stage < schedule_.num_stages(); ++stage) {
    StageBytes bytes;
    words >> bytes.activations >> bytes.weight_inputs >> bytes.stage_inputs;
    if (static_cast<std::size_t>(schedule_.rank_of(stage)) == rank) {
      item(report.stage_bytes, stage) = bytes;
    }
  }
  std::string action;
  Span span;
  while (words >> action >> span.begin >> span.end) {
    span.action = schedule::parse_action(action).value();
    report.timeline.ranks[rank].push_back(span);
  }
}

StepReport StepRecorder::gather(const comm::Group& group) const {
  const std::vector<std::string> texts = comm::all_gather_text(to_text(), group);
  StepReport report;
  report.stage_bytes.resize(stage_bytes_.size());
  report.peak_bytes.resize(texts.size());
  report.timeline.ranks.resize(texts.size());
  for (std::size_t rank = 0; rank < texts.size(); ++rank) read(texts[rank], rank, report);
  schedule::Timeline& timeline = report.timeline;
  double first = std::numeric_limits<double>::infinity();
  for (const std::vector<Span>& spans : timeline.ranks) {
    if (spans.empty()) continue;
    first = std::min(first, spans.front().begin);
    timeline.step_time = std::max(timeline.step_time, spans.back().end);
    timeline.longest_rank_time =
        std::max(timeline.longest_rank_time, spans.back().end - spans.front().begin);
    for (const Span& span : spans) {
      if (computes(span.action.kind)) timeline.compute_time += span.end - span.begin;
    }
  }
  timeline.step_time -= first;
  timeline.compute_time /= static_cast<double>(timeline.ranks.size());
  return report;
}

}  // namespace trireme::pipeline
