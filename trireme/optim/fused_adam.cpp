// SPDX-License-Identifier: Apache-2.0
#include <trireme/optim/fused_adam.h>

#include <trireme/base/error.h>
#include <trireme/tensor/distributed_tensor.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string_view>
#include <type_traits>
#include <vector>

namespace trireme {
namespace {

// Kernels for the CPU step blocks of elements with vector instructions and what is left at the end
// of a tensor one by one, which may round differently. They are given whole blocks alone. The
// largest ones in use have 32 elements: 16-bit numbers in AVX-512.
constexpr std::int64_t kBlock = 64;

// What a step reads and, except the gradient, writes.
enum Field : std::size_t { kParameter, kGradient, kMean, kSquares, kLargestSquares, kNumFields };

using TensorOfField = std::array<at::Tensor, kNumFields>;
using TensorsOfField = std::array<std::vector<at::Tensor>, kNumFields>;

// Tensors that one call of the kernel steps.
struct Batch {
  at::TensorOptions options;
  std::int64_t step = 0;
  TensorsOfField blocks;
  TensorsOfField rests;  // copied to memory that is filled up to whole blocks, and back
};

void add(const TensorOfField& from, TensorsOfField& to) {
  for (std::size_t field = 0; field < kNumFields; ++field) {
    if (from[field].defined()) to[field].push_back(from[field]);
  }
}

// Returns true if element i in memory of each tensor belongs to element i of the others.
bool are_alike(const TensorOfField& tensors) {
  return std::ranges::all_of(tensors, [&](const at::Tensor& tensor) {
    return !tensor.defined() || (tensor.is_non_overlapping_and_dense() &&
                                 tensor.strides() == tensors[kParameter].strides());
  });
}

TensorOfField parts_of(const TensorOfField& flat, std::int64_t begin, std::int64_t size) {
  TensorOfField parts;
  for (std::size_t field = 0; field < kNumFields; ++field) {
    if (flat[field].defined()) parts[field] = flat[field].narrow(0, begin, size);
  }
  return parts;
}

void add(const TensorOfField& tensors, Batch& batch) {
  if (!are_alike(tensors)) {
    add(tensors, batch.rests);
    return;
  }
  TensorOfField flat;
  for (std::size_t field = 0; field < kNumFields; ++field) {
    const at::Tensor& tensor = tensors[field];
    if (tensor.defined()) {
      flat[field] = tensor.as_strided({tensor.numel()}, {1}, tensor.storage_offset());
    }
  }
  const std::int64_t size = tensors[kParameter].numel();
  const std::int64_t rest = tensors[kParameter].is_cpu() ? size % kBlock : 0;
  if (rest < size) add(rest == 0 ? flat : parts_of(flat, 0, size - rest), batch.blocks);
  if (rest > 0) add(parts_of(flat, size - rest, rest), batch.rests);
}

at::Tensor filled_up(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> pieces;
  std::int64_t size = 0;
  for (const at::Tensor& tensor : tensors) {
    pieces.push_back(tensor.reshape({-1}));
    size += tensor.numel();
  }
  pieces.push_back(at::zeros({(kBlock - size % kBlock) % kBlock}, tensors.front().options()));
  return at::cat(pieces);
}

void copy_back(const at::Tensor& filled, const std::vector<at::Tensor>& tensors) {
  std::int64_t begin = 0;
  for (const at::Tensor& tensor : tensors) {
    tensor.copy_(filled.narrow(0, begin, tensor.numel()).view(tensor.sizes()));
    begin += tensor.numel();
  }
}

template <typename Options>
void step_batch(Batch& batch, const Options& options) {
  TensorsOfField& lists = batch.blocks;
  TensorOfField filled;
  if (!batch.rests[kParameter].empty()) {
    for (std::size_t field = 0; field < kNumFields; ++field) {
      if (!batch.rests[field].empty()) filled[field] = filled_up(batch.rests[field]);
    }
    add(filled, lists);
  }
  const std::vector<at::Tensor> steps(
      lists[kParameter].size(),
      at::full({}, static_cast<double>(batch.step), batch.options.dtype(at::kFloat)));
  const auto [beta1, beta2] = options.betas();
  const auto kernel = [&](auto function) {
    function(lists[kParameter], lists[kGradient], lists[kMean], lists[kSquares],
             lists[kLargestSquares], steps, options.lr(), beta1, beta2, options.weight_decay(),
             options.eps(), options.amsgrad(), /*maximize=*/false, std::nullopt, std::nullopt);
  };
  if constexpr (std::is_same_v<Options, torch::optim::AdamWOptions>) {
    kernel([](auto&&... arguments) { at::_fused_adamw_(arguments...); });
  } else {
    kernel([](auto&&... arguments) { at::_fused_adam_(arguments...); });
  }
  for (const Field written : {kParameter, kMean, kSquares, kLargestSquares}) {
    if (filled[written].defined()) copy_back(filled[written], batch.rests[written]);
  }
}

// Returns this rank's part of a tensor that belongs to `parameter`, in the parameter's layout.
at::Tensor own_part(const at::Tensor& tensor, const at::Tensor& parameter) {
  if (!tensor.defined() || !has_layout(parameter)) return tensor;
  const Layout layout = layout_of(parameter);
  if (!has_layout(tensor)) return to_local(distribute(tensor.detach(), layout));
  if (layout_of(tensor) == layout) return to_local(tensor.detach());
  return to_local(redistribute(tensor.detach(), layout));
}

void check(const at::Tensor& parameter, std::string_view optimizer) {
  if (parameter.grad().layout() == at::kSparse) {
    throw UsageError(join_message(optimizer, " cannot step a parameter with a sparse gradient"),
                     "make the embedding without `sparse`, or use SGD or Adagrad");
  }
  if (!parameter.is_floating_point()) {
    throw UsageError(
        join_message(optimizer, " cannot step a parameter of type ",
                     c10::toString(parameter.scalar_type()), ", expected real numbers"),
        "use torch::optim::AdamW or torch::optim::Adam");
  }
}

Batch& batch_of(const at::Tensor& parameter, std::int64_t step, std::deque<Batch>& batches) {
  const auto found = std::ranges::find_if(batches, [&](const Batch& batch) {
    return batch.step == step && batch.options.device() == parameter.device() &&
           batch.options.dtype() == parameter.dtype();
  });
  if (found != batches.end()) return *found;
  return batches.emplace_back(Batch{.options = parameter.options(), .step = step});
}

template <typename Options, typename State, typename Optimizer>
at::Tensor step_all(Optimizer& optimizer, const torch::optim::Optimizer::LossClosure& closure,
                    std::string_view name) {
  at::Tensor loss;
  if (closure) {
    const at::AutoGradMode with_gradients(true);
    loss = closure();
  }
  const at::NoGradGuard no_gradients;
  for (torch::optim::OptimizerParamGroup& group : optimizer.param_groups()) {
    const auto& options = static_cast<const Options&>(group.options());
    for (const at::Tensor& parameter : group.params()) {
      if (parameter.grad().defined()) check(parameter, name);
    }
    std::deque<Batch> batches;
    for (const at::Tensor& parameter : group.params()) {
      if (!parameter.grad().defined()) continue;
      auto& kept = optimizer.state()[parameter.unsafeGetTensorImpl()];
      if (!kept) {
        auto fresh = std::make_unique<State>();
        fresh->exp_avg(at::zeros_like(parameter, at::MemoryFormat::Preserve));
        fresh->exp_avg_sq(at::zeros_like(parameter, at::MemoryFormat::Preserve));
        if (options.amsgrad()) fresh->max_exp_avg_sq(at::zeros_like(fresh->exp_avg_sq()));
        kept = std::move(fresh);
      }
      auto& state = static_cast<State&>(*kept);
      state.step(state.step() + 1);
      const TensorOfField tensors = {
          own_part(parameter, parameter), own_part(parameter.grad(), parameter),
          own_part(state.exp_avg(), parameter), own_part(state.exp_avg_sq(), parameter),
          options.amsgrad() ? own_part(state.max_exp_avg_sq(), parameter) : at::Tensor()};
      if (tensors[kParameter].numel() == 0) continue;
      add(tensors, batch_of(tensors[kParameter], state.step(), batches));
    }
    for (Batch& batch : batches) step_batch(batch, options);
  }
  return loss;
}

}  // namespace

at::Tensor FusedAdamW::step(LossClosure closure) {
  return step_all<torch::optim::AdamWOptions, torch::optim::AdamWParamState>(*this, closure,
                                                                             "FusedAdamW");
}

at::Tensor FusedAdam::step(LossClosure closure) {
  return step_all<torch::optim::AdamOptions, torch::optim::AdamParamState>(*this, closure,
                                                                           "FusedAdam");
}

}  // namespace trireme
