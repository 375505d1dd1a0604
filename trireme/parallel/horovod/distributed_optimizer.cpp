// SPDX-License-Identifier: Apache-2.0
// DistributedOptimizer: `parallelize` over named parameters, with the order of calls that Horovod
// requires.
#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/comm/check_values.h>
#include <trireme/parallel/horovod.h>
#include <trireme/parallel/horovod/calls.h>
#include <trireme/parallel/module/agreement.h>
#include <trireme/parallel/parallelize.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/optim/optimizer.h>

#include <mutex>
#include <optional>
#include <unordered_set>

namespace trireme::hvd {
namespace {

using torch::optim::Optimizer;

// Lists the first few names, for a message.
class Names {
 public:
  void add(const std::string& name) {
    if (++count_ <= kShown) text_ += (count_ == 1 ? "" : ", ") + name;
  }
  bool is_empty() const { return count_ == 0; }
  std::string text() const {
    return count_ <= kShown ? text_ : join_message(text_, " and ", count_ - kShown, " more");
  }

 private:
  static constexpr int kShown = 8;
  int count_ = 0;
  std::string text_;
};

// Names parameters by their places in the optimizer: `0.3` is parameter 3 of group 0.
NamedParameters parameters_of(const Optimizer& optimizer) {
  NamedParameters parameters;
  for (std::size_t group = 0; group < optimizer.param_groups().size(); ++group) {
    const auto& tensors = optimizer.param_groups()[group].params();
    for (std::size_t place = 0; place < tensors.size(); ++place) {
      parameters.emplace_back(join_message(group, ".", place), tensors[place]);
    }
  }
  return parameters;
}

detail::Mistake mistake_of_names(const Optimizer& optimizer, const NamedParameters& parameters) {
  Names twice;
  std::unordered_set<std::string> names;
  std::unordered_set<const c10::TensorImpl*> tensors;
  for (const auto& [name, tensor] : parameters) {
    if (!tensor.defined()) {
      return {join_message("parameter ", name, " is undefined"), "leave it out"};
    }
    if (!names.insert(name).second) twice.add(name);
    tensors.insert(tensor.unsafeGetTensorImpl());
  }
  if (!twice.is_empty()) {
    return {join_message("these names are there twice: ", twice.text()),
            "give the names of each model a prefix of its own: hvd::named_parameters(*model, "
            "\"encoder\")"};
  }
  Names unnamed;
  std::unordered_set<const c10::TensorImpl*> stepped;
  for (const auto& [place, tensor] : parameters_of(optimizer)) {
    stepped.insert(tensor.unsafeGetTensorImpl());
    if (tensors.contains(tensor.unsafeGetTensorImpl())) continue;
    TextWriter description;
    description << place << " " << tensor.sizes();
    unnamed.add(description.str());
  }
  if (!unnamed.is_empty()) {
    return {join_message("the optimizer has parameters that are not among the named ones (group."
                         "place and sizes): ",
                         unnamed.text()),
            "name the parameters of every model that the optimizer steps"};
  }
  Names not_stepped;
  for (const auto& [name, tensor] : parameters) {
    if (tensor.requires_grad() && !stepped.contains(tensor.unsafeGetTensorImpl())) {
      not_stepped.add(name);
    }
  }
  if (not_stepped.is_empty()) return {};
  return {
      join_message("the optimizer does not have these named parameters: ", not_stepped.text()),
      "make the optimizer with the parameters of every model, or leave out those that it is not "
      "to step"};
}

detail::Mistake mistake_of_options(const DistributedOptimizerOptions& options) {
  const bool averages_passes =
      options.average_aggregated_gradients && options.backward_passes_per_step > 1;
  const bool divides = averages_passes || options.gradient_predivide_factor != 1;
  const bool fits = (options.op == Average || options.op == Sum) &&
                    options.backward_passes_per_step >= 1 &&
                    options.gradient_predivide_factor > 0 && (options.op == Average || !divides);
  if (fits) return {};
  return {
      join_message("op is ",
                   options.op == Average ? "Average"
                   : options.op == Sum   ? "Sum"
                                         : "another",
                   ", backward_passes_per_step ", options.backward_passes_per_step,
                   options.average_aggregated_gradients ? ", averaged" : "",
                   ", gradient_predivide_factor ", options.gradient_predivide_factor),
      "op is Average or Sum, passes are 1 or more, the factor is above 0; with Sum the factor is "
      "1 and passes are not averaged"};
}

// Returns the parameters, each once. One that several models share keeps its first name.
NamedParameters without_repetitions(const NamedParameters& parameters) {
  NamedParameters result;
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const auto& [name, tensor] : parameters) {
    if (seen.insert(tensor.unsafeGetTensorImpl()).second) result.emplace_back(name, tensor);
  }
  return result;
}

std::string describe(const DistributedOptimizerOptions& options) {
  return join_message(
      options.op == Sum ? "Sum" : "Average", " over ", options.backward_passes_per_step, " passes",
      options.average_aggregated_gradients ? ", averaged too" : "", ", predivided by ",
      options.gradient_predivide_factor, ", compression ", static_cast<int>(options.compression));
}

Plan plan_of(const DistributedOptimizerOptions& options) {
  Plan plan;
  plan.broadcast_parameters = false;
  if (options.op == Sum || options.average_aggregated_gradients) {
    plan.micro_batches = options.backward_passes_per_step;
  }
  plan.gradient_reduction = options.op == Sum ? GradientReduction::kSum : GradientReduction::kMean;
  plan.gradient_predivide = options.gradient_predivide_factor;
  plan.wire = options.compression;
  return plan;
}

// Returns true if autograd will accumulate the gradient into `.grad()`. Hooks are also called by
// autograd::grad(), which accumulates nothing.
bool is_accumulated(const at::Tensor& parameter) {
  const auto* const wanted = torch::autograd::get_current_graph_task_exec_info();
  if (wanted == nullptr || wanted->empty()) return true;  // backward() accumulates all gradients
  const auto found = wanted->find(torch::autograd::impl::grad_accumulator(parameter).get());
  return found != wanted->end() && found->second.needed_;
}

}  // namespace

