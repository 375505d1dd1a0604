// SPDX-License-Identifier: Apache-2.0
// Rules of softmax, log_softmax and logsumexp. Any dim may be sharded. Along the dim of the
// operator itself, ranks exchange maxima and sums of rows, never the rows.
#include <trireme/tensor/rules/across.h>
#include <trireme/tensor/rules/families.h>
#include <trireme/tensor/rules/reduced.h>
#include <trireme/tensor/rules/sizes.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/squeeze.h>
#include <ATen/ops/sum.h>

#include <limits>
#include <string_view>
#include <utility>
#include <vector>

namespace trireme::tensor {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Rows along `dims`, of which each rank has a part.
struct Rows {
  std::vector<std::int64_t> dims;
  DeviceMesh mesh;
  Axes axes;
  std::string_view name;

  Rows(const LocalCall& call, std::vector<std::int64_t> along)
      : dims(std::move(along)),
        mesh(call.input_layout(0).mesh()),
        axes(axes_that_cut(call.input_layout(0), dims)),
        name(call.call().name()) {}

  // Returns the largest element of every row; dims are kept.
  at::Tensor maxima(const at::Tensor& local) const {
    std::vector<std::int64_t> sizes(local.sizes().begin(), local.sizes().end());
    bool has_elements = true;
    for (const std::int64_t dim : dims) {
      has_elements = has_elements && local.size(dim) > 0;
      sizes[static_cast<std::size_t>(dim)] = 1;
    }
    const at::Tensor own = has_elements ? at::amax(local, dims, /*keepdim=*/true)
                                        : at::full(sizes, -kInfinity, local.options());
    return reduced_across(own, mesh, axes, comm::ReduceOp::kMaximum, name);
  }

