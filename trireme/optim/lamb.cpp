// SPDX-License-Identifier: Apache-2.0
#include <trireme/optim/lamb.h>

#include <trireme/base/error.h>

#include <torch/torch.h>

#include <cmath>
#include <string_view>

namespace trireme {
namespace {

using torch::optim::AdamWOptions;

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

// The options of a group are those of AdamW, and what AdamW has not is beside them.
class Lamb final : public torch::optim::Optimizer {
 public:
  explicit Lamb(std::vector<LambGroup> groups)
      : Optimizer(std::vector<torch::optim::OptimizerParamGroup>{},
                  std::make_unique<AdamWOptions>()) {
    for (LambGroup& group : groups) {
      if (group.parameters.empty()) continue;
      const LambOptions& values = group.options;
      scaling_.push_back({.adapts = group.adapts, .largest_norm = values.largest_norm});
      add_param_group(torch::optim::OptimizerParamGroup(
          std::move(group.parameters),
          std::make_unique<AdamWOptions>(AdamWOptions(values.learning_rate)
                                             .betas({values.beta1, values.beta2})
                                             .eps(values.epsilon)
                                             .weight_decay(values.weight_decay))));
    }
  }

  at::Tensor step(LossClosure closure = nullptr) override {
    at::Tensor loss;
    if (closure) {
      const at::AutoGradMode with_gradients(true);
      loss = closure();
    }
    const at::NoGradGuard no_gradients;
    std::size_t number = 0;
    for (torch::optim::OptimizerParamGroup& group : param_groups()) {
      const auto& options = dynamic_cast<const AdamWOptions&>(group.options());
      const Scaling& scaling = scaling_.at(number++);
      for (at::Tensor& parameter : group.params()) {
        if (parameter.grad().defined()) step_parameter(parameter, options, scaling);
      }
    }
    return loss;
  }

 private:
  struct Scaling {
    bool adapts = true;
    double largest_norm = 0;
  };

  void step_parameter(at::Tensor& parameter, const AdamWOptions& options, const Scaling& scaling);

  std::vector<Scaling> scaling_;  // of each group
};

void Lamb::step_parameter(at::Tensor& parameter, const AdamWOptions& options,
                          const Scaling& scaling) {
  const at::Tensor& gradient = parameter.grad();
  if (gradient.layout() == at::kSparse) {
    throw UsageError("LAMB cannot step a parameter with a sparse gradient",
                     "make the embedding without `sparse`, or use SGD or Adagrad");
  }
  auto& kept = state_[parameter.unsafeGetTensorImpl()];
  if (!kept) {
    auto fresh = std::make_unique<torch::optim::AdamWParamState>();
    fresh->step(0);
    fresh->exp_avg(torch::zeros_like(parameter, at::MemoryFormat::Preserve));
    fresh->exp_avg_sq(torch::zeros_like(parameter, at::MemoryFormat::Preserve));
    kept = std::move(fresh);
  }
  auto& state = dynamic_cast<torch::optim::AdamWParamState&>(*kept);
  state.step(state.step() + 1);
  const auto steps = static_cast<double>(state.step());
  const auto [beta1, beta2] = options.betas();
  state.exp_avg().mul_(beta1).add_(gradient, 1 - beta1);
  state.exp_avg_sq().mul_(beta2).addcmul_(gradient, gradient, 1 - beta2);
  const at::Tensor divisor =
      (state.exp_avg_sq() / (1 - std::pow(beta2, steps))).sqrt_().add_(options.eps());
  at::Tensor update = (state.exp_avg() / (1 - std::pow(beta1, steps))).div_(divisor);
  if (options.weight_decay() != 0) update.add_(parameter, options.weight_decay());
  if (!scaling.adapts) {
    parameter.sub_(update, options.lr());
    return;
  }
  const at::Tensor norm = parameter.norm().clamp_max(scaling.largest_norm);
  const at::Tensor update_norm = update.norm();
  const at::Tensor is_usual = norm.gt(0).logical_and(update_norm.gt(0));
  const at::Tensor ratio = torch::where(is_usual, norm / update_norm, torch::ones_like(norm));
  parameter.sub_(update.mul_(ratio), options.lr());
}

}  // namespace

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
  return std::make_unique<Lamb>(std::move(groups));
}

std::unique_ptr<torch::optim::Optimizer> lamb(std::vector<at::Tensor> parameters,
                                              const LambOptions& options) {
  std::vector<LambGroup> groups;
  groups.push_back({.parameters = std::move(parameters), .options = options});
  return lamb(std::move(groups));
}

bool detail::is_lamb(const torch::optim::Optimizer& optimizer) {
  return dynamic_cast<const Lamb*>(&optimizer) != nullptr;
}

}  // namespace trireme
