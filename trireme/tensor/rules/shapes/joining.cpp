// SPDX-License-Identifier: Apache-2.0
// Rules of operators that join, repeat or rearrange tensors. Every dim that passes unchanged may be
// sharded.
#include <trireme/tensor/rules/across.h>
#include <trireme/tensor/rules/einsum_rule.h>
#include <trireme/tensor/rules/families.h>
#include <trireme/tensor/rules/shapes/recut.h>
#include <trireme/tensor/rules/sizes.h>

#include <ATen/ops/diagonal.h>

#include <algorithm>
#include <numeric>
#include <string>

namespace trireme::tensor {
namespace {

std::vector<int> all_inputs(const Call& call) {
  std::vector<int> all(static_cast<std::size_t>(call.num_inputs()));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

std::int64_t dim_argument(const Call& call, std::int64_t num_dims, const char* name = "dim") {
  return wrapped_dim(call.integer(call.position(name)), num_dims);
}

// cat accepts tensors of one dim without elements beside any others; they have no letters.
Indices cat_indices(const Call& call) {
  const std::int64_t num_dims = call.output(0).dim();
  const std::string letters = letters_except(num_dims, {dim_argument(call, num_dims)});
  Indices indices = {.together = all_inputs(call)};
  for (const at::Tensor& input : call.inputs()) {
    indices.terms.inputs.push_back({input.dim() == num_dims ? letters : std::string(".")});
  }
  indices.terms.outputs = {{letters}};
  return indices;
}

Indices stack_indices(const Call& call) {
  const std::int64_t num_dims = call.output(0).dim();
  const std::int64_t dim = dim_argument(call, num_dims);
  std::string letters = letters_for(num_dims - 1);
  Indices indices = {.terms = same_letters(call, letters), .together = all_inputs(call)};
  letters.insert(static_cast<std::size_t>(dim), ".");
  indices.terms.outputs = {{letters}};
  return indices;
}

// The results of a split have the letters of the dims that are not split.
Indices split_indices(const Call& call) {
  const std::int64_t num_dims = call.input(0).dim();
  Indices indices = {same_letters(call, letters_except(num_dims, {dim_argument(call, num_dims)}))};
  indices.terms.linear = {0};
  return indices;
}

Indices repeat_indices(const Call& call) {
  const std::vector<std::int64_t> repeats = call.integers(1);
  const at::Tensor& input = call.input(0);
  const std::size_t added = repeats.size() - static_cast<std::size_t>(input.dim());
  std::string letters = letters_for(input.dim());
  for (std::size_t dim = 0; dim < letters.size(); ++dim) {
    if (repeats[dim + added] != 1) letters[dim] = '.';
  }
  return {.terms = {.inputs = {{letters}},
                    .outputs = {{std::string(added, '.') + letters}},
                    .linear = {0}}};
}

// Rules of operators that rearrange the dims named by an argument.
Rule rearranging(const char* dims_argument) {
  return einsum_rule([dims_argument](const Call& call) {
    const std::int64_t num_dims = call.input(0).dim();
    const std::vector<std::int64_t> given = call.integers(call.position(dims_argument));
    std::vector<std::int64_t> dims(given);
    // A roll without dims is a roll of the flattened tensor.
    if (given.empty() && call.name() == "aten::roll") dims = dims_of({}, num_dims);
    Indices indices = {same_letters(call, letters_except(num_dims, dims))};
    indices.terms.linear = {0};
    return indices;
  });
}

std::vector<at::Tensor> rotated_shape(const Call& call) {
  const bool is_turned = call.integer(1) % 2 != 0;
  const std::vector<std::int64_t> dims = call.integers(2);
  return {is_turned ? call.input(0).transpose(dims[0], dims[1]) : call.input(0)};
}

// Returns the number of the diagonal relative to the first element of this rank's part.
std::int64_t local_diagonal(c10::IntArrayRef sizes, const Layout& layout,
                            c10::IntArrayRef coordinate, std::int64_t diagonal) {
  const auto extents = local_extents(sizes, layout, coordinate);
  const std::size_t last = extents.size() - 1;
  return diagonal + extents[last - 1].offset - extents[last].offset;
}

Rule triangle() {
  Rule rule = einsum_rule([](const Call& call) {
    Indices indices = {same_letters(call, letters_for(call.input(0).dim()))};
    indices.terms.linear = {0};
    return indices;
  });
  rule.local_arguments = [](const Call& call, c10::ArrayRef<Layout> outputs,
                            c10::IntArrayRef coordinate,
                            std::vector<std::pair<int, c10::IValue>>& replaced) {
    replaced.emplace_back(
        1, local_diagonal(call.output(0).sizes(), outputs[0], coordinate, call.integer(1)));
  };
  return rule;
}

Indices trace_indices(const Call&) {
  return {.terms = {.inputs = {{"mn"}}, .outputs = {{""}}, .linear = {0}}};
}

void trace_of_part(LocalCall& call) {
  const Layout& layout = call.input_layout(0);
  const std::int64_t diagonal =
      local_diagonal(call.input_sizes(0), layout, layout.mesh().coordinate(), 0);
  const at::Tensor local = call.tensor(0);
  const bool is_beside = diagonal >= local.size(1) || -diagonal >= local.size(0);
  call.give({is_beside
                 ? output_of_empty_part(call, 0)
                 : at::diagonal(local, diagonal).sum().to(call.call().output(0).scalar_type())});
}

// diag_embed makes a matrix of each vector along the last dim. The dims of the matrix are not
// sharded.
Indices diag_embed_indices(const Call& call) {
  const std::int64_t num_dims = call.output(0).dim();
  const std::int64_t first = dim_argument(call, num_dims, "dim1");
  const std::int64_t second = dim_argument(call, num_dims, "dim2");
  const std::string leading = letters_for(num_dims - 2);
  std::string letters = leading;
  letters.insert(static_cast<std::size_t>(std::min(first, second)), ".");
  letters.insert(static_cast<std::size_t>(std::max(first, second)), ".");
  return {.terms = {.inputs = {{leading + "."}}, .outputs = {{letters}}, .linear = {0}}};
}

// Returns the letters of a diagonal: the other dims in order, and then the diagonal.
std::string without_diagonal(const Call& call, const std::string& letters) {
  const auto num_dims = static_cast<std::int64_t>(letters.size());
  const std::int64_t first = dim_argument(call, num_dims, "dim1");
  const std::int64_t second = dim_argument(call, num_dims, "dim2");
  std::string input_letters;
  for (std::int64_t dim = 0; dim < num_dims; ++dim) {
    if (dim != first && dim != second)
      input_letters.push_back(letters[static_cast<std::size_t>(dim)]);
  }
  return input_letters + ".";
}

std::string matrix_letters(const Call& call) {
  const std::int64_t num_dims = call.output(0).dim();
  return letters_except(
      num_dims, {dim_argument(call, num_dims, "dim1"), dim_argument(call, num_dims, "dim2")});
}

Indices diagonal_backward_indices(const Call& call) {
  const std::string letters = matrix_letters(call);
  return {.terms = {.inputs = {{without_diagonal(call, letters)}},
                    .outputs = {{letters}},
                    .linear = {0}}};
}

Indices diagonal_scatter_indices(const Call& call) {
  const std::string letters = matrix_letters(call);
  return {
      .terms = {.inputs = {{letters}, {without_diagonal(call, letters)}}, .outputs = {{letters}}},
      .together = {0, 1}};
}

Indices slice_scatter_indices(const Call& call) {
  const std::int64_t num_dims = call.input(0).dim();
  return {.terms = same_letters(call, letters_except(num_dims, {dim_argument(call, num_dims)})),
          .together = {0, 1}};
}

Indices select_scatter_indices(const Call& call) {
  const std::int64_t num_dims = call.input(0).dim();
  const std::int64_t dim = dim_argument(call, num_dims);
  const std::string letters = letters_except(num_dims, {dim});
  std::string input_letters = letters;
  input_letters.erase(static_cast<std::size_t>(dim), 1);
  return {.terms = {.inputs = {{letters}, {input_letters}}, .outputs = {{letters}}},
          .together = {0, 1}};
}

// The gradient of unfold has the elements of a window as its last dim.
Indices unfold_backward_indices(const Call& call) {
  const std::int64_t num_dims = call.output(0).dim();
  const std::string letters = letters_except(num_dims, {dim_argument(call, num_dims)});
  return {.terms = {.inputs = {{letters + "."}}, .outputs = {{letters}}, .linear = {0}}};
}

std::vector<at::Tensor> of_input_sizes(const Call& call) {
  return {call.input(0).new_empty(call.integers(1))};
}

// cross is a product along one dim of three elements.
Indices cross_indices(const Call& call) {
  const std::int64_t num_dims = call.output(0).dim();
  Indices indices = {same_letters(call, letters_except(num_dims, {dim_argument(call, num_dims)}))};
  indices.terms.linear = {0, 1};
  const bool is_broadcast = call.input(0).dim() != call.input(1).dim();
  return is_broadcast ? Indices{} : indices;
}

}  // namespace

void add_joining_rules(NamedRules& rules) {
  FamilyRules family(rules, "joining");
  family.add("cat", with_recut(einsum_rule(cat_indices)));
  family.add({"stack", "_stack"}, einsum_rule(stack_indices));
  family.add({"unsafe_split", "unsafe_split_with_sizes"}, with_recut(einsum_rule(split_indices)));
  family.add("repeat", einsum_rule(repeat_indices));
  family.add({"roll", "flip"}, with_shapes(rearranging("dims"), like_first));
  family.add("rot90", with_shapes(rearranging("dims"), rotated_shape));
  family.add({"tril", "triu"}, triangle());
  family.add("trace", with_shapes(einsum_rule(trace_indices, trace_of_part), [](const Call& call) {
               const bool is_whole_number = at::isIntegralType(call.input(0).scalar_type(), true);
               const at::Tensor number = call.input(0).new_empty({});
               return std::vector<at::Tensor>{is_whole_number ? number.to(at::kLong) : number};
             }));
  family.add("trace_backward", with_shapes(whole_rule(), of_input_sizes));
  family.add("block_diag", whole_rule());
  family.add("diag_embed", einsum_rule(diag_embed_indices));
  family.add("diagonal_backward",
             with_local_sizes(einsum_rule(diagonal_backward_indices), "input_sizes"));
  family.add("diagonal_scatter", with_shapes(einsum_rule(diagonal_scatter_indices), like_first));
  family.add("slice_scatter", with_shapes(einsum_rule(slice_scatter_indices), like_first));
  family.add("select_scatter", with_shapes(einsum_rule(select_scatter_indices), like_first));
  family.add("unfold_backward",
             with_shapes(with_local_sizes(einsum_rule(unfold_backward_indices), "input_sizes"),
                         of_input_sizes));
  family.add("linalg_cross", einsum_rule(cross_indices));
  family.add("repeat_interleave", local_shape_rule());
}

}  // namespace trireme::tensor
