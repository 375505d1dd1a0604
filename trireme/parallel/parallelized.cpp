// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/module/agreement.h>
#include <trireme/parallel/parallelized_impl.h>
#include <trireme/tensor/distributed_tensor.h>

#include <torch/optim/optimizer.h>

#include <algorithm>
#include <utility>

namespace trireme {

using detail::NamedTensor;

bool Parallelized::Impl::is_of_other_stages(const torch::optim::Optimizer& optimizer) {
  if (uses == nullptr) return false;
  const detail::OptimizerSlices& slices = shards()->optimizers();
  return std::ranges::none_of(optimizer.param_groups(), [&](const auto& group) {
    return std::ranges::any_of(group.params(), [&](const at::Tensor& tensor) {
      return slices.is_part(tensor) || slices.find(tensor) != nullptr;
    });
  });
}

// If several ranks hold a tensor, only the first of them counts it.
Sharing Parallelized::Impl::sharing_on_mesh() {
  detail::Shards* const cut = shards();
  return {.group = group, .is_part = [this, cut](const at::Tensor& stepped) {
            const detail::SlicedParameter* const sliced =
                cut == nullptr ? nullptr : cut->optimizers().of_part(stepped);
            // With hybrid sharding, the ranks behind the first shard group hold the same slices.
            const int holders = sliced == nullptr ? 1 : cut->group().size();
            if (data_group.rank() >= holders) return false;
            const at::Tensor& parameter = sliced == nullptr ? stepped.grad() : sliced->parameter;
            if (!parameter.defined()) return false;
            // A parameter that is not distributed is equal on all ranks of the mesh.
            return has_layout(parameter) ? is_first_holder(layout_of(parameter))
                                         : mesh.group().rank() == 0;
          }};
}

Parallelized::Parallelized(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Parallelized::Parallelized(Parallelized&&) noexcept = default;
Parallelized& Parallelized::operator=(Parallelized&&) noexcept = default;
Parallelized::~Parallelized() = default;
const Plan& Parallelized::plan() const noexcept { return impl_->plan; }
const comm::Group& Parallelized::group() const noexcept { return impl_->group; }
const comm::Group& Parallelized::data_group() const noexcept { return impl_->data_group; }
const DeviceMesh& Parallelized::mesh() const noexcept { return impl_->mesh; }

void Parallelized::add_to_step(const at::Tensor& number) {
  if (number.numel() != 1 || !number.is_floating_point()) {
    throw UsageError(join_message("add_to_step was given a tensor ", number.sizes(), " of ",
                                  number.scalar_type(), ", expected one floating-point number"),
                     "reduce it to one number first");
  }
  const at::Tensor whole = full(number.detach());
  if (impl_->reducer) {
    impl_->reducer->add_to_step(whole);
  } else {
    impl_->own_number = whole;
  }
}

void Parallelized::shard(torch::optim::Optimizer& optimizer) {
  detail::Shards* shards = impl_->shards();
  if (shards == nullptr || impl_->is_of_other_stages(optimizer)) return;
  const auto take_over = [&] {
    shards->clear_gradients();
    shards->optimizers().take_over(optimizer);
  };
  // A TrainingStep tells the other ranks itself, because stages have different optimizers.
  if (impl_->uses != nullptr) return take_over();
  detail::succeed_together(impl_->data_group, "shard its optimizer", take_over);
}

void check_can_shard(const torch::optim::Optimizer& optimizer) {
  detail::check_can_step_parts(optimizer);
}

void Parallelized::unshard(torch::optim::Optimizer& optimizer) {
  detail::Shards* shards = impl_->shards();
  if (shards == nullptr || impl_->is_of_other_stages(optimizer)) return;
  detail::succeed_together(impl_->data_group, "unshard its optimizer",
                           [&] { shards->optimizers().check_taken(optimizer); });
  shards->clear_gradients();
  shards->gather_parameters(/*also_cut=*/false);  // parameters of ZeRO level 3 stay sharded
  shards->optimizers().give_back(optimizer);
}

void Parallelized::gather_parameters() {
  detail::Shards* shards = impl_->shards();
  if (shards != nullptr) shards->gather_parameters(/*also_cut=*/true);
}

std::vector<Parallelized::Part> Parallelized::parts() const {
  std::vector<Part> all;
  for (const NamedTensor& item : impl_->parameters) {
    const detail::SlicedParameter* const sliced =
        impl_->shards() == nullptr ? nullptr : impl_->shards()->optimizers().find(item.tensor);
    Part part{.name = item.name, .parameter = item.tensor, .tensor = item.tensor};
    if (sliced != nullptr) {
      part.tensor = sliced->part;
      part.offset = sliced->offset;
    }
    part.is_own = detail::use_of(*this, item.name).is_own;
    all.push_back(std::move(part));
  }
  return all;
}

void Parallelized::with_whole_parts(torch::optim::Optimizer& optimizer,
                                    const std::function<void()>& call) const {
  detail::Shards* shards = impl_->shards();
  if (shards == nullptr) return call();
  shards->optimizers().join(optimizer);
  try {
    call();
  } catch (...) {
    shards->optimizers().split(optimizer);
    throw;
  }
  shards->optimizers().split(optimizer);
}

void Parallelized::expect_parts_to_change() {
  if (impl_->shards() == nullptr) return;
  impl_->shards()->expect_step([](std::size_t) { return true; });
}

Sharing Parallelized::sharing() const {
  impl_->check_backward_is_own("sharing");
  detail::Shards* shards = impl_->shards();
  if (impl_->mesh.defined()) return impl_->sharing_on_mesh();
  if (shards == nullptr) return {.group = impl_->group};
  return {.group = shards->group(), .is_part = [shards](const at::Tensor& parameter) {
            return shards->optimizers().is_part(parameter);
          }};
}

Parallelized::NoSync::NoSync(Impl& impl) : impl_(impl) {
  if (impl_.hooks) impl_.hooks->hold_back(true);
}

Parallelized::NoSync::~NoSync() {
  if (impl_.hooks) impl_.hooks->hold_back(false);
}

Parallelized::NoSync Parallelized::no_sync() {
  impl_->check_backward_is_own("no_sync");
  return NoSync(*impl_);
}

void Parallelized::join(const std::function<void()>& step) {
  impl_->check_backward_is_own("join");
  if (!impl_->hooks || impl_->data_group.size() == 1) return;
  impl_->check_forward_is_alone("join",
                                "give all ranks equally many batches: remainder kWrap or kDrop");
  gather_parameters();  // the others gather in forward, which is collective
  while (impl_->hooks->join_step()) {
    step();
    gather_parameters();
  }
  gather_parameters();  // so that a rank can read parameters later without the others
}

void Parallelized::finish_without_backward() {
  impl_->check_backward_is_own("finish_without_backward");
  if (impl_->mesh.defined() && impl_->mesh.size() > 1) {
    throw UsageError(
        join_message("finish_without_backward cannot stand in for a rank inside forward, ",
                     "in which the ranks of [", impl_->mesh.to_string(), "] take part together"),
        "end this process, or abort");
  }
  if (!impl_->hooks || impl_->group.size() == 1) return;
  impl_->check_forward_is_alone("finish_without_backward", "end this process, or abort");
  gather_parameters();  // the others gather in forward, which is collective
  impl_->hooks->finish_without_backward();
}

void Parallelized::abort(const std::string& reason) {
  // The groups in which other ranks may be waiting already come first.
  std::vector<comm::Group> groups;
  if (impl_->reducer) groups = impl_->reducer->groups();
  if (impl_->mesh.defined()) {
    for (int axis = 0; axis < impl_->mesh.num_axes(); ++axis) {
      groups.push_back(impl_->mesh.group(axis));
    }
    groups.push_back(impl_->mesh.group());
  }
  groups.insert(groups.end(), {impl_->batch_norm_group, impl_->data_group, impl_->group});
  for (const comm::Group& group : groups) detail::abort(group, reason);
}

void Parallelized::register_comm_hook(std::shared_ptr<CommHook> hook) {
  if (impl_->shards() != nullptr) {
    throw UsageError("the plan cuts gradients: a hook for whole buckets has no part in it",
                     "use a plan with zero_level 0, or plan.wire for fp16 and bf16");
  }
  if (!hook) hook = comm_hook_for(impl_->plan.wire);
  if (impl_->reducer) impl_->reducer->register_comm_hook(std::move(hook));
}

void Parallelized::abandon_step() {
  impl_->check_backward_is_own("abandon_step");
  const bool others_take_part = impl_->group.size() > 1;
  if (impl_->hooks) impl_->hooks->abandon_step(others_take_part);
}

double Parallelized::sum_of_step() const {
  if (impl_->reducer) return impl_->reducer->sum_of_step();
  return impl_->own_number.defined() ? impl_->own_number.item<double>() : 0;
}

double Parallelized::seconds_of_exchange() const {
  return impl_->hooks ? impl_->hooks->seconds_of_exchange() : 0;
}

namespace detail {

StageUse use_of(const Parallelized& parallelized, const std::string& name) {
  const auto& uses = parallelized.impl_->uses;
  return uses == nullptr ? StageUse() : uses->at(name);
}

Reducer* reducer_of(Parallelized& parallelized) {
  auto& reducer = parallelized.impl_->reducer;
  return reducer ? &*reducer : nullptr;
}

Shards* shards_of(const Parallelized& parallelized) { return parallelized.impl_->shards(); }

}  // namespace detail
}  // namespace trireme
