// SPDX-License-Identifier: Apache-2.0
#include <trireme/optim/partial_tensors.h>

#include <torch/optim/optimizer.h>

#include <algorithm>
#include <mutex>
#include <unordered_map>
#include <utility>

namespace trireme::detail {
namespace {

struct Marked {
  std::mutex mutex;
  std::unordered_map<const c10::TensorImpl*, int> counts;  // objects that mark it
};

Marked& marked() {
  static Marked& all = *new Marked;  // never destroyed: modules may live as long as statics
  return all;
}

}  // namespace

PartialTensors::PartialTensors(PartialTensors&& other) noexcept
    : own_(std::exchange(other.own_, {})) {}

PartialTensors::~PartialTensors() {
  const std::lock_guard lock(marked().mutex);
  for (const c10::TensorImpl* tensor : own_) {
    const auto found = marked().counts.find(tensor);
    if (--found->second == 0) marked().counts.erase(found);
  }
}

void PartialTensors::add(const at::Tensor& tensor) {
  own_.push_back(tensor.unsafeGetTensorImpl());
  const std::lock_guard lock(marked().mutex);
  ++marked().counts[own_.back()];
}

bool steps_partial_tensors(const torch::optim::Optimizer& optimizer) {
  const std::lock_guard lock(marked().mutex);
  if (marked().counts.empty()) return false;
  return std::ranges::any_of(optimizer.param_groups(), [](const auto& group) {
    return std::ranges::any_of(group.params(), [](const at::Tensor& tensor) {
      return marked().counts.contains(tensor.unsafeGetTensorImpl());
    });
  });
}

}  // namespace trireme::detail
