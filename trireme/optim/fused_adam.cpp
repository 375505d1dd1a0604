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
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace trireme {
namespace {

// Kernels for the CPU step blocks of elements with vector instructions, and the tail of a tensor
// element by element, which may round differently. They are given whole blocks alone. The largest
// blocks in use have 32 elements: 16-bit numbers in AVX-512.
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
  TensorsOfField tails;  // copied to memory that is padded to whole blocks, and back
};

void add(const TensorOfField& from, TensorsOfField& to) {
  for (std::size_t field = 0; field < kNumFields; ++field) {
    if (from[field].defined()) to[field].push_back(from[field]);
  }
}

// Returns true if element i in memory of each tensor belongs to element i of the others.
bool have_same_memory_order(const TensorOfField& tensors) {
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
  if (!have_same_memory_order(tensors)) {
    add(tensors, batch.tails);
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
  const std::int64_t tail = tensors[kParameter].is_cpu() ? size % kBlock : 0;
  if (tail < size) add(tail == 0 ? flat : parts_of(flat, 0, size - tail), batch.blocks);
  if (tail > 0) add(parts_of(flat, size - tail, tail), batch.tails);
}

at::Tensor padded(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> pieces;
  std::int64_t size = 0;
  for (const at::Tensor& tensor : tensors) {
    pieces.push_back(tensor.reshape({-1}));
    size += tensor.numel();
  }
  pieces.push_back(at::zeros({(kBlock - size % kBlock) % kBlock}, tensors.front().options()));
  return at::cat(pieces);
}

void copy_back(const at::Tensor& padded_memory, const std::vector<at::Tensor>& tensors) {
  std::int64_t begin = 0;
  for (const at::Tensor& tensor : tensors) {
    tensor.copy_(padded_memory.narrow(0, begin, tensor.numel()).view(tensor.sizes()));
    begin += tensor.numel();
  }
}

template <typename Options>
void step_batch(Batch& batch, const Options& options) {
  TensorsOfField& lists = batch.blocks;
  TensorOfField padded_tails;
  if (!batch.tails[kParameter].empty()) {
    for (std::size_t field = 0; field < kNumFields; ++field) {
      if (!batch.tails[field].empty()) padded_tails[field] = padded(batch.tails[field]);
    }
    add(padded_tails, lists);
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
    if (padded_tails[written].defined()) {
      copy_back(padded_tails[written], batch.tails[written]);
    }
  }
}

// Returns this rank's part of the gradient, in the layout of the parameter.
at::Tensor own_gradient(const at::Tensor& parameter) {
  const at::Tensor& gradient = parameter.grad();
  if (!has_layout(parameter)) return gradient;
  const Layout layout = layout_of(parameter);
  if (!has_layout(gradient)) return to_local(distribute(gradient.detach(), layout));
  if (layout_of(gradient) == layout) return to_local(gradient.detach());
  return to_local(redistribute(gradient.detach(), layout));
}

// Returns this rank's part of a tensor of the state, which is written.
at::Tensor own_state(const at::Tensor& tensor, const at::Tensor& parameter,
                     std::string_view optimizer) {
  const bool is_distributed = has_layout(parameter);
  if (has_layout(tensor) != is_distributed ||
      (is_distributed && layout_of(tensor) != layout_of(parameter))) {
    throw UsageError(join_message("the state that ", optimizer, " has is of ",
                                  has_layout(tensor) ? describe(tensor) : "a plain tensor",
                                  ", and its parameter is now ",
                                  is_distributed ? describe(parameter) : "a plain tensor"),
                     "make the optimizer after parallelize(), or load its state from a checkpoint");
  }
  return is_distributed ? to_local(tensor.detach()) : tensor;
}

void check_gradient(const at::Tensor& parameter, std::string_view optimizer) {
  if (parameter.grad().layout() != at::kStrided) {
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

// The kernels do not look whether tensors are as large as the parameter.
void check_alike(const TensorOfField& tensors, std::string_view optimizer) {
  constexpr std::array<std::string_view, kNumFields> kNames = {
      "the parameter", "the gradient", "exp_avg", "exp_avg_sq", "max_exp_avg_sq"};
  const auto text_of = [](const at::Tensor& tensor) {
    return join_message(c10::toString(tensor.scalar_type()), ' ', tensor.sizes(), " on ",
                        tensor.device());
  };
  for (std::size_t field = 0; field < kNumFields; ++field) {
    const at::Tensor& tensor = tensors[field];
    const at::Tensor& parameter = tensors[kParameter];
    if (!tensor.defined() ||
        (tensor.sizes() == parameter.sizes() && tensor.scalar_type() == parameter.scalar_type() &&
         tensor.device() == parameter.device())) {
      continue;
    }
    throw UsageError(join_message(optimizer, ": ", kNames.at(field), " is ", text_of(tensor),
                                  ", and its parameter is ", text_of(parameter)),
                     "load the state of the same network, and compute gradients on its device");
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

// Collects what a step of a group reads and writes. Counts the step in the states of parameters and
// adds them to `counted`.
template <typename Options, typename State, typename Optimizer>
std::deque<Batch> prepare_group(Optimizer& optimizer,
                                const torch::optim::OptimizerParamGroup& group,
                                std::string_view name, std::vector<State*>& counted) {
  const auto& options = static_cast<const Options&>(group.options());
  std::deque<Batch> batches;
  for (const at::Tensor& parameter : group.params()) {
    if (!parameter.grad().defined()) continue;
    auto& kept = optimizer.state()[parameter.unsafeGetTensorImpl()];
    if (!kept) {
      auto fresh = std::make_unique<State>();
      fresh->exp_avg(at::zeros_like(parameter, at::MemoryFormat::Preserve));
      fresh->exp_avg_sq(at::zeros_like(parameter, at::MemoryFormat::Preserve));
      kept = std::move(fresh);
    }
    auto& state = static_cast<State&>(*kept);
    if (options.amsgrad() && !state.max_exp_avg_sq().defined()) {
      state.max_exp_avg_sq(at::zeros_like(state.exp_avg_sq()));
    }
    const TensorOfField tensors = {
        has_layout(parameter) ? to_local(parameter.detach()) : parameter, own_gradient(parameter),
        own_state(state.exp_avg(), parameter, name), own_state(state.exp_avg_sq(), parameter, name),
        options.amsgrad() ? own_state(state.max_exp_avg_sq(), parameter, name) : at::Tensor()};
    check_alike(tensors, name);
    state.step(state.step() + 1);
    counted.push_back(&state);
    if (has_layout(parameter)) parameter.unsafeGetTensorImpl()->bump_version();
    if (tensors[kParameter].numel() == 0) continue;
    add(tensors, batch_of(tensors[kParameter], state.step(), batches));
  }
  return batches;
}

// After an error, no parameter has been stepped, and no step counted.
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
    for (const at::Tensor& parameter : group.params()) {
      if (parameter.grad().defined()) check_gradient(parameter, name);
    }
  }
  std::vector<std::deque<Batch>> of_groups;
  std::vector<State*> counted;
  try {
    for (torch::optim::OptimizerParamGroup& group : optimizer.param_groups()) {
      of_groups.push_back(prepare_group<Options>(optimizer, group, name, counted));
    }
  } catch (...) {
    for (State* const state : counted) state->step(state->step() - 1);
    throw;
  }
  for (std::size_t i = 0; i < of_groups.size(); ++i) {
    const auto& options = static_cast<const Options&>(optimizer.param_groups()[i].options());
    for (Batch& batch : of_groups[i]) step_batch(batch, options);
  }
  return loss;
}

class FusedAdamW final : public torch::optim::AdamW {
 public:
  using AdamW::AdamW;
  at::Tensor step(LossClosure closure) override {
    return step_all<torch::optim::AdamWOptions, torch::optim::AdamWParamState>(*this, closure,
                                                                               "fused_adamw()");
  }
};

class FusedAdam final : public torch::optim::Adam {
 public:
  using Adam::Adam;
  at::Tensor step(LossClosure closure) override {
    return step_all<torch::optim::AdamOptions, torch::optim::AdamParamState>(*this, closure,
                                                                             "fused_adam()");
  }
};

}  // namespace

std::unique_ptr<torch::optim::AdamW> fused_adamw(std::vector<at::Tensor> parameters,
                                                 const torch::optim::AdamWOptions& options) {
  return std::make_unique<FusedAdamW>(std::move(parameters), options);
}

std::unique_ptr<torch::optim::AdamW> fused_adamw(
    const std::vector<torch::optim::OptimizerParamGroup>& groups,
    const torch::optim::AdamWOptions& defaults) {
  return std::make_unique<FusedAdamW>(groups, defaults);
}

std::unique_ptr<torch::optim::Adam> fused_adam(std::vector<at::Tensor> parameters,
                                               const torch::optim::AdamOptions& options) {
  return std::make_unique<FusedAdam>(std::move(parameters), options);
}

std::unique_ptr<torch::optim::Adam> fused_adam(
    const std::vector<torch::optim::OptimizerParamGroup>& groups,
    const torch::optim::AdamOptions& defaults) {
  return std::make_unique<FusedAdam>(groups, defaults);
}

bool detail::is_fused(const torch::optim::Optimizer& optimizer) {
  return dynamic_cast<const FusedAdamW*>(&optimizer) != nullptr ||
         dynamic_cast<const FusedAdam*>(&optimizer) != nullptr;
}

}  // namespace trireme
