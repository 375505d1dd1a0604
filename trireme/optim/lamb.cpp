// SPDX-License-Identifier: Apache-2.0
#include <trireme/optim/lamb.h>

#include <trireme/base/error.h>
#include <trireme/optim/whole_norms.h>

#include <c10/util/Type.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <typeinfo>
#include <unordered_map>
#include <utility>

namespace trireme {
namespace {

using torch::optim::AdamWOptions;
using torch::optim::AdamWParamState;

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

struct Scaling {
  bool adapts = true;
  double largest_norm = 0;
};

// The options of a group: those of AdamW, so that learning rate schedules and checkpoints know
// them, and the ones that AdamW has not.
class GroupOptions final : public AdamWOptions {
 public:
  GroupOptions(const LambOptions& values, bool adapts)
      : AdamWOptions(values.learning_rate),
        scaling_{.adapts = adapts, .largest_norm = values.largest_norm} {
    betas({values.beta1, values.beta2}).eps(values.epsilon).weight_decay(values.weight_decay);
  }
  const Scaling& scaling() const noexcept { return scaling_; }
  std::unique_ptr<torch::optim::OptimizerOptions> clone() const override {
    return std::make_unique<GroupOptions>(*this);
  }

 private:
  Scaling scaling_;
};

class Lamb final : public torch::optim::Optimizer {
 public:
  explicit Lamb(const LambOptions& defaults)
      : Optimizer(std::vector<torch::optim::OptimizerParamGroup>{},
                  std::make_unique<GroupOptions>(defaults, /*adapts=*/true)) {}

  void add(LambGroup group) {
    add_param_group(torch::optim::OptimizerParamGroup(std::move(group.parameters)));
    // Given to add_param_group(), options with the values of AdamW's defaults would be replaced.
    param_groups().back().set_options(std::make_unique<GroupOptions>(group.options, group.adapts));
  }

  at::Tensor step(LossClosure closure = nullptr) override;

  void save(torch::serialize::OutputArchive& archive) const override {
    torch::optim::serialize<AdamWParamState, AdamWOptions>(archive, *this);
  }
  void load(torch::serialize::InputArchive& archive) override {
    torch::optim::serialize<AdamWParamState, AdamWOptions>(archive, *this);
  }

  void set_parts(const void* owner, const comm::Group& group, const detail::WholeOf& whole_of);
  void forget_parts(const void* owner) {
    std::erase_if(owners_, [&](const Owner& each) { return each.key == owner; });
  }

 private:
  // A part of a parameter, and how it is stepped.
  struct Part {
    at::Tensor tensor;
    const AdamWOptions* options = nullptr;
    Scaling scaling{};
  };
  // One whose parameters are stepped in parts.
  struct Owner {
    const void* key = nullptr;
    detail::WholeNorms norms;
    // The parts of this step that are listed for the first time, those for the second time, and so
    // on. Tied parameters are listed several times, and each step follows from the one before.
    std::vector<std::vector<Part>> parts{};
  };

  const AdamWOptions& options_of(std::size_t number) const;
  Scaling scaling_of(const torch::optim::OptimizerOptions& options) const;
  at::Tensor update_of(const at::Tensor& parameter, const AdamWOptions& options);
  void step_whole(const at::Tensor& parameter, const AdamWOptions& options, const Scaling& scaling);
  void step_parts(const std::vector<Part>& parts, const detail::WholeNorms& norms);

