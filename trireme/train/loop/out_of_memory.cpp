// SPDX-License-Identifier: Apache-2.0
#include <trireme/train/loop/out_of_memory.h>

#include <trireme/base/error.h>
#include <trireme/optim/state_fields.h>
#include <trireme/report/number.h>
#include <trireme/train/monitors.h>

#include <torch/torch.h>

#include <cstdint>
#include <exception>
#include <set>
#include <string>
#include <utility>

namespace trireme::detail {
namespace {

std::string text_of(std::int64_t bytes) {
  return report::bytes_as_text(static_cast<double>(bytes));
}

// Adds up storages on one device. Tensors that share memory count once.
class Storages {
 public:
  explicit Storages(at::Device device) : device_(device) {}

  void add(const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.has_storage() || tensor.device() != device_) return;
    const c10::Storage& storage = tensor.storage();
    if (seen_.insert(storage.unsafeGetStorageImpl()).second) {
      bytes_ += static_cast<std::int64_t>(storage.nbytes());
    }
  }
  // Returns the bytes that were added since the last call.
  std::int64_t take() { return std::exchange(bytes_, 0); }

 private:
  at::Device device_;
  std::set<const void*> seen_;
  std::int64_t bytes_ = 0;
};

}  // namespace

void throw_out_of_memory(const torch::nn::Module& module, const torch::optim::Optimizer& optimizer,
                         at::Device device) {
  Storages storages(device);
  for (const at::Tensor& tensor : module.parameters()) storages.add(tensor);
  for (const at::Tensor& tensor : module.buffers()) storages.add(tensor);
  const std::int64_t parameters = storages.take();
  for (const at::Tensor& tensor : module.parameters()) storages.add(tensor.grad());
  const std::int64_t gradients = storages.take();
  if (has_known_state(optimizer)) {  // another one's state counts among the rest
    for (const auto& [key, state] : optimizer.state()) {
      for (const at::Tensor* tensor : fields_of(*state).tensors) storages.add(*tensor);
    }
  }
  const std::int64_t state = storages.take();
  const MemoryUse use = memory_use(device);
  const std::int64_t named = parameters + gradients + state;
  const std::string rest =
      use.device ? join_message(", activations and the rest ", text_of(*use.device - named), "; ",
                                text_of(*use.device), " in all")
                 : std::string();
  std::throw_with_nested(TrainingError(
      join_message("no memory is left on ", device, ". Parameters and buffers hold ",
                   text_of(parameters), ", gradients ", text_of(gradients),
                   ", the optimizer's state ", text_of(state), rest),
      "for activations, use smaller batches with more plan.micro_batches, or plan.recompute; for "
      "the optimizer's state, gradients or parameters, plan.zero_level 1, 2 or 3 over more ranks"));
}

}  // namespace trireme::detail
