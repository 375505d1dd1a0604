// SPDX-License-Identifier: Apache-2.0
#include <trireme/data/transform.h>

#include <trireme/base/error.h>
#include <trireme/data/detail/operation.h>
#include <trireme/data/detail/sample_value.h>

#include <ATen/ops/empty.h>

namespace trireme::data {

Transform::Transform(std::string name, Function function)
    : name_(std::move(name)), function_(std::move(function)) {
  if (!function_)
    throw UsageError(join_message("the transform '", name_, "' has no function"), "give one");
}

Transform::Transform(std::shared_ptr<const detail::Operation> operation)
    : name_(operation->name()), operation_(std::move(operation)) {}

at::Tensor Transform::operator()(const at::Tensor& sample, Random& random) const {
  if (!operation_) return function_(sample.clone(), random);
  const detail::Value input = detail::value_of(sample, name_ + ": the sample");
  const detail::Form to = operation_->result(input.form);
  (void)to.bytes();  // Throws if the result is too large.
  at::Tensor output = at::empty(to.sizes, to.dtype);
  operation_->run(input.form, input.data, static_cast<std::byte*>(output.mutable_data_ptr()),
                  random);
  return output;
}

namespace detail {

std::string describe(const Form& form) {
  return join_message(form.dtype, " ", at::IntArrayRef(form.sizes));
}

void Form::fail_too_large() const {
  throw UsageError(join_message("a sample of ", describe(*this), " has more bytes than any memory"),
                   "give smaller sizes");
}

Planes planes_of(const Form& form) {
  if (form.sizes.size() < 2) {
    throw UsageError(join_message("expected an image [..., height, width], got ", describe(form)),
                     "give this column another shape first");
  }
  const std::int64_t height = form.sizes[form.sizes.size() - 2];
  const std::int64_t width = form.sizes.back();
  const std::int64_t plane = height * width;
  return {plane == 0 ? 0 : form.elements() / plane, height, width};
}

}  // namespace detail
}  // namespace trireme::data
