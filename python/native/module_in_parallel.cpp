// SPDX-License-Identifier: Apache-2.0
#include <python/native/module_in_parallel.h>

#include <trireme/base/error.h>
#include <trireme/comm/collectives.h>
#include <trireme/optim/gradients.h>
#include <trireme/parallel/module/local_memory.h>
#include <trireme/parallel/zero/shards.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/module.h>
#include <torch/optim/sgd.h>

#include <utility>

namespace trireme::python {
namespace {

// An optimizer that is never stepped: functions for optimizers read the tensors in its groups.
std::unique_ptr<torch::optim::Optimizer> stand_in(const TensorGroups& groups) {
  std::vector<torch::optim::OptimizerParamGroup> all;
  for (const std::vector<at::Tensor>& tensors : groups) all.emplace_back(tensors);
  return std::make_unique<torch::optim::SGD>(std::move(all), torch::optim::SGDOptions(0));
}

const detail::SlicedParameter& sliced(const Parallelized& parallelized,
                                      const at::Tensor& parameter) {
  detail::Shards* const shards = detail::shards_of(parallelized);
  const auto* const found = shards == nullptr ? nullptr : shards->optimizers().find(parameter);
  if (found != nullptr) return *found;
  throw UsageError(join_message("a tensor ", parameter.sizes(), " is no parameter that is sharded"),
                   "give one of those that sharded_parameters() returns");
}

}  // namespace

TensorGroups Stepped::groups() const {
  TensorGroups all;
  for (const auto& group : optimizer->param_groups()) all.push_back(group.params());
  return all;
}

ModuleInParallel::ModuleInParallel(const ModuleTensors& tensors, const Plan& plan,
                                   const comm::Group& group)
    : module_(module_of_tensors(tensors)),
      parallelized_(parallelize(ModuleRef(module_), plan, group)) {}

void ModuleInParallel::drop() {
  no_sync_.clear();
  struct Unwound {};
  try {
    // While an exception unwinds the stack, the destructor waits for no other rank.
    const std::optional<Parallelized> dropped = std::exchange(parallelized_, std::nullopt);
    throw Unwound();
  } catch (const Unwound&) {
  }
}

Parallelized& ModuleInParallel::get() {
  if (parallelized_) return *parallelized_;
  throw UsageError("the module is not parallelized any more: close() was called",
                   "call trireme.parallelize again");
}

const Parallelized& ModuleInParallel::get() const {
  return const_cast<ModuleInParallel*>(this)->get();
}

void ModuleInParallel::close() {
  no_sync_.clear();
  parallelized_.reset();
}

Stepped ModuleInParallel::shard(const TensorGroups& groups) {
  Stepped stepped = {.optimizer = stand_in(groups)};
  get().shard(*stepped.optimizer);
  return stepped;
}

std::vector<PartOfParameter> ModuleInParallel::sharded_parameters() const {
  detail::Shards* const shards = detail::shards_of(get());
  std::vector<PartOfParameter> all;
  if (shards == nullptr) return all;
  for (const Parallelized::Part& part : get().parts()) {
    const auto* const found = shards->optimizers().find(part.parameter);
    if (found == nullptr) continue;
    PartOfParameter own = {.parameter = part.parameter,
                           .zero_level = zero_level_of(get().plan(), part.name),
                           .elements = found->part.numel()};
    own.stepped = found->pieces.empty() ? std::vector<at::Tensor>{found->part} : found->pieces;
    all.push_back(std::move(own));
  }
  return all;
}

at::Tensor ModuleInParallel::cut(const at::Tensor& parameter, const at::Tensor& whole) const {
  const at::NoGradGuard no_grad;
  const detail::SlicedParameter& own = sliced(get(), parameter);
  at::Tensor memory = detail::memory_like(parameter, whole);
  if (memory.strides() != own.memory.strides()) {
    memory =
        at::empty_strided(own.memory.sizes(), own.memory.strides(), memory.options()).copy_(memory);
  }
  return memory.as_strided({own.part.numel()}, {1}, memory.storage_offset() + own.offset)
      .to(own.part.device(), memory.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
}

at::Tensor ModuleInParallel::join(const at::Tensor& parameter,
                                  const std::optional<at::Tensor>& part,
                                  at::ScalarType dtype) const {
  const at::NoGradGuard no_grad;
  const detail::SlicedParameter& own = sliced(get(), parameter);
  const at::Tensor memory =
      at::zeros({own.memory.numel()}, own.memory.options().dtype(dtype).requires_grad(false));
  if (part) memory.narrow(0, own.offset, own.part.numel()).copy_(*part);
  // Parts do not overlap, so that the sum of bytes is the byte of the rank that has it. Sums of
  // numbers would lose the sign of zeros.
  comm::all_reduce(memory.view(at::kByte), detail::shards_of(get())->group(), comm::ReduceOp::kSum,
                   "optimizer state");
  return detail::as_like(
      parameter, detail::slice_of(memory, 0, own.memory.sizes(), own.memory.strides()).clone());
}

at::Tensor ModuleInParallel::clip(const std::vector<at::Tensor>& stepped,
                                  std::optional<double> max_norm) const {
  const at::NoGradGuard no_grad;
  const auto optimizer = stand_in({stepped});
  const Sharing sharing = get().sharing();
  if (max_norm) return clip_by_global_norm(*optimizer, *max_norm, sharing);
  return at::scalar_tensor(global_norm(*optimizer, sharing), at::kDouble);
}

void ModuleInParallel::begin_no_sync() {
  // The object cannot be moved, so it is constructed in place.
  no_sync_.emplace_back(new Parallelized::NoSync(get().no_sync()));
}

void ModuleInParallel::end_no_sync() {
  if (!no_sync_.empty()) no_sync_.pop_back();
}

}  // namespace trireme::python
