// SPDX-License-Identifier: Apache-2.0
// A model of a few stages, as a pipeline and as one process runs it: a connection that skips
// stages, integers that cross, layer norm, batch norm with its statistics, and a parameter whose
// operator has no split backward.
#pragma once

#include <trireme/parallel/pipeline/executor.h>
#include <trireme/parallel/pipeline/split/operators.h>

#include <torch/torch.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace trireme::pipeline::test {

constexpr std::int64_t kWidth = 6;

constexpr int kInput = 0;
constexpr int kTarget = 1;
constexpr int kMask = 2;
constexpr int kLoss = 3;
constexpr int kFirstHidden = 10;  // and one for each stage

struct ChainStageImpl : torch::nn::Module {
  explicit ChainStageImpl(int stage) {
    linear = register_module("linear", torch::nn::Linear(kWidth, kWidth));
    layer_norm =
        register_module("layer_norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
    batch_norm = register_module("batch_norm", torch::nn::BatchNorm1d(kWidth));
    scale = register_parameter("scale", torch::ones({kWidth}));
    auto generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(stage) + 1);
    const torch::NoGradGuard no_grad;
    for (torch::Tensor& parameter : parameters()) {
      parameter.copy_(torch::rand(parameter.sizes(), generator, parameter.options()) - 0.3);
    }
  }

  torch::Tensor forward(const torch::Tensor& input, bool uses_batch_norm) {
    torch::Tensor x = torch::tanh(split::linear(input, linear->weight, linear->bias));
    x = uses_batch_norm
            ? split::batch_norm(x, batch_norm->weight, batch_norm->bias, batch_norm->running_mean,
                                batch_norm->running_var, true, 0.1, 1e-5)
            : split::layer_norm(x, {kWidth}, layer_norm->weight, layer_norm->bias);
    return x * scale;
  }

  torch::nn::Linear linear{nullptr};
  torch::nn::LayerNorm layer_norm{nullptr};
  torch::nn::BatchNorm1d batch_norm{nullptr};
  torch::Tensor scale;
};
TORCH_MODULE(ChainStage);

/// Stages from 2 to this take the first stage's output besides their own input; 0 for none.
inline int skip_to(int num_stages) { return num_stages < 3 ? 0 : std::min(num_stages - 1, 3); }

/// What crosses a chain. @param samples of a micro-batch, by variant.
inline std::vector<BoundaryTensor> boundary_tensors_of_chain(
    int num_stages, const std::vector<std::int64_t>& samples) {
  std::vector<Shape> shapes;
  for (const std::int64_t count : samples) shapes.push_back({.sizes = {count, kWidth}});
  std::vector<BoundaryTensor> boundary_tensors;
  for (int stage = 0; stage + 1 < num_stages; ++stage) {
    boundary_tensors.push_back(
        {.value = kFirstHidden + stage, .from = stage, .to = {stage + 1}, .shapes = shapes});
  }
  for (int to = 2; to <= skip_to(num_stages); ++to) boundary_tensors.front().to.push_back(to);
  boundary_tensors.push_back({.value = kMask,
                              .from = 0,
                              .to = {num_stages - 1},
                              .dtype = at::kLong,
                              .has_gradient = false,
                              .shapes = shapes});
  return boundary_tensors;
}

/// The program of a chain. @param plan as a generator gives it, changed by passes but for messages.
inline Program program_of_chain(schedule::Schedule plan,
                                const std::vector<std::int64_t>& samples = {4}) {
  const int num_stages = plan.num_stages();
  for (int to = 2; to < num_stages; ++to) {
    if (to <= skip_to(num_stages) || to + 1 == num_stages) plan.edges.push_back({0, to});
  }
  return {.schedule = std::move(plan),
          .boundary_tensors = boundary_tensors_of_chain(num_stages, samples),
          .inputs = {kInput, kTarget},
          .loss = kLoss,
          .loss_stage = num_stages - 1};
}

