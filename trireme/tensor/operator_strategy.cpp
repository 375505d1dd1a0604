// SPDX-License-Identifier: Apache-2.0
#include <trireme/tensor/operator_strategy.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/tensor/dispatch/choose_layouts.h>
#include <trireme/tensor/distributed_tensor.h>
#include <trireme/tensor/per_call/intercept.h>

#include <algorithm>

namespace trireme {

std::string to_string(const OperatorStrategy& strategy) {
  const auto braced = [](const auto& dims) { return "{" + list_text(dims) + "}"; };
  return "{" + list_text(strategy, ", ", braced) + "}";
}

DeviceMesh devices_mesh(const comm::Group& group) {
  std::vector<std::int64_t> factors;
  std::int64_t left = group.size();
  for (std::int64_t factor = 2; factor * factor <= left; ++factor) {
    for (; left % factor == 0; left /= factor) factors.push_back(factor);
  }
  if (left > 1 || factors.empty()) factors.push_back(left);
  std::vector<MeshAxis> axes;
  for (std::size_t i = 0; i < factors.size(); ++i) {
    const std::string number = factors.size() == 1 ? "" : std::to_string(i);
    axes.push_back({.name = "devices" + number, .size = factors[i]});
  }
  return {group, axes};
}

Layout layout_of_parts(const DeviceMesh& mesh, c10::IntArrayRef parts) {
  if (std::ranges::any_of(parts, [](std::int64_t number) { return number < 1; })) {
    throw UsageError(join_message("layout_of_parts got a number of parts below one: ", parts),
                     "write 1 for a dim that is not cut");
  }
  if (mesh.size() == 1) return Layout::replicated(mesh);
  if (const auto obstacle = tensor::obstacle_to(mesh, parts)) {
    throw UsageError(join_message("layout_of_parts: ", parts, " ", obstacle->what), obstacle->hint);
  }
  return *tensor::find_layout(mesh, parts);
}

at::Tensor full_batch(const at::Tensor& batch, const DeviceMesh& mesh) {
  return distribute(batch, Layout::replicated(mesh));
}

at::Tensor batch_of_slices(const at::Tensor& slice, const DeviceMesh& mesh) {
  std::vector<Placement> placements(static_cast<std::size_t>(mesh.num_axes()), Shard{0});
  return from_local(slice, Layout(mesh, placements));
}

struct StrategyOfNextOperator::Impl {
  explicit Impl(OperatorStrategy strategy) : waiting(std::move(strategy)) {}
  tensor::PendingStrategy waiting;
};

StrategyOfNextOperator::StrategyOfNextOperator(OperatorStrategy strategy)
    : impl_(std::make_unique<Impl>(std::move(strategy))) {}

StrategyOfNextOperator::~StrategyOfNextOperator() = default;

void StrategyOfNextOperator::expect_taken() const {
  if (impl_->waiting.is_taken || impl_->waiting.has_seen_plain) return;
  throw UsageError(
      join_message("the strategy ", to_string(impl_->waiting.strategy()),
                   " was given to no operator: none with a tensor was called under it"),
      "call the operator that it is for inside with_strategy");
}

struct DataParallelDefault::Impl {
  tensor::BatchSharding cutting;
};

DataParallelDefault::DataParallelDefault() : impl_(std::make_unique<Impl>()) {}
DataParallelDefault::~DataParallelDefault() = default;

}  // namespace trireme
