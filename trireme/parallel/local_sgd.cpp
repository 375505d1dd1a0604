// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/local_sgd.h>

#include <trireme/base/error.h>
#include <trireme/comm/collectives.h>
#include <trireme/parallel/buckets/bucket_layout.h>
#include <trireme/parallel/buckets/buffer_broadcast.h>
#include <trireme/parallel/buckets/divide.h>
#include <trireme/parallel/module/agreement.h>
#include <trireme/parallel/record/predicted_step.h>

#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <string>
#include <utility>

namespace trireme {
namespace {

using detail::NamedTensor;

void check(const LocalSgdOptions& options) {
  if (options.period >= 1 && options.warm_up >= 0 && options.bucket_bytes >= 1) return;
  throw UsageError(join_message("local SGD: period ", options.period, ", warm_up ", options.warm_up,
                                ", bucket_bytes ", options.bucket_bytes),
                   "period and bucket_bytes are 1 or more, warm_up 0 or more");
}

void take_from_rank_0(const std::vector<NamedTensor>& tensors, const std::string& kind,
                      const comm::Group& group) {
  detail::check_same_on_all_ranks(tensors, kind, group);
  for (const NamedTensor& item : tensors) {
    detail::broadcast_strided(item.tensor, 0, group, item.name);
  }
}

// A bucket holds each parameter with its own strides, which needs tensors without gaps or overlaps.
void check_dense(const std::vector<NamedTensor>& parameters) {
  for (const NamedTensor& item : parameters) {
    if (item.tensor.is_non_overlapping_and_dense()) continue;
    throw UsageError(
        join_message("local SGD: parameter ", item.name, " has gaps or overlaps (sizes ",
                     item.tensor.sizes(), ", strides ", item.tensor.strides(), ")"),
        "make it a dense tensor before");
  }
}

}  // namespace

LocalSgd::LocalSgd(ModuleRef module, const LocalSgdOptions& options, comm::Group group)
    : options_(options), group_(std::move(group)) {
  comm::check_given(group_, "LocalSgd");
  if (auto* const predicted = detail::PredictedStep::of_process()) predicted->refuse("LocalSgd");
  const at::NoGradGuard no_grad;
  detail::check_same_text("options of LocalSgd",
                          join_message("local SGD, period ", options.period, ", warm_up ",
                                       options.warm_up, ", bucket_bytes ", options.bucket_bytes),
                          group_);
  check(options);
  if (group_.size() == 1) return;
  std::vector<NamedTensor> parameters = detail::named_tensors(module->named_parameters());
  detail::succeed_together(group_, "take the module", [&] { check_dense(parameters); });
  take_from_rank_0(parameters, "parameter", group_);
  take_from_rank_0(detail::named_tensors(module->named_buffers()), "buffer", group_);
  std::erase_if(parameters, [](const auto& item) { return !item.tensor.requires_grad(); });
  if (parameters.empty()) return;

  std::vector<std::size_t> order(parameters.size());
  std::iota(order.begin(), order.end(), 0);
  const std::vector<detail::BucketLayout> layouts =
      detail::assign_buckets(parameters, order, options.bucket_bytes, options.bucket_bytes);
  const auto options_of = [&](const detail::BucketLayout& layout) {
    return parameters[layout.places.front().tensor].tensor.options().requires_grad(false);
  };
  const auto bytes_of = [&](const detail::BucketLayout& layout) {
    return layout.elements * static_cast<std::int64_t>(options_of(layout).dtype().itemsize());
  };
  // Buckets of one device share the memory of its largest bucket. The memory is allocated in the
  // order in which devices first occur, which is the same on all ranks even if device indices
  // differ.
  std::vector<std::pair<at::Device, std::int64_t>> longest;
  for (const detail::BucketLayout& layout : layouts) {
    const at::Device device = options_of(layout).device();
    auto entry = std::ranges::find(longest, device, &std::pair<at::Device, std::int64_t>::first);
    if (entry == longest.end()) entry = longest.insert(entry, {device, 0});
    entry->second = std::max(entry->second, bytes_of(layout));
  }
  std::map<std::string, at::Tensor> memory_of;
  for (const auto& [device, bytes] : longest) {
    memory_of[device.str()] =
        comm::zeros_registered({bytes}, at::TensorOptions(at::kByte).device(device), group_);
  }
  for (const detail::BucketLayout& layout : layouts) {
    Bucket& bucket = buckets_.emplace_back();
    const at::TensorOptions kind = options_of(layout);
    bucket.memory = memory_of[kind.device().str()]
                        .narrow(0, 0, bytes_of(layout))
                        .view(kind.dtype().toScalarType());
    bucket.divisor = detail::divisor_for(kind, group_.size());
    for (const detail::BucketLayout::Place& place : layout.places) {
      const at::Tensor& parameter = parameters[place.tensor].tensor;
      bucket.parameters.push_back(parameter);
      bucket.slices.push_back(
          detail::slice_of(bucket.memory, place.offset, parameter.sizes(), parameter.strides()));
    }
  }
}

void LocalSgd::step() {
  ++steps_;
  const std::int64_t after = steps_ - options_.warm_up;
  if (after < 0 || after % options_.period == 0) average();
}

void LocalSgd::average() {
  const at::NoGradGuard no_grad;
  for (Bucket& bucket : buckets_) {
    for (std::size_t i = 0; i < bucket.parameters.size(); ++i) {
      bucket.slices[i].copy_(bucket.parameters[i]);
    }
    comm::all_reduce_ordered(bucket.memory, group_, "average of parameters");
    detail::divide(bucket.memory, bucket.memory, bucket.divisor);
    for (std::size_t i = 0; i < bucket.parameters.size(); ++i) {
      bucket.parameters[i].copy_(bucket.slices[i]);
    }
  }
}

}  // namespace trireme
