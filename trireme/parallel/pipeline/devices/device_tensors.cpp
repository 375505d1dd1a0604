// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/pipeline/devices/device_tensors.h>

#include <trireme/base/error.h>
#include <trireme/parallel/init/deferred.h>

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/variable.h>

#include <mutex>
#include <utility>

namespace trireme::pipeline {
namespace {

// Moves a tensor to a device in place, as Tensor::set_data() would; that refuses some device types.
void move(const at::Tensor& tensor, at::Device device) {
  if (tensor.device() == device) return;
  const at::Tensor gradient = std::exchange(tensor.mutable_grad(), {});
  tensor.unsafeGetTensorImpl()->shallow_copy_from(tensor.detach().to(device).getIntrusivePtr());
  if (auto* const meta = torch::autograd::impl::get_autograd_meta(tensor)) {
    const std::scoped_lock lock(meta->mutex_);
    meta->grad_accumulator_.reset();  // it is bound to the previous device
  }
  if (gradient.defined()) tensor.mutable_grad() = gradient.to(device);
}

// Returns a leaf with the same values. On the same device, it shares the memory.
at::Tensor copy_of(const at::Tensor& tensor, at::Device device) {
  at::Tensor copy = tensor.detach().to(device);
  if (tensor.requires_grad()) copy.requires_grad_();
  return copy;
}

// Refuses a buffer that one device writes and another uses: devices run at the same time.
void check_written(const StagedGraph& staged, int num_ranks) {
  for (int writer = 0; writer < num_ranks; ++writer) {
    for (const auto& [name, buffer] : staged.written_buffers_of(writer)) {
      for (int other = 0; other < num_ranks; ++other) {
        for (const auto& [its_name, used] : staged.buffers_of(other)) {
          if (other == writer || its_name != name) continue;
          throw UsageError(
              join_message("the stages of device ", writer, " write to buffer ", name,
                           ", which those of device ", other, " use too"),
              "begin stages elsewhere, so that one device has all operators on that buffer");
        }
      }
    }
  }
}

}  // namespace

Placement::Placement(std::vector<at::Device> devices) : devices_(std::move(devices)) {}

void Placement::add(const StagedGraph& staged) {
  const c10::NoGradGuard no_graph;
  const int num_ranks = static_cast<int>(devices_.size());
  check_written(staged, num_ranks);
  for (int rank = 0; rank < num_ranks; ++rank) {
    for (const auto& [name, tensor] : staged.tensors_of(rank)) add(name, tensor, rank);
  }
}

void Placement::add(const std::string& name, const at::Tensor& tensor, int rank) {
  const at::Device device = devices_[static_cast<std::size_t>(rank)];
  auto found = tensors_.find(name);
  if (found == tensors_.end()) {
    materialize({tensor});
    move(tensor, device);
    Tensor made = {.own = tensor, .home = rank, .copies = std::vector<at::Tensor>(devices_.size())};
    found = tensors_.emplace(name, std::move(made)).first;
  }
  const Tensor& entry = found->second;
  at::Tensor& copy = found->second.copies[static_cast<std::size_t>(rank)];
  if (rank != entry.home && !copy.defined()) copy = copy_of(tensor, device);
}

at::Tensor Placement::tensor_at(const std::string& name, int rank) const {
  const Tensor& entry = tensors_.at(name);
  return rank == entry.home ? entry.own : entry.copies[static_cast<std::size_t>(rank)];
}

Place Placement::place(int rank) const {
  return {.device = devices_[static_cast<std::size_t>(rank)],
          .tensor = [this, rank](const std::string& name) { return tensor_at(name, rank); }};
}

void Placement::follow() {
  const c10::NoGradGuard no_graph;
  for (auto& [name, entry] : tensors_) {
    move(entry.own, devices_[static_cast<std::size_t>(entry.home)]);  // if the caller has moved it
    for (at::Tensor& copy : entry.copies) {
      if (!copy.defined()) continue;
      if (copy.grad().defined()) copy.mutable_grad().reset();
      if (copy.is_alias_of(entry.own)) continue;
      if (copy.device() == entry.own.device()) {
        copy.set_data(entry.own.detach());
      } else {
        copy.copy_(entry.own);
      }
    }
  }
}

}  // namespace trireme::pipeline
