// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/pipeline/execution/inputs.h>

#include <trireme/base/error.h>
#include <trireme/parallel/pipeline/messages/message_buffers.h>

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>

namespace trireme::pipeline {

using schedule::item;

namespace {

// The number of forwards whose inputs are copied ahead.
constexpr std::size_t kForwardsAhead = 2;

}  // namespace

Inputs::Inputs(const Program& program, const std::vector<StageCode>& stages,
               std::span<const schedule::Action> actions, at::Device device)
    : program_(program), device_(device) {
  if (!device.is_cpu()) {
    copies_ = c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
  }
  std::size_t most = 0;  // the largest number of inputs of one forward
  for (const schedule::Action& action : actions) {
    if (action.kind != schedule::ActionKind::kForward) continue;
    const std::size_t before = needed_.size();
    const auto code = std::ranges::find(stages, action.stage, &StageCode::stage);
    for (const int value : code->inputs) {
      if (std::ranges::find(program.inputs, value) == program.inputs.end()) continue;
      needed_.push_back({.value = value, .micro_batch = action.micro_batch, .stage = action.stage});
    }
    most = std::max(most, needed_.size() - before);
  }
  num_ahead_ = kForwardsAhead * most;
}

void Inputs::begin(const std::vector<std::vector<at::Tensor>>& micro_batches) {
  micro_batches_ = &micro_batches;
  num_started_ = 0;
  num_taken_ = 0;
  start_until(num_ahead_);
}

void Inputs::end() {
  micro_batches_ = nullptr;
  for (Needed& needed : needed_) {
    needed.copy.reset();
    needed.arrived.reset();
  }
}

const at::Tensor& Inputs::given(const Needed& needed) const {
  const auto place = std::ranges::find(program_.inputs, needed.value) - program_.inputs.begin();
  const std::vector<at::Tensor>& tensors = item(*micro_batches_, needed.micro_batch);
  if (place < std::ssize(tensors) && item(tensors, place).defined()) return item(tensors, place);
  throw UsageError(join_message("micro-batch ", needed.micro_batch, " has no input value ",
                                needed.value, ", which stage ", needed.stage, " takes"),
                   "give step() the tensors of Program::inputs that the stages of this rank take");
}

void Inputs::start(Needed& needed) {
  const at::Tensor& tensor = given(needed);
  if (tensor.device() == device_ || !copies_) {
    needed.copy = tensor.to(device_);
    return;
  }
  const c10::impl::VirtualGuardImpl guard(device_.type());
  const c10::Stream computes = guard.getStream(device_);
  {
    const c10::StreamGuard on_copies(*copies_);
    needed.copy = tensor.to(device_, /*non_blocking=*/true);
  }
  // Keeps the caching allocator from reusing the memory for the next copy before the computing
  // stream has read it.
  guard.recordDataPtrOnStream(needed.copy.storage().data_ptr(), computes);
  needed.arrived.emplace(device_.type());
  needed.arrived->record(*copies_);
}

void Inputs::start_until(std::size_t count) {
  for (; num_started_ < std::min(count, needed_.size()); ++num_started_) {
    start(needed_[num_started_]);
  }
}

Inputs::Taken Inputs::take(int value, int micro_batch, int stage) {
  start_until(num_taken_ + 1 + num_ahead_);
  Needed& needed = needed_.at(num_taken_++);
  TRIREME_CHECK(needed.value == value && needed.micro_batch == micro_batch &&
                needed.stage == stage);
  // The computing stream waits for the copy; this thread does not.
  if (needed.arrived) {
    needed.arrived->block(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
    needed.arrived.reset();
  }
  const bool is_copy = !share_memory(needed.copy, given(needed));
  return {.tensor = std::move(needed.copy), .is_copy = is_copy};
}

}  // namespace trireme::pipeline