struct DistributedOptimizer::Impl {
  Impl(Optimizer& wrapped, NamedParameters named, const DistributedOptimizerOptions& given,
       const comm::Group& process_set)
      : optimizer(&wrapped), parameters(std::move(named)), options(given), group(process_set) {}
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl() {
    for (const auto& [parameter, hook] : hooks) parameter.remove_hook(hook);
  }

  void install_hooks();
  void on_gradient(const at::Tensor& parameter);
  void begin_step();
  void check_same_parameters() const;
  void check_values() const;
  void synchronize();

  Optimizer* optimizer;
  NamedParameters parameters;
  DistributedOptimizerOptions options;
  comm::Group group;
  std::optional<Parallelized> parallelized;
  std::unique_ptr<Parallelized::NoSync> holding_back;
  std::vector<std::pair<at::Tensor, unsigned>> hooks;

  std::mutex mutex;         // hooks are called by one thread of autograd for each device
  int pass_id = -1;         // autograd's id of the last backward()
  std::int64_t passes = 0;  // number of backward() calls since the last step
  bool is_synchronized = false;
  bool skips = false;
  bool is_compared = false;
  std::int64_t synchronized = 0;  // number of synchronized steps
};

void DistributedOptimizer::Impl::install_hooks() {
  for (const auto& [name, tensor] : parameters) {
    if (!tensor.requires_grad()) continue;
    // The hook must not hold the tensor: the tensor holds the hook, and neither would be freed.
    hooks.emplace_back(tensor,
                       tensor.register_hook([this, index = hooks.size()](const at::Tensor&) {
                         on_gradient(hooks[index].first);
                       }));
  }
}

// Called before the gradient is accumulated, and therefore before `parallelize` is told of it.
void DistributedOptimizer::Impl::on_gradient(const at::Tensor& parameter) {
  const std::lock_guard lock(mutex);
  const int id = torch::autograd::get_current_graph_task_id();
  if (id == pass_id || !is_accumulated(parameter)) return;
  if (passes == options.backward_passes_per_step) {
    throw UsageError(join_message("backward() was called more than ", passes,
                                  " times before step() or synchronize()"),
                     "give DistributedOptimizer the number as backward_passes_per_step");
  }
  pass_id = id;
  if (++passes == options.backward_passes_per_step) holding_back.reset();
}

