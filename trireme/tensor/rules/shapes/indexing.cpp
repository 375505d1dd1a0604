// SPDX-License-Identifier: Apache-2.0
// Rules of reading and writing at indices and masks. Tensors may be sharded along dims that are not
// indexed, and indices along their own dims.
#include <trireme/tensor/rules/einsum_rule.h>
#include <trireme/tensor/rules/families.h>
#include <trireme/tensor/rules/sizes.h>

#include <ATen/ExpandUtils.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <string>

namespace trireme::tensor {
namespace {

// What `tensor[indices]` does to dims, as letters.
struct Indexing {
  std::vector<std::int64_t> shape;      // broadcast shape of the indices
  std::string of_self;                  // letters of the tensor
  std::vector<std::string> of_indices;  // letters of the given indices
  std::string of_result;
  bool has_mask = false;  // the shape of the result depends on values
};

bool is_mask(const at::Tensor& index) {
  return index.scalar_type() == at::kBool || index.scalar_type() == at::kByte;
}

// Returns letters for the dims of the indices: a, b, … from the last dim.
std::string letters_from_end(std::int64_t num_dims) {
  std::string letters;
  for (std::int64_t dim = 0; dim < num_dims; ++dim) {
    letters.push_back(static_cast<char>('a' + (num_dims - 1 - dim)));
  }
  return letters;
}

Indexing indexing_of(const Call& call) {
  Indexing it;
  const at::Tensor& self = call.input(0);
  const auto list = call.argument(1).toListRef();
  const auto given = [&](std::size_t i) {
    return list[i].isTensor() && list[i].toTensor().defined();
  };
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (!given(i)) continue;
    const at::Tensor& index = list[i].toTensor();
    it.has_mask = it.has_mask || is_mask(index);
    it.shape =
        is_mask(index) ? at::infer_size(it.shape, {1}) : at::infer_size(it.shape, index.sizes());
  }
  it.of_self = letters_for(self.dim());
  const std::string shape_letters =
      it.has_mask ? std::string(it.shape.size(), '.')
                  : letters_from_end(static_cast<std::int64_t>(it.shape.size()));
  // Adjacent indices put their shape in their own place, separate ones at the front.
  std::size_t dim = 0;
  std::size_t first = 0;
  std::size_t next = 0;
  bool is_seen = false;
  bool is_together = true;
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (!given(i)) {
      ++dim;
      continue;
    }
    const at::Tensor& index = list[i].toTensor();
    const auto num_taken = is_mask(index) ? static_cast<std::size_t>(index.dim()) : std::size_t{1};
    if (!is_seen) first = dim;
    if (is_seen && dim != next) is_together = false;
    is_seen = true;
    for (std::size_t taken = 0; taken < num_taken; ++taken) it.of_self[dim + taken] = '.';
    dim += num_taken;
    next = dim;
    it.of_indices.push_back(is_mask(index) ? std::string(num_taken, '.')
                            : it.has_mask  ? std::string(static_cast<std::size_t>(index.dim()), '.')
                                           : letters_from_end(index.dim()));
  }
  std::string untouched;
  for (std::size_t d = 0; d < it.of_self.size(); ++d) {
    if (is_together && d == first) untouched += shape_letters;
    if (it.of_self[d] != '.') untouched.push_back(it.of_self[d]);
  }
  it.of_result = is_together ? untouched : shape_letters + untouched;
  return it;
}

Contraction reading_terms(const Call& call, const Indexing& it) {
  Contraction terms = {.inputs = {{it.of_self}}, .outputs = {{it.of_result}}, .linear = {0}};
  for (const std::string& letters : it.of_indices) terms.inputs.push_back({letters});
  if (call.num_outputs() == 0) terms = {};
  return terms;
}

Indices index_indices(const Call& call) { return {reading_terms(call, indexing_of(call))}; }

std::vector<at::Tensor> index_shape(const Call& call) {
  const Indexing it = indexing_of(call);
  if (it.has_mask) return {};
  std::vector<std::int64_t> sizes;
  for (const char letter : it.of_result) {
    const std::size_t dim = it.of_self.find(letter);
    sizes.push_back(dim != std::string::npos
                        ? call.input(0).size(static_cast<std::int64_t>(dim))
                        : it.shape[it.shape.size() - 1 - static_cast<std::size_t>(letter - 'a')]);
  }
  return {call.input(0).new_empty(sizes)};
}

// Returns true for one value and a mask of the whole tensor, which works element by element.
bool fills_where_masked(const Call& call) {
  return call.num_inputs() == 3 && is_mask(call.input(1)) &&
         call.input(1).sizes() == call.input(0).sizes() && call.input(2).numel() == 1;
}

