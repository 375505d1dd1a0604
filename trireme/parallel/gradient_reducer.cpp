// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/gradient_reducer.h>

#include <trireme/base/error.h>
#include <trireme/comm/collectives.h>
#include <trireme/parallel/buckets/bucket_layout.h>
#include <trireme/parallel/buckets/divide.h>
#include <trireme/parallel/module/agreement.h>
#include <trireme/parallel/module/named_tensors.h>
#include <trireme/parallel/record/predicted_step.h>

#include <ATen/MemoryOverlap.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <unordered_set>
#include <utility>
#include <vector>

namespace trireme {

using detail::NamedTensor;

struct GradientReducer::Impl {
  struct Slot {
    NamedTensor parameter;
    at::Tensor sum;  // the bucket's slice in the parameter's shape; undefined in a group of one
  };

  struct Bucket {
    std::vector<std::size_t> slots;
    at::Tensor memory;      // [elements], each gradient at a multiple of 64 bytes
    at::Tensor predivisor;  // [], undefined if it is 1
    at::Tensor divisor;     // [], undefined if it is 1
    std::string label;
    comm::Work work;
  };

  comm::Group group;
  std::vector<Slot> slots;
  std::vector<Bucket> buckets;
  at::Tensor num_users;  // [slots] on the CPU: the number of ranks that have a gradient
  at::Tensor exchanged;  // [slots] on the parameters' device: the same, for the exchange