// A plan with micro-batches averages over them too. Without that average, the plan has one
// micro-batch, and all passes but the last are held back.
void DistributedOptimizer::Impl::begin_step() {
  passes = 0;
  if (options.backward_passes_per_step == parallelized->plan().micro_batches) return;
  // NOLINTNEXTLINE(modernize-make-unique): it can only be made in place
  holding_back.reset(new Parallelized::NoSync(parallelized->no_sync()));
}

void DistributedOptimizer::Impl::check_same_parameters() const {
  const at::NoGradGuard no_grad;
  const auto count = static_cast<std::int64_t>(parameters.size());
  const at::Tensor own = at::empty({count}, at::kLong);
  auto* const digests = own.mutable_data_ptr<std::int64_t>();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    digests[i] = trireme::detail::digest_of(parameters[i].second);
  }
  const at::Tensor all = at::empty({group.size(), count}, at::kLong);
  comm::all_gather(all, own, group);
  for (int rank = 1; rank < group.size(); ++rank) {
    for (std::int64_t i = 0; i < count; ++i) {
      if (all[rank][i].item<std::int64_t>() == all[0][i].item<std::int64_t>()) continue;
      throw UsageError(
          join_message("parameter ", parameters[static_cast<std::size_t>(i)].first,
                       " is not the same on ranks 0 and ", rank, " before the first step"),
          "call hvd::broadcast_parameters for every model, after it was made or loaded");
    }
  }
}

// Compares parameters over ranks, for TRIREME_CHECK=values.
void DistributedOptimizer::Impl::check_values() const {
  std::vector<comm::NamedValue> values;
  for (const auto& [name, tensor] : parameters) values.push_back({name, tensor});
  comm::check_equal_values(values, group,
                           join_message("parameters before step ", synchronized + 1));
}

void DistributedOptimizer::Impl::synchronize() {
  if (is_synchronized && passes == 0) return;
  if (passes != options.backward_passes_per_step) {
    throw UsageError(
        join_message("step() or synchronize() after ", passes, " calls of backward(), expected ",
                     options.backward_passes_per_step),
        "every step takes backward_passes_per_step of them");
  }
  if (!is_compared) check_same_parameters();
  is_compared = true;
  if (synchronized % comm::kStepsBetweenChecks == 0 && comm::checks_values()) check_values();
  ++synchronized;
  is_synchronized = true;
  begin_step();
}

DistributedOptimizer::DistributedOptimizer(Optimizer& optimizer, const NamedParameters& parameters,
                                           const DistributedOptimizerOptions& options,
                                           const comm::Group& process_set)
    : impl_(std::make_unique<Impl>(optimizer,
                                   parameters.empty() ? parameters_of(optimizer) : parameters,
                                   options, process_set)) {
  detail::Mistake mistake = mistake_of_options(options);
  if (mistake.message.empty()) mistake = mistake_of_names(optimizer, impl_->parameters);
  detail::check_same_call("DistributedOptimizer", describe(options), mistake, process_set);
  impl_->parameters = without_repetitions(impl_->parameters);
  impl_->parallelized = parallelize(impl_->parameters, plan_of(options), process_set);
  impl_->begin_step();
  impl_->install_hooks();
}

DistributedOptimizer::DistributedOptimizer(DistributedOptimizer&&) noexcept = default;
DistributedOptimizer& DistributedOptimizer::operator=(DistributedOptimizer&&) noexcept = default;
DistributedOptimizer::~DistributedOptimizer() = default;

void DistributedOptimizer::synchronize() { impl_->synchronize(); }

void DistributedOptimizer::step() {
  if (!impl_->skips) impl_->synchronize();
  impl_->optimizer->step();
  if (impl_->skips) impl_->begin_step();
  impl_->is_synchronized = false;
}

void DistributedOptimizer::zero_grad(bool set_to_none) {
  if (impl_->passes > 0) {
    throw UsageError("zero_grad() after backward() and before step() or synchronize()",
                     "call it between step() and the next backward()");
  }
  impl_->optimizer->zero_grad(set_to_none);
}

DistributedOptimizer::SkipSynchronize::SkipSynchronize(DistributedOptimizer& optimizer)
    : optimizer_(optimizer) {
  optimizer_.impl_->skips = true;
}

DistributedOptimizer::SkipSynchronize::~SkipSynchronize() { optimizer_.impl_->skips = false; }

}  // namespace trireme::hvd