  at::Tensor sums(const at::Tensor& local) const {
    return reduced_across(at::sum(local, dims, /*keepdim=*/true), mesh, axes, comm::ReduceOp::kSum,
                          name);
  }
};

void give(LocalCall& call, const at::Tensor& result) {
  call.give({result.to(call.call().output(0).scalar_type())});
}

void softmax(LocalCall& call) {
  const Rows rows(call, {dim_of(call.call())});
  const at::Tensor input = widened(call.tensor(0).to(call.call().output(0).scalar_type()));
  const at::Tensor exponentials = (input - rows.maxima(input)).exp_();
  give(call, exponentials / rows.sums(exponentials));
}

// Like softmax, but rows that are entirely -inf give zeros instead of NaN.
void safe_softmax(LocalCall& call) {
  const Rows rows(call, {dim_of(call.call())});
  const at::Tensor input = widened(call.tensor(0).to(call.call().output(0).scalar_type()));
  const at::Tensor maxima = rows.maxima(input);
  const at::Tensor exponentials = (input - maxima).exp_();
  const at::Tensor result = exponentials / rows.sums(exponentials);
  give(call, result.masked_fill(maxima == -kInfinity, 0));
}

void log_softmax(LocalCall& call) {
  const Rows rows(call, {dim_of(call.call())});
  const at::Tensor input = widened(call.tensor(0));
  const at::Tensor shifted = input - rows.maxima(input);
  give(call, shifted - rows.sums(shifted.exp()).log_());
}

// Computes y (g - sum of g y).
void softmax_backward(LocalCall& call) {
  const Rows rows(call, {dim_of(call.call())});
  const at::Tensor output = widened(call.tensor(1));
  const at::Tensor weighted = widened(call.tensor(0)) * output;
  give(call, weighted - output * rows.sums(weighted));
}

// Computes g - e^y (sum of g).
void log_softmax_backward(LocalCall& call) {
  const Rows rows(call, {dim_of(call.call())});
  const at::Tensor grad = widened(call.tensor(0));
  give(call, grad - widened(call.tensor(1)).exp() * rows.sums(grad));
}

void logsumexp(LocalCall& call) {
  const Call& global_call = call.call();
  const Rows rows(call, dims_of(global_call.argument(1), global_call.input(0).dim()));
  const at::Tensor input = widened(call.tensor(0).to(global_call.output(0).scalar_type()));
  at::Tensor maxima = rows.maxima(input);
  maxima = maxima.masked_fill(maxima.abs() == kInfinity, 0);
  const at::Tensor result = rows.sums((input - maxima).exp_()).log_() + maxima;
  give(call, global_call.boolean(2) ? result : at::squeeze(result, rows.dims));
}

// Forward reduces maxima and sums, backward sums. log_softmax sums in the dtype of its input.
void row_exchanges(const DecidedCall& decided, std::vector<Exchange>& exchanges) {
  const Call& call = decided.call;
  const bool is_backward = call.name().ends_with("_backward_data");
  const bool is_of_input = is_backward || call.name() == "aten::_log_softmax";
  const at::Tensor& summed = is_of_input ? call.input(0) : call.output(0);
  add_row_reductions(decided, 0, dim_of(call), is_backward ? 1 : 2, wide_type(summed.scalar_type()),
                     exchanges);
}

// `is_linear` is true for a backward, which is linear in its first input.
Rule along_rows(LocalKernel kernel, bool is_linear) {
  return {.strategies =
              [kernel, is_linear](const AxisCall& axis, std::vector<Strategy>& strategies) {
                const Call& call = axis.call;
                const std::int64_t along = dim_of(call);
                for (std::int64_t dim = 0; dim < call.input(0).dim(); ++dim) {
                  const Placement cut = Shard{static_cast<int>(dim)};
                  strategies.push_back(alike(call, cut, cut));
                  if (dim == along) strategies.back().kernel = kernel;
                }
                if (!is_linear) return;
                Strategy& partial = strategies.emplace_back(whole_inputs(call));
                partial.inputs.front() = Partial{};
                partial.outputs = {Partial{}};
              },
          .exchanges = row_exchanges};
}

std::vector<at::Tensor> safe_softmax_shape(const Call& call) {
  const at::Tensor& input = call.input(0);
  const int dtype = call.position("dtype");
  if (call.is_none(dtype)) return {at::empty_like(input)};
  return {input.new_empty(input.sizes(), call.argument(dtype).toScalarType())};
}

void logsumexp_strategies(const AxisCall& axis, std::vector<Strategy>& strategies) {
  const Call& call = axis.call;
  const std::int64_t num_dims = call.input(0).dim();
  const Reduced reduced = reduced_by(call);
  for (std::int64_t dim = 0; dim < num_dims; ++dim) {
    const Placement cut = Shard{static_cast<int>(dim)};
    if (reduced.has(dim)) {
      strategies.push_back(alike(call, cut, Replicate{}));
      strategies.back().kernel = logsumexp;
      continue;
    }
    strategies.push_back(alike(call, cut, Shard{reduced.place(dim)}));
  }
}

void logsumexp_exchanges(const DecidedCall& decided, std::vector<Exchange>& exchanges) {
  const Call& call = decided.call;
  add_row_reductions(decided, 0, reduced_by(call).dims, 2, wide_type(call.output(0).scalar_type()),
                     exchanges);
}

std::vector<at::Tensor> logsumexp_shape(const Call& call) {
  const at::Tensor& input = call.input(0);
  const at::ScalarType type = at::isIntegralType(input.scalar_type(), /*includeBool=*/true)
                                  ? at::typeMetaToScalarType(at::get_default_dtype())
                                  : input.scalar_type();
  return {at::sum(input, dims_of(call.argument(1), input.dim()), call.boolean(2), type)};
}

}  // namespace

void add_softmax_rules(NamedRules& rules) {
  FamilyRules family(rules, "softmax");
  family.add("_softmax", along_rows(softmax, false));
  family.add("_log_softmax", along_rows(log_softmax, false));
  family.add("_softmax_backward_data", along_rows(softmax_backward, true));
  family.add("_log_softmax_backward_data", along_rows(log_softmax_backward, true));
  Rule safe = along_rows(safe_softmax, false);
  safe.shapes = safe_softmax_shape;
  family.add("_safe_softmax", std::move(safe));
  family.add("logsumexp", {.strategies = logsumexp_strategies,
                           .shapes = logsumexp_shape,
                           .exchanges = logsumexp_exchanges});
}

}  // namespace trireme::tensor