Indices index_put_indices(const Call& call) {
  const int values = call.num_inputs() - 1;
  if (fills_where_masked(call)) {
    const std::string letters = letters_for(call.input(0).dim());
    const std::string value = std::string(static_cast<std::size_t>(call.input(2).dim()), '.');
    return {{.inputs = {{letters}, {letters}, {value}}, .outputs = {{letters}}}};
  }
  const Indexing it = indexing_of(call);
  Contraction terms = {.inputs = {{it.of_self}}, .outputs = {{it.of_self}}};
  for (const std::string& letters : it.of_indices) {
    terms.inputs.push_back({std::string(letters.size(), '.')});
  }
  // Values are broadcast from the right to the shape that reading would give.
  std::string letters = it.of_result;
  for (char& letter : letters) {
    if (it.of_self.find(letter) == std::string::npos) letter = '.';
  }
  const auto num_dims = static_cast<std::size_t>(call.input(values).dim());
  const std::size_t shorter = std::min(num_dims, letters.size());
  letters = std::string(num_dims - shorter, '.') + letters.substr(letters.size() - shorter);
  terms.inputs.push_back({letters});
  return {.terms = terms, .together = {0, values}};
}

// take reads at positions in the flattened tensor.
Indices take_indices(const Call& call) {
  const std::string letters = letters_for(call.input(1).dim());
  return {{.inputs = {{std::string(static_cast<std::size_t>(call.input(0).dim()), '.')}, {letters}},
           .outputs = {{letters}},
           .linear = {0}}};
}

Indices take_backward_indices(const Call& call) {
  const std::string letters = letters_for(call.input(0).dim());
  const auto dots = [](const at::Tensor& tensor) {
    return std::string(static_cast<std::size_t>(tensor.dim()), '.');
  };
  const bool is_aligned = call.input(0).sizes() == call.input(2).sizes();
  if (!is_aligned) return {};
  return {.terms = {.inputs = {{letters}, {dots(call.input(1))}, {letters}},
                    .outputs = {{dots(call.output(0)), {0, 2}}},
                    .linear = {0}},
          .unread = {1}};
}

void take_backward(LocalCall& call) {
  const at::Tensor grad = call.tensor(0);
  at::Tensor result = at::zeros(call.output_sizes(0), grad.options());
  if (grad.numel() > 0) result.put_(call.tensor(2), grad, /*accumulate=*/true);
  call.give({result});
}

// These operators use elements in the order of the flattened tensor, so nothing is sharded.
std::vector<at::Tensor> broadcast_shape(const Call& call) {
  if (call.is_in_place()) return {call.input(0)};
  return {call.input(0).new_empty(at::infer_size(call.input(0).sizes(), call.input(1).sizes()))};
}

std::vector<at::Tensor> masked_select_backward_shape(const Call& call) {
  return {call.input(0).new_empty(at::infer_size(call.input(1).sizes(), call.input(2).sizes()))};
}

std::vector<at::Tensor> masked_scatter_backward_shape(const Call& call) {
  return {call.input(0).new_empty(call.integers(2))};
}

// isin compares each element with values that are whole.
Indices isin_indices(const Call& call) {
  Indices indices;
  for (int i = 0; i < call.num_inputs(); ++i) {
    const auto num_dims = call.input(i).dim();
    indices.terms.inputs.push_back({call.argument_of(i) == 0
                                        ? letters_for(num_dims)
                                        : std::string(static_cast<std::size_t>(num_dims), '.')});
  }
  const bool has_elements = call.argument_of(0) == 0;
  indices.terms.outputs = {{has_elements ? letters_for(call.output(0).dim()) : std::string()}};
  return indices;
}

}  // namespace

void add_indexing_rules(NamedRules& rules) {
  FamilyRules family(rules, "indexing");
  family.add({"index", "_unsafe_index"}, with_shapes(einsum_rule(index_indices), index_shape));
  family.add({"index_put", "_index_put_impl_", "_unsafe_index_put"},
             with_shapes(einsum_rule(index_put_indices, write_unless_empty), like_first));
  const auto of_index_sizes = [](const Call& call) -> std::vector<at::Tensor> {
    return {call.input(0).new_empty(call.input(1).sizes())};
  };
  family.add("take", with_shapes(einsum_rule(take_indices), of_index_sizes));
  family.add("take_backward",
             with_shapes(einsum_rule(take_backward_indices, take_backward), of_index_sizes));
  family.add("put", with_shapes(whole_rule(), like_first));
  family.add("masked_scatter", with_shapes(whole_rule(), broadcast_shape));
  family.add("masked_select_backward", with_shapes(whole_rule(), masked_select_backward_shape));
  family.add("masked_scatter_backward", with_shapes(whole_rule(), masked_scatter_backward_shape));
  family.add({"isin.Tensor_Tensor", "isin.Tensor_Scalar", "isin.Scalar_Tensor"},
             einsum_rule(isin_indices));
  family.add({"masked_select", "nonzero", "nonzero_static"}, local_shape_rule());
}

}  // namespace trireme::tensor
