// SPDX-License-Identifier: Apache-2.0
#include <trireme/optim/lamb.h>

#include <trireme/base/error.h>
#include <trireme/optim/lamb_optimizer.h>

#include <torch/torch.h>

#include <cmath>
#include <string_view>

namespace trireme {
namespace {

void check_option(std::string_view what, double value, bool is_good, std::string_view expected) {
  if (is_good && std::isfinite(value)) return;
  throw UsageError(join_message("LambOptions::", what, " is ", value),
                   join_message("give ", expected));
}

void check_options(const LambOptions& options) {
  check_option("learning_rate", options.learning_rate, options.learning_rate >= 0, "0 or more");
  check_option("beta1", options.beta1, options.beta1 >= 0 && options.beta1 < 1, "0 to below 1");
  check_option("beta2", options.beta2, options.beta2 >= 0 && options.beta2 < 1, "0 to below 1");
  check_option("epsilon", options.epsilon, options.epsilon > 0, "a number above 0");
  check_option("weight_decay", options.weight_decay, options.weight_decay >= 0, "0 or more");
  check_option("largest_norm", options.largest_norm, options.largest_norm > 0, "a number above 0");
}

}  // namespace

namespace detail {

Lamb::Lamb(std::vector<LambGroup> groups)
    : Optimizer(std::vector<torch::optim::OptimizerParamGroup>{},
                std::make_unique<LambGroupOptions>()) {
  for (LambGroup& group : groups) {
    if (group.parameters.empty()) continue;
    auto options = std::make_unique<LambGroupOptions>();
    options->values = group.options;
    options->adapts = group.adapts;
    add_param_group(torch::optim::OptimizerParamGroup(std::move(group.parameters)));
    // LibTorch replaces options of a type that it does not know by the defaults.
    param_groups().back().set_options(std::move(options));
  }
}

at::Tensor Lamb::step(LossClosure closure) {
  at::Tensor loss;
  if (closure) {
    const at::AutoGradMode with_gradients(true);
    loss = closure();
  }
  const at::NoGradGuard no_gradients;
  for (torch::optim::OptimizerParamGroup& group : param_groups()) {
    const auto& options = dynamic_cast<const LambGroupOptions&>(group.options());
    for (at::Tensor& parameter : group.params()) {
      if (parameter.grad().defined()) step_parameter(parameter, options);
    }
  }
  return loss;
}

void Lamb::step_parameter(at::Tensor& parameter, const LambGroupOptions& options) {
  const LambOptions& values = options.values;
  const at::Tensor& gradient = parameter.grad();
  if (gradient.layout() == at::kSparse) {
    throw UsageError("LAMB cannot step a parameter with a sparse gradient",
                     "make the embedding without `sparse`, or use SGD or Adagrad");
  }
  auto& kept = state_[parameter.unsafeGetTensorImpl()];
  if (!kept) {
    auto fresh = std::make_unique<LambParamState>();
    fresh->exp_avg = torch::zeros_like(parameter, at::MemoryFormat::Preserve);
    fresh->exp_avg_sq = torch::zeros_like(parameter, at::MemoryFormat::Preserve);
    kept = std::move(fresh);
  }
  auto& state = dynamic_cast<LambParamState&>(*kept);
  ++state.step;
  const auto steps = static_cast<double>(state.step);
  state.exp_avg.mul_(values.beta1).add_(gradient, 1 - values.beta1);
  state.exp_avg_sq.mul_(values.beta2).addcmul_(gradient, gradient, 1 - values.beta2);
  const at::Tensor divisor =
      (state.exp_avg_sq / (1 - std::pow(values.beta2, steps))).sqrt_().add_(values.epsilon);
  at::Tensor update = (state.exp_avg / (1 - std::pow(values.beta1, steps))).div_(divisor);
  if (values.weight_decay != 0) update.add_(parameter, values.weight_decay);
  if (!options.adapts) {
    parameter.sub_(update, values.learning_rate);
    return;
  }
  const at::Tensor norm = parameter.norm().clamp_max(values.largest_norm);
  const at::Tensor update_norm = update.norm();
  const at::Tensor is_usual = norm.gt(0).logical_and(update_norm.gt(0));
  const at::Tensor ratio = torch::where(is_usual, norm / update_norm, torch::ones_like(norm));
  parameter.sub_(update.mul_(ratio), values.learning_rate);
}

}  // namespace detail

std::unique_ptr<torch::optim::Optimizer> lamb(std::vector<LambGroup> groups) {
  bool has_any = false;
  for (const LambGroup& group : groups) {
    check_options(group.options);
    has_any = has_any || !group.parameters.empty();
  }
  if (!has_any) {
    throw UsageError("lamb() was given no parameters",
                     "give the parameters of the module, for example net->parameters()");
  }
  return std::make_unique<detail::Lamb>(std::move(groups));
}

std::unique_ptr<torch::optim::Optimizer> lamb(std::vector<at::Tensor> parameters,
                                              const LambOptions& options) {
  std::vector<LambGroup> groups;
  groups.push_back({.parameters = std::move(parameters), .options = options});
  return lamb(std::move(groups));
}

}  // namespace trireme
