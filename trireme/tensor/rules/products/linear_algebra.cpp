// SPDX-License-Identifier: Apache-2.0
// Decompositions and solutions of matrices, and Fourier transforms. Leading dims may be sharded,
// and so may dims that are not transformed; matrices stay whole.
#include <trireme/tensor/rules/einsum_rule.h>
#include <trireme/tensor/rules/families.h>
#include <trireme/tensor/rules/sizes.h>

namespace trireme::tensor {
namespace {

constexpr int kNothing = -1;  // marks an output that depends on no input

// Returns letters for the dims before the last two, if all inputs have the same leading dims.
Indices leading_indices(const Call& call) {
  const std::int64_t num_leading = call.input(0).dim() - 2;
  if (num_leading < 1) return {};
  Indices indices;
  for (const at::Tensor& input : call.inputs()) {
    const bool has_leading = input.dim() >= num_leading;
    const auto count = static_cast<std::size_t>(num_leading);
    if (!has_leading || input.sizes().slice(0, count) != call.input(0).sizes().slice(0, count)) {
      return {};
    }
    indices.terms.inputs.push_back({leading_letters(num_leading, input.dim())});
  }
  for (const at::Tensor& output : call.outputs()) {
    const std::int64_t num_dims = output.defined() ? output.dim() : 0;
    // A result that was not asked for has one dim without elements.
    const bool has_leading = num_dims >= num_leading && output.size(0) == call.input(0).size(0);
    if (!has_leading && output.defined() && output.numel() != 0) return {};
    indices.terms.outputs.push_back({leading_letters(has_leading ? num_leading : 0, num_dims)});
    if (!has_leading) indices.terms.outputs.back().made_of = {kNothing};
  }
  return indices;
}

// LibTorch decomposes the transposed matrix if the matrix is contiguous. Its backward reads from
// the whole matrix which of the two it was, so the local matrix must have the same memory order.
void decompose_as_the_whole(LocalCall& call) {
  const bool is_whole_contiguous = call.call().input(0).is_contiguous();
  const at::Tensor local = call.tensor(0);
  if (local.is_contiguous() != is_whole_contiguous) {
    call.argument(0) = is_whole_contiguous ? local.contiguous() : local.mT().contiguous().mT();
  }
  run_unless_empty(call);
}

std::vector<at::Tensor> eigen_shapes(const Call& call) {
  const at::Tensor& matrix = call.input(0);
  std::vector<std::int64_t> values(matrix.sizes().begin(), matrix.sizes().end() - 1);
  const auto options = at::TensorOptions().dtype(c10::toComplexType(matrix.scalar_type()));
  std::vector<at::Tensor> shapes = {matrix.new_empty(values, options)};
  if (call.schema().returns().size() == 2)
    shapes.push_back(matrix.new_empty(matrix.sizes(), options));
  return shapes;
}

std::vector<at::Tensor> solution_shape(const Call& call) {
  // A batch on one side is broadcast to the other.
  const at::Tensor& matrices = call.input(0);
  const at::Tensor& right = call.input(1);
  return {matrices.dim() > right.dim() ? at::Tensor(matrices.new_empty(right.sizes())) : right};
}

Indices transform_indices(const Call& call) {
  const std::int64_t num_dims = call.input(0).dim();
  return {same_letters(call, letters_except(num_dims, call.integers(1)))};
}

std::vector<at::Tensor> transformed_shape(const Call& call) {
  const at::Tensor& input = call.input(0);
  std::vector<std::int64_t> sizes(input.sizes().begin(), input.sizes().end());
  const std::vector<std::int64_t> dims = call.integers(1);
  std::int64_t& last = sizes[static_cast<std::size_t>(wrapped_dim(dims.back(), input.dim()))];
  if (call.name() == "aten::_fft_r2c" && call.boolean(3)) last = last / 2 + 1;
  if (call.name() == "aten::_fft_c2r") last = call.integer(3);
  const bool is_real = call.name() == "aten::_fft_c2r";
  const at::ScalarType type =
      is_real ? c10::toRealValueType(input.scalar_type()) : c10::toComplexType(input.scalar_type());
  return {input.new_empty(sizes, at::TensorOptions().dtype(type))};
}

}  // namespace

void add_linear_algebra_rules(NamedRules& rules) {
  FamilyRules family(rules, "linear algebra");
  Rule determinant = einsum_rule(leading_indices);
  determinant.kernel = decompose_as_the_whole;
  family.add({"_linalg_det", "_linalg_slogdet"}, determinant);
  family.add({"linalg_inv_ex", "linalg_cholesky_ex", "_linalg_eigh", "_linalg_svd", "linalg_qr",
              "linalg_lu_factor_ex", "linalg_lu", "linalg_ldl_factor_ex", "lu_unpack",
              "_linalg_solve_ex", "triangular_solve", "linalg_lu_solve", "linalg_ldl_solve"},
             einsum_rule(leading_indices));
  family.add({"linalg_matrix_exp", "cholesky", "cholesky_inverse", "linalg_householder_product",
              "cholesky_solve"},
             with_shapes(einsum_rule(leading_indices), like_first));
  family.add({"linalg_eig", "_linalg_eigvals", "linalg_eigvals"},
             with_shapes(einsum_rule(leading_indices), eigen_shapes));
  family.add("linalg_solve_triangular", with_shapes(einsum_rule(leading_indices), solution_shape));
  family.add({"linalg_lstsq", "linalg_pinv", "linalg_matrix_rank", "geqrf", "ormqr",
              "_linalg_check_errors", "lu_solve"},
             local_shape_rule());
  FamilyRules transforms(rules, "Fourier transforms");
  transforms.add({"_fft_r2c", "_fft_c2c", "_fft_c2r"},
                 with_shapes(einsum_rule(transform_indices), transformed_shape));
}

}  // namespace trireme::tensor
