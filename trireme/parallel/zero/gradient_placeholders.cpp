// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/zero/gradient_placeholders.h>

#include <trireme/base/error.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/StorageImpl.h>

namespace trireme::detail {
namespace {

constexpr auto kWhatHappened =
    "the gradient of a parameter was used, which no rank has whole: the plan cuts it, and the "
    "optimizer has this rank's part";
constexpr auto kWhatToDo =
    "call trireme::clip_by_global_norm(optimizer, max_norm, parallelized.sharing()) in place of "
    "torch::nn::utils::clip_grad_norm_ (from Python parallel.clip_grad_norm_(max_norm)), "
    "global_norm of the same to look at gradients, and zero_grad() of the optimizer";

at::Tensor without_memory(const at::Tensor& parameter) {
  at::Tensor made = at::empty({0}, parameter.options().requires_grad(false));
  made.unsafeGetTensorImpl()->set_sizes_and_strides(parameter.sizes(), parameter.strides());
  // data_ptr() and accessors read the pointer without calling an operator, so it must throw too.
  made.storage().unsafeGetStorageImpl()->release_data_and_set_meta_custom_data_ptr_error_msg_(
      join_message(kWhatHappened, "; ", kWhatToDo));
  return made;
}

}  // namespace

GradientPlaceholders::GradientPlaceholders(const std::vector<NamedTensor>& parameters) {
  const at::NoGradGuard no_grad;
  for (const NamedTensor& parameter : parameters) {
    all_.push_back({parameter, without_memory(parameter.tensor)});
    const at::Tensor& gradient = all_.back().gradient;
    names_[gradient.storage().unsafeGetStorageImpl()] = parameter.name;
    watch(gradient, *this);
  }
}

GradientPlaceholders::~GradientPlaceholders() {
  clear();
  for (const Placeholder& placeholder : all_) unwatch(placeholder.gradient.storage());
}

void GradientPlaceholders::show(std::size_t parameter) {
  at::Tensor& gradient = all_[parameter].parameter.tensor.mutable_grad();
  if (gradient.is_same(all_[parameter].gradient)) return;
  gradient = all_[parameter].gradient;
  ++num_shown_;
  expect_accesses(true);
}

void GradientPlaceholders::clear(std::size_t parameter) {
  if (num_shown_ == 0) return;
  at::Tensor& gradient = all_[parameter].parameter.tensor.mutable_grad();
  if (!gradient.defined() || !gradient.has_storage()) return;
  // Compares addresses, because is_alias_of() would access memory that does not exist.
  const auto storage_of = [](const at::Tensor& tensor) {
    return tensor.storage().unsafeGetStorageImpl();
  };
  if (storage_of(gradient) == storage_of(all_[parameter].gradient)) gradient.reset();
}

void GradientPlaceholders::clear() {
  if (num_shown_ == 0) return;
  for (std::size_t parameter = 0; parameter < all_.size(); ++parameter) clear(parameter);
  for (int shown = num_shown_.exchange(0); shown > 0; --shown) expect_accesses(false);
}

void GradientPlaceholders::on_access(std::span<const TensorAccess> all) {
  if (operator_accessing() == "aten::detach") return;  // called by zero_grad(); reads no memory
  throw UsageError(
      join_message("the gradient of parameter ", names_.at(all.front().storage),
                   " was used, which no rank has whole: the plan cuts it, and the optimizer has "
                   "this rank's part"),
      kWhatToDo);
}

}  // namespace trireme::detail
