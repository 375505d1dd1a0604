// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/recompute/recompute.h>

#include <trireme/base/error.h>
#include <trireme/parallel/recompute/recomputed_region.h>

#include <ATen/core/grad_mode.h>

namespace trireme::detail {

std::vector<at::Tensor> recompute_all(ManyToMany function, const std::vector<at::Tensor>& inputs,
                                      RecomputeOptions options) {
  if (!function) {
    throw UsageError("recompute was given an empty function", "give it one that can be called");
  }
  if (!at::GradMode::is_enabled()) return function(inputs);
  const auto region = std::make_shared<Region>(std::move(function), inputs, std::move(options));
  return region->run(inputs);
}

at::Tensor recompute_one(OneToOne function, const at::Tensor& input, RecomputeOptions options) {
  ManyToMany many;
  if (function) {
    many = [one = std::move(function)](const std::vector<at::Tensor>& inputs) {
      return std::vector<at::Tensor>{one(inputs.front())};
    };
  }
  return recompute_all(std::move(many), {input}, std::move(options)).front();
}

}  // namespace trireme::detail
