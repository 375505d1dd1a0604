// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/gradient_reducer.h>

#include <trireme/base/error.h>
#include <trireme/comm/collectives.h>
#include <trireme/parallel/buckets/bucket_layout.h>
#include <trireme/parallel/buckets/data_groups.h>
#include <trireme/parallel/buckets/divide.h>
#include <trireme/parallel/gradients/gradient_buckets.h>
#include <trireme/parallel/module/agreement.h>
#include <trireme/parallel/record/predicted_step.h>

#include <ATen/MemoryOverlap.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <vector>

namespace trireme {

using detail::NamedTensor;

struct GradientReducer::Impl {
  comm::Group group;
  double degree = 1;  // the divisor
  std::vector<NamedTensor> parameters;
  std::optional<detail::GradientBuckets> buckets;  // absent in a group of one
  at::Tensor num_users;  // [parameters] on the CPU: the number of ranks that have a gradient
  at::Tensor exchanged;  // [parameters] on the parameters' device: the same, for the exchange

  void make_buckets(const GradientReducerOptions& options);
  bool is_usable(std::size_t index) const;
  void count_own();
  void refuse_unusable();
  void hand_out(std::size_t index, const at::Tensor& sum, const at::Tensor& divisor);
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
  impl_->parameters = trained_of(all);
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
  Impl& impl = *impl_;
  impl.count_own();
  comm::Work counting =
      comm::all_reduce_async(impl.exchanged, impl.group, comm::ReduceOp::kSum, "used parameters");
  const std::size_t num_buckets = impl.buckets ? impl.buckets->size() : 0;
  for (std::size_t bucket = 0; bucket < num_buckets; ++bucket) {
    impl.buckets->launch_copies(bucket, [&](std::size_t index) {
      return impl.is_usable(index) ? impl.parameters[index].tensor.grad() : at::Tensor();
    });
  }
  counting.wait();
  impl.num_users.copy_(impl.exchanged);
  impl.refuse_unusable();
  for (std::size_t bucket = 0; bucket < num_buckets; ++bucket) {
    impl.buckets->wait(bucket);
    const at::Tensor divisor = impl.buckets->remaining_divisor(bucket, impl.degree);
    for (const std::size_t index : impl.buckets->members(bucket)) {
      impl.hand_out(index, impl.buckets->place_of(index), divisor);
    }
  }
  if (impl.buckets || impl.degree == 1) return;
  for (std::size_t index = 0; index < impl.parameters.size(); ++index) {
    const at::Tensor& gradient = impl.parameters[index].tensor.grad();
    if (!gradient.defined()) continue;
    impl.hand_out(index, gradient, detail::divisor_for(gradient.options(), impl.degree));
  }
}

void GradientReducer::Impl::make_buckets(const GradientReducerOptions& options) {
  const bool is_sum = options.reduction == GradientReduction::kSum;
  if (!is_sum) degree = static_cast<double>(options.degree == 0 ? group.size() : options.degree);
  if (group.size() > 1) {
    // Sums are divided while they are copied out, not by the engine.
    buckets.emplace(
        parameters,
        detail::BucketSums{.reduction = options.reduction, .predivide = options.predivide},
        detail::DataGroups{
            .all = group, .shard = group, .streams = {group}, .shard_streams = {group}},
        nullptr);
    std::vector<std::size_t> order(parameters.size());
    std::iota(order.begin(), order.end(), 0);
    buckets->fill(
        detail::assign_buckets(parameters, order, options.bucket_bytes, options.bucket_bytes),
        /*tail=*/0);
  }
  const auto count = static_cast<std::int64_t>(parameters.size());
  const at::TensorOptions count_options =
      parameters.front().tensor.options().requires_grad(false).dtype(at::kFloat);
  exchanged = comm::zeros_registered({count}, count_options, group);
  num_users = exchanged.is_cpu() ? exchanged : at::zeros({count}, at::kFloat);
}

// Returns true if a parameter has a gradient that can be reduced.
bool GradientReducer::Impl::is_usable(std::size_t index) const {
  const at::Tensor& parameter = parameters[index].tensor;
  const at::Tensor& gradient = parameter.grad();
  const at::Tensor& like = buckets ? buckets->place_of(index) : parameter;
  return gradient.defined() && gradient.layout() == at::kStrided &&
         gradient.sizes() == parameter.sizes() &&
         gradient.scalar_type() == parameter.scalar_type() && gradient.sizes() == like.sizes() &&
         gradient.scalar_type() == like.scalar_type() && gradient.device() == like.device() &&
         at::has_internal_overlap(gradient) != at::MemOverlap::Yes;
}

void GradientReducer::Impl::count_own() {
  auto* counts = num_users.mutable_data_ptr<float>();
  for (std::size_t index = 0; index < parameters.size(); ++index) {
    const bool has_any = parameters[index].tensor.grad().defined();
    counts[index] = is_usable(index) ? 1 : has_any ? kUnusable : 0;
  }
  exchanged.copy_(num_users);
}

void GradientReducer::Impl::refuse_unusable() {
  const auto* counts = num_users.const_data_ptr<float>();
  const auto* end = counts + parameters.size();
  const auto* found = std::find_if(counts, end, [](float count) { return count >= kUnusable; });
  if (found == end) return;
  if (buckets) {  // the next reduce() writes to their memory
    for (std::size_t bucket = 0; bucket < buckets->size(); ++bucket) buckets->wait(bucket);
  }
  const auto index = static_cast<std::size_t>(found - counts);
  const at::Tensor& parameter = parameters[index].tensor;
  const at::Tensor& gradient = parameter.grad();
  const bool is_own = gradient.defined() && !is_usable(index);
  throw UsageError(
      join_message("parameter ", parameters[index].name, " (sizes ", parameter.sizes(), ", ",
                   parameter.scalar_type(), ") has a gradient that cannot be reduced, ",
                   is_own
                       ? join_message("of layout ", gradient.layout(), ", sizes ", gradient.sizes(),
                                      ", ", gradient.scalar_type(), " on ", gradient.device())
                       : std::string("on another rank")),
      "gradients must be dense, like their parameters, which are not cast or moved, and without "
      "elements that share memory; build embeddings without sparse gradients. No gradient was "
      "changed");
}

// Writes a sum, divided, into the parameter's gradient.
void GradientReducer::Impl::hand_out(std::size_t index, const at::Tensor& sum,
                                     const at::Tensor& divisor) {
  if (num_users.const_data_ptr<float>()[index] == 0) return;
  const at::Tensor& parameter = parameters[index].tensor;
  at::Tensor& gradient = parameter.mutable_grad();
  if (!gradient.defined()) gradient = at::empty_like(parameter);
  detail::divide(gradient, sum, divisor);
}

}  // namespace trireme