  std::vector<Owner> owners_;  // in the order of set_parts(), which is the same on all ranks
};

const AdamWOptions& Lamb::options_of(std::size_t number) const {
  const torch::optim::OptimizerOptions& given = param_groups()[number].options();
  const auto* const options = dynamic_cast<const AdamWOptions*>(&given);
  if (options == nullptr) {
    throw UsageError(
        join_message("group ", number, " of LAMB has options of type ",
                     c10::demangle(typeid(given).name())),
        "add it by add_lamb_group, or give add_param_group no options or AdamWOptions");
  }
  if (options->amsgrad()) {
    throw UsageError(join_message("group ", number, " of LAMB has options with amsgrad"),
                     "leave it out, or use AdamW: LAMB does not keep the largest means of squares");
  }
  return *options;
}

Scaling Lamb::scaling_of(const torch::optim::OptimizerOptions& options) const {
  const auto* const own = dynamic_cast<const GroupOptions*>(&options);
  return (own != nullptr ? *own : dynamic_cast<const GroupOptions&>(defaults())).scaling();
}

at::Tensor Lamb::step(LossClosure closure) {
  at::Tensor loss;
  if (closure) {
    const at::AutoGradMode with_gradients(true);
    loss = closure();
  }
  const at::NoGradGuard no_gradients;
  for (Owner& owner : owners_) owner.parts.assign(owner.norms.most_times(), {});
  std::unordered_map<const c10::TensorImpl*, std::size_t> times;
  for (std::size_t number = 0; number < param_groups().size(); ++number) {
    const AdamWOptions& options = options_of(number);
    const Scaling scaling = scaling_of(options);
    for (const at::Tensor& parameter : param_groups()[number].params()) {
      if (!parameter.grad().defined()) continue;
      const auto owner = std::ranges::find_if(
          owners_, [&](const Owner& each) { return each.norms.contains(parameter); });
      if (!scaling.adapts || owner == owners_.end()) {
        step_whole(parameter, options, scaling);
        continue;
      }
      const std::size_t time = times[parameter.unsafeGetTensorImpl()]++;
      owner->parts.at(time).push_back({parameter, &options, scaling});
    }
  }
  for (Owner& owner : owners_) {
    for (const std::vector<Part>& parts : owner.parts) step_parts(parts, owner.norms);
    owner.parts.clear();
  }
  return loss;
}

// Changes the state of a parameter, and returns its update before any scaling.
at::Tensor Lamb::update_of(const at::Tensor& parameter, const AdamWOptions& options) {
  const at::Tensor& gradient = parameter.grad();
  if (gradient.layout() == at::kSparse) {
    throw UsageError("LAMB cannot step a parameter with a sparse gradient",
                     "make the embedding without `sparse`, or use SGD or Adagrad");
  }
  auto& kept = state_[parameter.unsafeGetTensorImpl()];
  if (!kept) {
    auto fresh = std::make_unique<AdamWParamState>();
    fresh->step(0);
    fresh->exp_avg(torch::zeros_like(parameter, at::MemoryFormat::Preserve));
    fresh->exp_avg_sq(torch::zeros_like(parameter, at::MemoryFormat::Preserve));
    kept = std::move(fresh);
  }
  auto& state = dynamic_cast<AdamWParamState&>(*kept);
  state.step(state.step() + 1);
  const auto steps = static_cast<double>(state.step());
  const auto [beta1, beta2] = options.betas();
  state.exp_avg().mul_(beta1).add_(gradient, 1 - beta1);
  state.exp_avg_sq().mul_(beta2).addcmul_(gradient, gradient, 1 - beta2);
  const at::Tensor divisor =
      (state.exp_avg_sq() / (1 - std::pow(beta2, steps))).sqrt_().add_(options.eps());
  at::Tensor update = (state.exp_avg() / (1 - std::pow(beta1, steps))).div_(divisor);
  if (options.weight_decay() != 0) update.add_(parameter, options.weight_decay());
  return update;
}

// Returns the factor of an update, one number.
at::Tensor ratio_of(const at::Tensor& norm, const at::Tensor& update_norm, double largest_norm) {
  const at::Tensor is_usual = norm.gt(0).logical_and(update_norm.gt(0));
  return torch::where(is_usual, norm.clamp_max(largest_norm) / update_norm, torch::ones_like(norm));
}

void Lamb::step_whole(const at::Tensor& parameter, const AdamWOptions& options,
                      const Scaling& scaling) {
  at::Tensor update = update_of(parameter, options);
  if (scaling.adapts) {
    update.mul_(ratio_of(parameter.norm(), update.norm(), scaling.largest_norm));
  }
  parameter.sub_(update, options.lr());
}

// Steps parts of different parameters, or pieces of them. Collective.
void Lamb::step_parts(const std::vector<Part>& parts, const detail::WholeNorms& norms) {
  detail::WholeNorms::Sums sums(norms);
  std::vector<at::Tensor> updates;
  for (const Part& part : parts) {
    sums.add(part.tensor, updates.emplace_back(update_of(part.tensor, *part.options)));
  }
  sums.add_up();
  for (std::size_t number = 0; number < parts.size(); ++number) {
    const Part& part = parts[number];
    const auto whole = sums.norms_of(part.tensor);
    const at::Tensor ratio = ratio_of(whole.parameter, whole.update, part.scaling.largest_norm);
    part.tensor.sub_(updates[number].mul_(ratio), part.options->lr());
    updates[number].reset();
  }
}

void Lamb::set_parts(const void* owner, const comm::Group& group, const detail::WholeOf& whole_of) {
  detail::WholeNorms norms(group);
  for (std::size_t number = 0; number < param_groups().size(); ++number) {
    if (!scaling_of(param_groups()[number].options()).adapts) continue;
    for (const at::Tensor& tensor : param_groups()[number].params()) {
      if (const at::Tensor* const whole = whole_of(tensor)) norms.add(tensor, *whole);
    }
  }
  forget_parts(owner);
  if (!norms.empty()) owners_.push_back({.key = owner, .norms = std::move(norms)});
}

constexpr auto kParametersHint = "give the parameters of the module, for example net->parameters()";

std::unique_ptr<torch::optim::Optimizer> make_lamb(std::vector<LambGroup> groups,
                                                   const LambOptions& defaults) {
  for (const LambGroup& group : groups) check_options(group.options);
  std::erase_if(groups, [](const LambGroup& group) { return group.parameters.empty(); });
  if (groups.empty()) throw UsageError("lamb() was given no parameters", kParametersHint);
  auto optimizer = std::make_unique<Lamb>(defaults);
  for (LambGroup& group : groups) optimizer->add(std::move(group));
  return optimizer;
}

}  // namespace

std::unique_ptr<torch::optim::Optimizer> lamb(std::vector<LambGroup> groups) {
  return make_lamb(std::move(groups), LambOptions{});
}

std::unique_ptr<torch::optim::Optimizer> lamb(std::vector<at::Tensor> parameters,
                                              const LambOptions& options) {
  std::vector<LambGroup> groups;
  groups.push_back({.parameters = std::move(parameters), .options = options});
  return make_lamb(std::move(groups), options);
}

void add_lamb_group(torch::optim::Optimizer& optimizer, LambGroup group) {
  auto* const own = dynamic_cast<Lamb*>(&optimizer);
  if (own == nullptr) {
    throw UsageError(join_message("add_lamb_group was given an optimizer of type ",
                                  c10::demangle(typeid(optimizer).name())),
                     "give it one that lamb() has returned; others have add_param_group");
  }
  if (group.parameters.empty()) {
    throw UsageError("add_lamb_group was given no parameters", kParametersHint);
  }
  check_options(group.options);
  own->add(std::move(group));
}

namespace detail {

bool is_lamb(const torch::optim::Optimizer& optimizer) {
  return dynamic_cast<const Lamb*>(&optimizer) != nullptr;
}

void set_lamb_parts(torch::optim::Optimizer& optimizer, const void* owner, const comm::Group& group,
                    const WholeOf& whole_of) {
  if (auto* const own = dynamic_cast<Lamb*>(&optimizer)) own->set_parts(owner, group, whole_of);
}

void forget_lamb_parts(torch::optim::Optimizer& optimizer, const void* owner) {
  if (auto* const own = dynamic_cast<Lamb*>(&optimizer)) own->forget_parts(owner);
}

}  // namespace detail

}  // namespace trireme
