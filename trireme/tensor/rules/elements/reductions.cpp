// SPDX-License-Identifier: Apache-2.0
// Rules of reductions over dims. If a reduced dim is sharded, the result is Partial.
#include <trireme/tensor/rules/families.h>
#include <trireme/tensor/rules/reduced.h>
#include <trireme/tensor/rules/sizes.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/sum.h>

#include <string>

namespace trireme::tensor {
namespace {

// Returns neutral values for a local part without elements, for which the reduction has no value.
void reduce_parts_that_may_be_empty(LocalCall& call) {
  const at::Tensor local = call.tensor(0);
  if (local.numel() != 0) {
    call.call_operator();
    return;
  }
  const bool is_maximum = call.call().name().find("max") != std::string::npos;
  call.give({neutral_values(reduced_by(call.call()).sizes_of(local.sizes()), local.options(),
                            is_maximum ? PartialOp::kMaximum : PartialOp::kMinimum)});
}

// Divides the sum of the part by the number of all elements. The means of parts of different sizes
// would not add up to the mean.
void mean_of_parts(LocalCall& call) {
  const at::Tensor local = call.tensor(0);
  const Reduced reduced = reduced_by(call.call());
  std::int64_t count = 1;
  for (const std::int64_t dim : reduced.dims) {
    if (local.dim() > 0) count *= call.input_sizes(0)[static_cast<std::size_t>(dim)];
  }
  const at::ScalarType dtype = call.call().output(0).scalar_type();
  // A sum in half precision may overflow although the mean does not.
  const bool is_narrow = dtype == at::kHalf || dtype == at::kBFloat16;
  const at::ScalarType wide = is_narrow ? at::kFloat : dtype;
  const at::Tensor sum =
      local.dim() == 0 ? local.to(wide) : at::sum(local, reduced.dims, reduced.keeps_dims, wide);
  call.give({sum.div(static_cast<double>(count)).to(dtype)});
}

std::vector<at::Tensor> shape_of_product(const Call& call) {
  const at::Tensor& input = call.input(0);
  const int dtype = call.position("dtype");
  const bool is_whole_number = at::isIntegralType(input.scalar_type(), /*includeBool=*/true);
  const at::ScalarType type = call.is_none(dtype)
                                  ? (is_whole_number ? at::kLong : input.scalar_type())
                                  : call.argument(dtype).toScalarType();
  return {at::empty(reduced_sizes(call), input.options().dtype(type))};
}

Rule reduction(PartialOp op, LocalKernel kernel = nullptr, bool takes_partial = true) {
  return {.strategies = [op, kernel, takes_partial](const AxisCall& axis,
                                                    std::vector<Strategy>& strategies) {
    const at::Tensor& input = axis.call.input(0);
    const Reduced reduced = reduced_by(axis.call);
    for (std::int64_t dim = 0; dim < input.dim(); ++dim) {
      const Placement cut = Shard{static_cast<int>(dim)};
      Strategy& strategy = strategies.emplace_back();
      strategy.inputs.push_back(cut);
      strategy.outputs.push_back(reduced.has(dim) ? Placement(Partial{op})
                                                  : Placement(Shard{reduced.place(dim)}));
      if (reduced.has(dim)) strategy.kernel = kernel;
    }
    const bool has_same_type = axis.call.output(0).scalar_type() == input.scalar_type();
    if (has_same_type && takes_partial) {
      strategies.push_back(alike(axis.call, Partial{op}, Partial{op}));
    }
  }};
}

}  // namespace

void add_reduction_rules(NamedRules& rules) {
  FamilyRules family(rules, "reductions");
  family.add("sum", reduction(PartialOp::kSum));
  // A NaN in one rank's term must make the whole value NaN, but nansum of the term would drop it.
  family.add("nansum", reduction(PartialOp::kSum, nullptr, /*takes_partial=*/false));
  family.add("mean", reduction(PartialOp::kSum, mean_of_parts));
  Rule product = reduction(PartialOp::kProduct);
  product.shapes = shape_of_product;  // prod has no meta kernel
  family.add("prod", std::move(product));
  family.add({"amax", "max"}, reduction(PartialOp::kMaximum, reduce_parts_that_may_be_empty));
  family.add({"amin", "min"}, reduction(PartialOp::kMinimum, reduce_parts_that_may_be_empty));
  family.add("any", reduction(PartialOp::kMaximum));
  family.add("all", reduction(PartialOp::kMinimum));
}

}  // namespace trireme::tensor