  void make_buckets(const GradientReducerOptions& options);
  void count_own();
  void launch(Bucket& bucket);
  void refuse_unusable();
  void hand_out(Bucket& bucket);
};

namespace {

// A rank adds this to the count of users if its gradient cannot be reduced. It exceeds the size of
// any group, so the error reaches all ranks with the counts and needs no message of its own.
constexpr float kUnusable = 1 << 20;

void validate(const GradientReducerOptions& options) {
  const bool is_sum = options.reduction == GradientReduction::kSum;
  const bool can_be = options.degree >= 0 && std::isfinite(options.predivide) &&
                      options.predivide > 0 && options.bucket_bytes > 0;
  if (can_be && !(is_sum && (options.degree != 0 || options.predivide != 1))) return;
  throw UsageError(
      join_message("gradient reducer: ", is_sum ? "sum" : "mean", ", degree ", options.degree,
                   ", predivide ", options.predivide, ", buckets of ", options.bucket_bytes,
                   " bytes"),
      "degree is 0 or more, predivide and bucket_bytes above 0; a sum takes neither degree nor "
      "predivide, for it divides by nothing");
}

// Describes all options exactly (numbers in hexadecimal), so that equal texts mean equal options.
std::string describe(const GradientReducerOptions& options) {
  return join_message(options.reduction == GradientReduction::kSum ? "sum" : "mean", ", degree ",
                      options.degree, ", predivide ", std::hexfloat, options.predivide,
                      ", buckets of ", options.bucket_bytes, " bytes");
}

std::vector<NamedTensor> trained_of(const std::vector<NamedTensor>& parameters) {
  std::vector<NamedTensor> trained;
  for (const NamedTensor& parameter : parameters) {
    const at::Tensor& tensor = parameter.tensor;
    if (!tensor.requires_grad()) continue;
    if (!tensor.is_non_overlapping_and_dense() || !tensor.is_floating_point()) {
      throw UsageError(
          join_message("gradient reducer: parameter ", parameter.name, " is ", tensor.scalar_type(),
                       " with sizes ", tensor.sizes(), " and strides ", tensor.strides(),
                       ", expected a dense tensor of a floating dtype"),
          "make it one, or reduce its gradient by hand (comm::all_reduce)");
    }
    trained.push_back(parameter);
  }
  if (trained.empty()) {
    throw UsageError(join_message("gradient reducer: none of ", parameters.size(),
                                  " parameters requires gradients"),
                     "make it after set_requires_grad(true)");
  }
  return trained;
}

// Returns true if a gradient can be reduced. `place` is its slice of the bucket, undefined in a
// group of one.
bool is_usable(const at::Tensor& gradient, const at::Tensor& parameter, const at::Tensor& place) {
  const at::Tensor& like = place.defined() ? place : parameter;
  return gradient.layout() == at::kStrided && gradient.sizes() == parameter.sizes() &&
         gradient.scalar_type() == parameter.scalar_type() && gradient.sizes() == like.sizes() &&
         gradient.scalar_type() == like.scalar_type() && gradient.device() == like.device() &&
         at::has_internal_overlap(gradient) != at::MemOverlap::Yes;
}

}  // namespace

GradientReducer::GradientReducer(const torch::OrderedDict<std::string, at::Tensor>& parameters,
                                 comm::Group group, const GradientReducerOptions& options)
    : impl_(std::make_unique<Impl>()) {
  const at::NoGradGuard no_grad;
  comm::check_given(group, "GradientReducer");
  impl_->group = std::move(group);
  detail::check_same_text("options of GradientReducer", describe(options), impl_->group);
  validate(options);
  const std::vector<NamedTensor> all = detail::named_tensors(parameters);
  if (auto* const predicted = detail::PredictedStep::of_process()) {
    predicted->begin(nullptr, all, {.bucket_bytes = options.bucket_bytes}, impl_->group,
                     PlanEntry::kParallelize);
    return;
  }
  detail::check_same_on_all_ranks(all, "parameter", impl_->group);
  for (const NamedTensor& parameter : trained_of(all)) {
    impl_->slots.push_back({.parameter = parameter, .sum = {}});
  }
  impl_->make_buckets(options);
}

GradientReducer::GradientReducer(const torch::nn::Module& module, comm::Group group,
                                 const GradientReducerOptions& options)
    : GradientReducer(module.named_parameters(), std::move(group), options) {}

GradientReducer::GradientReducer(GradientReducer&&) noexcept = default;
GradientReducer& GradientReducer::operator=(GradientReducer&&) noexcept = default;
GradientReducer::~GradientReducer() = default;

void GradientReducer::reduce() {
  if (detail::PredictedStep::of_process() != nullptr) return;
  const at::NoGradGuard no_grad;
  impl_->count_own();
  comm::Work counting = comm::all_reduce_async(impl_->exchanged, impl_->group, comm::ReduceOp::kSum,
                                               "used parameters");
  for (Impl::Bucket& bucket : impl_->buckets) impl_->launch(bucket);
  counting.wait();
  impl_->num_users.copy_(impl_->exchanged);
  impl_->refuse_unusable();
  for (Impl::Bucket& bucket : impl_->buckets) {
    bucket.work.wait();
    impl_->hand_out(bucket);
  }
}

void GradientReducer::Impl::make_buckets(const GradientReducerOptions& options) {
  const bool is_alone = group.size() == 1;
  const bool is_sum = options.reduction == GradientReduction::kSum;
  const auto degree = static_cast<double>(options.degree == 0 ? group.size() : options.degree);

  std::vector<NamedTensor> parameters;
  for (const Slot& slot : slots) parameters.push_back(slot.parameter);
  std::vector<std::size_t> order(slots.size());
  std::iota(order.begin(), order.end(), 0);
  for (const detail::BucketLayout& layout :
       detail::assign_buckets(parameters, order, options.bucket_bytes, options.bucket_bytes)) {
    const at::TensorOptions memory_options =
        parameters[layout.places.front().tensor].tensor.options().requires_grad(false);
    double predivide = is_alone ? 1 : options.predivide;
    if (predivide == 1 && !is_sum) {
      const at::ScalarType type = memory_options.dtype().toScalarType();
      predivide = detail::predivisor_of(type, group.size());
    }
    const double divisor = is_sum ? 1 : degree / predivide;
    Bucket& bucket = buckets.emplace_back();
    if (predivide != 1) bucket.predivisor = detail::divisor_for(memory_options, predivide);
    if (divisor != 1) bucket.divisor = detail::divisor_for(memory_options, divisor);
    bucket.label = join_message("gradient bucket ", buckets.size() - 1);
    for (const auto& place : layout.places) bucket.slots.push_back(place.tensor);
    if (is_alone) continue;
    bucket.memory = comm::zeros_registered({layout.elements}, memory_options, group);
    for (const auto& [index, offset] : layout.places) {
      const at::Tensor& parameter = slots[index].parameter.tensor;
      slots[index].sum =
          detail::slice_of(bucket.memory, offset, parameter.sizes(), parameter.strides());
    }
  }

  const auto count = static_cast<std::int64_t>(slots.size());
  const at::TensorOptions count_options =
      parameters.front().tensor.options().requires_grad(false).dtype(at::kFloat);
  exchanged = comm::zeros_registered({count}, count_options, group);
  num_users = exchanged.is_cpu() ? exchanged : at::zeros({count}, at::kFloat);
}

void GradientReducer::Impl::count_own() {
  auto* counts = num_users.mutable_data_ptr<float>();
  for (const auto& [parameter, sum] : slots) {
    const at::Tensor& gradient = parameter.tensor.grad();
    const float present = gradient.defined() ? 1 : 0;
    *counts++ =
        !gradient.defined() || is_usable(gradient, parameter.tensor, sum) ? present : kUnusable;
  }
  exchanged.copy_(num_users);
}

void GradientReducer::Impl::launch(Bucket& bucket) {
  if (!bucket.memory.defined()) return;
  for (const std::size_t index : bucket.slots) {
    const Slot& slot = slots[index];
    const at::Tensor& gradient = slot.parameter.tensor.grad();
    if (gradient.defined() && is_usable(gradient, slot.parameter.tensor, slot.sum)) {
      detail::divide(slot.sum, gradient, bucket.predivisor);
    } else {
      slot.sum.zero_();
    }
  }
  bucket.work = comm::all_reduce_async(bucket.memory, group, comm::ReduceOp::kSum, bucket.label);
}

void GradientReducer::Impl::refuse_unusable() {
  const auto* counts = num_users.const_data_ptr<float>();
  const auto* found =
      std::find_if(counts, counts + slots.size(), [](float count) { return count >= kUnusable; });
  if (found == counts + slots.size()) return;
  for (Bucket& bucket : buckets) bucket.work.wait();  // the next reduce() writes to their memory
  const auto& [item, sum] = slots[static_cast<std::size_t>(found - counts)];
  const at::Tensor& parameter = item.tensor;
  const at::Tensor& gradient = parameter.grad();
  const bool is_own = gradient.defined() && !is_usable(gradient, parameter, sum);
  throw UsageError(
      join_message("parameter ", item.name, " (sizes ", parameter.sizes(), ", ",
                   parameter.scalar_type(), ") has a gradient that cannot be reduced, ",
                   is_own
                       ? join_message("of layout ", gradient.layout(), ", sizes ", gradient.sizes(),
                                      ", ", gradient.scalar_type(), " on ", gradient.device())
                       : std::string("on another rank")),
      "gradients must be dense, like their parameters, which are not cast or moved, and without "
      "elements that share memory; build embeddings without sparse gradients. No gradient was "
      "changed");
}

// Writes the sums, divided, into the parameters' gradients.
void GradientReducer::Impl::hand_out(Bucket& bucket) {
  const auto* counts = num_users.const_data_ptr<float>();
  for (const std::size_t index : bucket.slots) {
    if (counts[index] == 0) continue;
    const auto& [parameter, sum] = slots[index];
    at::Tensor& gradient = parameter.tensor.mutable_grad();
    if (!gradient.defined()) gradient = at::empty_like(parameter.tensor);
    detail::divide(gradient, sum.defined() ? sum : gradient, bucket.divisor);
  }
}

}  // namespace trireme
