// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/pipeline/step_report.h>

#include <trireme/base/text.h>
#include <trireme/comm/collectives.h>
#include <trireme/parallel/module/local_memory.h>

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace trireme::pipeline {

using schedule::Action;
using schedule::ActionKind;
using schedule::item;
using schedule::Span;
using schedule::StageBytes;

namespace {

// Returns true if nothing but `tensors` holds the memory of `tensor`. Bases of views count as held
// by `tensors` if only these are views of them, because a view holds its base even without
// gradients.
bool hold_alone(const std::vector<at::Tensor>& tensors, const at::Tensor& tensor) {
  std::unordered_set<const c10::TensorImpl*> holders;
  std::unordered_map<const c10::TensorImpl*, std::size_t> views;  // by base
  for (const at::Tensor& one : tensors) {
    if (!one.defined() || !one.has_storage() || !one.is_alias_of(tensor)) continue;
    if (holders.insert(one.unsafeGetTensorImpl()).second && one.is_view()) {
      ++views[one._base().unsafeGetTensorImpl()];
    }
  }
  for (const at::Tensor& one : tensors) {
    if (!one.defined() || !one.has_storage() || !one.is_view()) continue;
    if (!one.is_alias_of(tensor)) continue;
    const auto& base = one._base();
    const bool is_new = holders.insert(base.unsafeGetTensorImpl()).second;
    if (is_new && base.use_count() != views[base.unsafeGetTensorImpl()]) return false;
  }
  return tensor.storage().use_count() == holders.size();
}

}  // namespace

// The memory that was allocated while `counts` was true and is not freed yet.
class StepRecorder::Allocations : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void* memory, std::int64_t bytes, std::size_t /*total*/,
                         std::size_t /*reserved*/, c10::Device /*device*/) override {
    if (bytes < 0) {
      forget(memory);
    } else if (counts) {
      const bool is_gradient = counts_gradients_ && !is_rebuilding_;
      live_[memory] = {.bytes = bytes, .of_action = is_gradient ? action_ : 0};
      total += bytes;
      if (is_gradient) gradients_ += bytes;
    }
  }
  bool memoryProfilingEnabled() const override { return true; }

  void forget(const void* memory) {
    const auto found = live_.find(memory);
    if (found == live_.end()) return;
    total -= found->second.bytes;
    if (found->second.of_action == action_) gradients_ -= found->second.bytes;
    live_.erase(found);
  }

  void begin_action(bool is_backward) {
    ++action_;
    gradients_ = 0;
    counts_gradients_ = is_backward;
    most_rebuilt = 0;
  }
  // Returns the value of `counts` before.
  bool begin_rebuilding() {
    is_rebuilding_ = true;
    return std::exchange(counts, true);
  }
  void end_rebuilding(bool counted) {
    is_rebuilding_ = false;
    counts = counted;
    most_rebuilt = std::max(most_rebuilt, total - gradients_);
  }

  bool counts = false;
  std::int64_t total = 0;
  /// The maximum of `total` after a recomputation in this action, without the action's gradients.
  std::int64_t most_rebuilt = 0;

 private:
  struct Memory {
    std::int64_t bytes = 0;
    std::int64_t of_action = 0;  // the backward that allocated it for gradients, or 0
  };
  std::unordered_map<const void*, Memory> live_;
  std::int64_t action_ = 0;
  std::int64_t gradients_ = 0;  // allocated in this action
  bool counts_gradients_ = false;
  bool is_rebuilding_ = false;
};

struct StepRecorder::Installed {
  explicit Installed(const std::shared_ptr<Allocations>& allocations)
      : guard(c10::DebugInfoKind::PROFILER_STATE, allocations) {}
  c10::DebugInfoGuard guard;
};

StepRecorder::Rebuilding::Rebuilding()
    : allocations_(dynamic_cast<Allocations*>(
          c10::ThreadLocalDebugInfo::get(c10::DebugInfoKind::PROFILER_STATE))) {
  if (allocations_ != nullptr) counted_ = allocations_->begin_rebuilding();
}

StepRecorder::Rebuilding::~Rebuilding() {
  if (allocations_ != nullptr) allocations_->end_rebuilding(counted_);
}

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
                      {.activations = 0, .weight_inputs = 0, .stage_inputs = 0, .rebuilding = 0});
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

// Memory that other actions allocate does not count: it is freed within them, or holds gradients or
// messages.
void StepRecorder::begin(const Action& action) {
  allocations_->counts =
      action.kind == ActionKind::kForward || action.kind == ActionKind::kRecompute ||
      action.kind == ActionKind::kLoad || action.kind == ActionKind::kBackwardInput;
  bytes_before_ = allocations_->total;
  allocations_->begin_action(gives_input_gradient(action.kind));
}

void StepRecorder::end(const Action& action, double began) {
  allocations_->counts = false;
  const double ended = now();
  spans_.push_back({.action = action,
                    .begin = action.kind == ActionKind::kReceive ? ended : began,
                    .end = ended});
  const bool moves = action.kind == ActionKind::kOffload || action.kind == ActionKind::kLoad;
  if (!computes(action.kind) && !moves) return;
  Pair& pair = pair_of(action);
  StageBytes& bytes = item(stage_bytes_, action.stage);
  const std::int64_t change = allocations_->total - bytes_before_;
  if (gives_input_gradient(action.kind) && allocations_->most_rebuilt > 0) {
    const std::int64_t rebuilt = allocations_->most_rebuilt - bytes_before_;
    bytes.rebuilding = std::max(bytes.rebuilding, pair.inputs + pair.allocated + rebuilt);
    peak_ = std::max(peak_, held_ + allocations_->most_rebuilt);
  }
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
  } else if (action.kind == ActionKind::kOffload) {
    held_ -= pair.inputs;
  } else if (action.kind == ActionKind::kLoad) {
    held_ += pair.inputs;
  } else {
    held_ -= pair.inputs;
    pair = {};
  }
  peak_ = std::max(peak_, held_ + allocations_->total);
}

void StepRecorder::give(const std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined() && tensor.has_storage() && hold_alone(tensors, tensor)) {
      allocations_->forget(tensor.storage().data());
    }
  }
}

void StepRecorder::leave_out(const at::Tensor& gradient) {
  const at::Tensor memory = detail::memory_of(gradient);
  if (memory.defined() && memory.has_storage()) allocations_->forget(memory.storage().data());
}

void StepRecorder::leave_out(const std::vector<const void*>& memories) {
  for (const void* const memory : memories) allocations_->forget(memory);
}

// Writes the peak, four numbers for each stage, and three words for each span.
std::string StepRecorder::to_text() const {
  TextWriter text;
  text.precision(17);
  text << peak_ << "\n";
  for (const StageBytes& bytes : stage_bytes_) {
    text << bytes.activations << " " << bytes.weight_inputs << " " << bytes.stage_inputs << " "
         << bytes.rebuilding << "\n";
  }
  for (const Span& span : spans_) {
    text << schedule::to_text(span.action) << " " << span.begin << " " << span.end << "\n";
  }
  return text.str();
}

void StepRecorder::read(const std::string& text, std::size_t rank, StepReport& report) const {
  TextReader words(text);
  words >> report.peak_bytes[rank];
  for (int stage = 0; stage < schedule_.num_stages(); ++stage) {
    StageBytes bytes;
    words >> bytes.activations >> bytes.weight_inputs >> bytes.stage_inputs >> bytes.rebuilding;
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
  schedule::summarize(report.timeline);
  return report;
}

}  // namespace trireme::pipeline
