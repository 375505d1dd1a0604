// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/comm_hooks/half_precision.h>

#include <trireme/base/error.h>
#include <trireme/comm/collectives.h>
#include <trireme/parallel/buckets/divide.h>
#include <trireme/parallel/comm_hooks/plain_sum.h>
#include <trireme/parallel/module/agreement.h>

#include <ATen/core/grad_mode.h>

namespace trireme {

// The half-precision memory of a bucket, which must be made on all ranks together.
struct HalfPrecisionCommHook::Message {
  std::vector<std::string> names;
  comm::Group group;
  at::Tensor memory;
};

HalfPrecisionCommHook::HalfPrecisionCommHook(at::ScalarType type) : type_(type) {
  if (type == at::kHalf || type == at::kBFloat16) return;
  throw UsageError(join_message("gradients in half precision cannot travel as ", type,
                                ", expected Half or ", "BFloat16"),
                   "give HalfPrecisionCommHook at::kHalf or at::kBFloat16");
}

// Making a message is collective. The decision to reuse one therefore depends only on state that is
// the same on all ranks.
at::Tensor HalfPrecisionCommHook::message_for(const GradientBucket& bucket,
                                              const comm::Group& group) {
  std::shared_ptr<Message> message = messages_[bucket.names.front()];
  if (!message || message->names != bucket.names ||
      message->memory.numel() != bucket.memory.numel() ||
      message->group.backend() != group.backend()) {
    const at::TensorOptions options = bucket.memory.options().dtype(type_);
    message = std::make_shared<Message>(Message{
        bucket.names, group, comm::zeros_registered({bucket.memory.numel()}, options, group)});
    for (const std::string& name : bucket.names) messages_[name] = message;
  }
  return message->memory;
}

std::function<void()> HalfPrecisionCommHook::start(GradientBucket& bucket,
                                                   const comm::Group& group) {
  const at::NoGradGuard no_grad;
  if (group.size() == 1) return [] {};
  if (!is_agreed_) {
    detail::check_same_text("type of HalfPrecisionCommHook",
                            join_message("gradients travel as ", type_), group);
    is_agreed_ = true;
  }
  const std::string label = "gradients from " + bucket.names.front() + " on";
  if (bucket.memory.scalar_type() != at::kFloat) {
    return detail::start_plain_sum(bucket.memory, group, label);
  }
  const double scale = type_ == at::kHalf ? detail::predivisor_of(type_, group.size()) : 1;
  const at::Tensor memory = bucket.memory;
  const at::Tensor message = message_for(bucket, group);
  if (scale != 1) memory.mul_(1 / scale);
  message.copy_(memory);
  std::function<void()> sum = [=] { comm::all_reduce_ordered(message, group, label); };
  if (group.summation_order() == comm::SummationOrder::kRank) {
    sum = detail::start_plain_sum(message, group, label);
  }
  return [=] {
    const at::NoGradGuard no_grad_either;
    sum();
    memory.copy_(message);
    if (scale != 1) memory.mul_(scale);
  };
}

std::shared_ptr<CommHook> comm_hook_for(GradientCompression wire) {
  switch (wire) {
    case GradientCompression::kFp16:
      return std::make_shared<HalfPrecisionCommHook>(at::kHalf);
    case GradientCompression::kBf16:
      return std::make_shared<HalfPrecisionCommHook>(at::kBFloat16);
    default:
      return nullptr;
  }
}

}  // namespace trireme
