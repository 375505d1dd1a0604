// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/parallelize.h>

#include <trireme/base/error.h>
#include <trireme/parallel/agreement.h>
#include <trireme/parallel/data/reducer.h>

#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>

#include <optional>
#include <unordered_set>

namespace trireme {

using detail::NamedTensor;

struct Parallelized::Impl {
  Plan plan;
  comm::Group group;
  std::optional<detail::Reducer> reducer;  // where there is something to exchange
  at::Tensor own_number;                   // of add_to_step, without a reducer
};

Parallelized::Parallelized(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Parallelized::Parallelized(Parallelized&&) noexcept = default;
Parallelized& Parallelized::operator=(Parallelized&&) noexcept = default;
Parallelized::~Parallelized() = default;
const Plan& Parallelized::plan() const noexcept { return impl_->plan; }
const comm::Group& Parallelized::group() const noexcept { return impl_->group; }

void Parallelized::add_to_step(const at::Tensor& number) {
  if (number.numel() != 1 || !number.is_floating_point()) {
    throw UsageError(join_message("add_to_step was given a tensor ", number.sizes(), " of ",
                                  number.scalar_type(), ", expected one floating-point number"),
                     "reduce it to one number first");
  }
  if (impl_->reducer) {
    impl_->reducer->add_to_step(number);
  } else {
    impl_->own_number = number.detach();
  }
}

void Parallelized::shard(torch::optim::Optimizer& optimizer) {
  detail::Shards* shards = impl_->reducer ? impl_->reducer->shards() : nullptr;
  if (shards != nullptr) shards->optimizers().take_over(optimizer);
}

void Parallelized::unshard(torch::optim::Optimizer& optimizer) {
  detail::Shards* shards = impl_->reducer ? impl_->reducer->shards() : nullptr;
  if (shards == nullptr) return;
  shards->fetch();
  shards->optimizers().give_back(optimizer);
}

void Parallelized::fetch() {
  detail::Shards* shards = impl_->reducer ? impl_->reducer->shards() : nullptr;
  if (shards != nullptr) shards->fetch();
}

Sharing Parallelized::sharing() const {
  detail::Shards* shards = impl_->reducer ? impl_->reducer->shards() : nullptr;
  if (shards == nullptr) return {.group = impl_->group};
  return {.group = impl_->group, .is_part = [shards](const at::Tensor& parameter) {
            return shards->optimizers().is_part(parameter);
          }};
}

void Parallelized::abandon_step() {
  if (impl_->reducer) impl_->reducer->abandon_step();
}

double Parallelized::sum_of_step() const {
  if (impl_->reducer) return impl_->reducer->sum_of_step();
  return impl_->own_number.defined() ? impl_->own_number.item<double>() : 0;
}

namespace {

// In the module's order; a tensor that several modules share counts once, under its first name.
std::vector<NamedTensor> named_tensors(const torch::OrderedDict<std::string, at::Tensor>& tensors) {
  std::vector<NamedTensor> all;
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const auto& item : tensors) {
    if (item.value().defined() && seen.insert(item.value().unsafeGetTensorImpl()).second) {
      all.push_back({item.key(), item.value()});
    }
  }
  return all;
}

void check_parameters(const std::vector<NamedTensor>& parameters) {
  for (const auto& [name, tensor] : parameters) {
    if (!tensor.is_non_overlapping_and_dense()) {
      throw UsageError(join_message("parameter ", name, " has gaps or overlaps (sizes ",
                                    tensor.sizes(), ", strides ", tensor.strides(), ")"),
                       "make it a dense tensor before parallelize");
    }
    if (tensor.requires_grad() && torch::autograd::impl::post_acc_grad_hooks(tensor)) {
      throw UsageError(
          join_message("parameter ", name, " has a post-accumulate-gradient hook already"),
          "a module can be parallelized once at a time; destroy the first Parallelized before");
    }
  }
}

void broadcast_all(const std::vector<NamedTensor>& tensors, const comm::Group& group) {
  std::vector<comm::Work> works;
  for (const NamedTensor& item : tensors)
    works.push_back(comm::broadcast_async(item.tensor, 0, group));
  for (comm::Work& work : works) work.wait();
}

}  // namespace

Parallelized parallelize(torch::nn::Module& module, const Plan& plan, const comm::Group& group) {
  validate(plan);
  auto impl = std::make_unique<Parallelized::Impl>();
  impl->plan = plan;
  impl->group = group;
  if (!plan.data_parallel) {
    if (group.size() > 1) {
      throw UsageError(
          join_message("the plan is not data parallel, but the group has ", group.size(), " ranks"),
          "set data_parallel, or train with a group of one");
    }
    return Parallelized(std::move(impl));
  }
  detail::check_same_plan(to_string(plan), group);
  const std::vector<NamedTensor> parameters = named_tensors(module.named_parameters());
  const std::vector<NamedTensor> buffers = named_tensors(module.named_buffers());
  check_parameters(parameters);
  detail::check_same_on_all_ranks(parameters, "parameter", group);
  detail::check_same_on_all_ranks(buffers, "buffer", group);
  broadcast_all(parameters, group);
  broadcast_all(buffers, group);

  std::vector<NamedTensor> trained;
  for (const NamedTensor& parameter : parameters) {
    if (parameter.tensor.requires_grad()) trained.push_back(parameter);
  }
  std::vector<at::Tensor> following;
  if (plan.broadcast_buffers) {
    for (const NamedTensor& buffer : buffers) following.push_back(buffer.tensor);
  }
  const bool has_work = group.size() > 1 || plan.micro_batches > 1;
  Plan carried_out = plan;
  if (group.size() == 1) carried_out.zero_stage = 0;
  if (has_work && !trained.empty()) impl->reducer.emplace(trained, following, carried_out, group);
  return Parallelized(std::move(impl));
}

}  // namespace trireme