/// Code of one stage; the module lives as long as it.
inline StageCode code_of(ChainStage module, int stage, int num_stages) {
  StageCode code{.stage = stage};
  const bool is_last = stage + 1 == num_stages;
  code.inputs = {stage == 0 ? kInput : kFirstHidden + stage - 1};
  const bool has_skip = stage >= 2 && stage <= skip_to(num_stages);
  if (has_skip) code.inputs.push_back(kFirstHidden);
  if (is_last) code.inputs.insert(code.inputs.end(), {kMask, kTarget});
  if (stage == 0) code.outputs.push_back(kMask);
  code.outputs.push_back(is_last ? kLoss : kFirstHidden + stage);
  for (const auto& parameter : module->named_parameters()) {
    code.parameters.emplace_back("stage" + std::to_string(stage) + "." + parameter.key(),
                                 parameter.value());
  }
  code.buffers = module->buffers();
  code.forward = [=](c10::ArrayRef<at::Tensor> inputs,
                     const MicroBatch&) mutable -> std::vector<at::Tensor> {
    torch::Tensor x = inputs[0];
    if (has_skip) x = x + inputs[1];
    x = module->forward(x, stage == 1);
    if (is_last) {
      const torch::Tensor& mask = inputs[inputs.size() - 2];
      return {((x - inputs.back()) * mask.to(torch::kFloat)).square().mean()};
    }
    if (stage == 0) return {(inputs[0] > 0).to(torch::kLong), x};
    return {x};
  };
  return code;
}

/// Inputs of a step, for each micro-batch.
inline std::vector<std::vector<at::Tensor>> inputs_of_chain(
    const std::vector<std::int64_t>& samples, std::uint64_t step = 0) {
  std::vector<std::vector<at::Tensor>> all;
  for (std::size_t number = 0; number < samples.size(); ++number) {
    auto generator = at::detail::createCPUGenerator(1000 * (step + 1) + number);
    const auto draw = [&] {
      return torch::rand({samples[number], kWidth}, generator, torch::kFloat) - 0.5;
    };
    all.push_back({draw(), draw()});
  }
  return all;
}

/// Modules of stages, made anew with the same values each time.
inline std::map<int, ChainStage> modules_of(const std::vector<int>& stages) {
  std::map<int, ChainStage> modules;
  for (const int stage : stages) modules.emplace(stage, ChainStage(stage));
  return modules;
}

inline std::vector<int> stages_of(const schedule::Schedule& plan, int rank) {
  std::vector<int> stages;
  for (int stage = 0; stage < plan.num_stages(); ++stage) {
    if (plan.rank_of(stage) == rank) stages.push_back(stage);
  }
  return stages;
}

inline std::vector<StageCode> codes_of(const std::map<int, ChainStage>& modules, int num_stages) {
  std::vector<StageCode> codes;
  for (const auto& [stage, module] : modules) codes.push_back(code_of(module, stage, num_stages));
  return codes;
}

/// Runs code of all stages in one process, one micro-batch after the other, in one graph each, and
/// divides the sums once. Returns the losses.
inline std::vector<at::Tensor> run_alone(const std::vector<StageCode>& codes,
                                         const std::vector<std::vector<at::Tensor>>& inputs,
                                         const std::vector<double>& weights) {
  double divisor = 0;
  std::vector<at::Tensor> losses;
  for (std::size_t number = 0; number < inputs.size(); ++number) {
    std::map<int, at::Tensor> values = {{kInput, inputs[number][0]}, {kTarget, inputs[number][1]}};
    for (const StageCode& code : codes) {
      std::vector<at::Tensor> taken;
      for (const int value : code.inputs) taken.push_back(values.at(value));
      const auto given = code.forward(taken, {.number = static_cast<int>(number)});
      for (std::size_t i = 0; i < given.size(); ++i) values[code.outputs[i]] = given[i];
    }
    const double weight = weights.empty() ? 1 : weights[number];
    divisor += weight;
    values.at(kLoss).backward(torch::full({}, weight));
    losses.push_back(values.at(kLoss).detach());
  }
  for (const StageCode& code : codes) {
    for (const auto& [name, parameter] : code.parameters) {
      if (parameter.grad().defined()) parameter.mutable_grad().div_(divisor);
    }
  }
  return losses;
}

inline bool is_same(const at::Tensor& a, const at::Tensor& b) {
  return a.defined() == b.defined() && (!a.defined() || torch::equal(a, b));
}

/// Whether gradients and buffers of both are the same, bit by bit; else the first that is not.
inline std::string difference(ChainStage& own, ChainStage& expected) {
  const auto parameters = expected->named_parameters();
  for (const auto& parameter : own->named_parameters()) {
    if (!is_same(parameter.value().grad(), parameters[parameter.key()].grad())) {
      return parameter.key();
    }
  }
  const auto buffers = expected->named_buffers();
  for (const auto& buffer : own->named_buffers()) {
    if (!is_same(buffer.value(), buffers[buffer.key()])) return buffer.key();
  }
  return "";
}

}  // namespace trireme::pipeline::test
