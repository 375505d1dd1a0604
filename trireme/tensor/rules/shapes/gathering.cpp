// SPDX-License-Identifier: Apache-2.0
// Rules of reading and writing at indices along one dim: gather, scatter, index_select and variants
// that add or copy. Tensors may be sharded along the other dims, and indices along dims of their
// own. Reading from a table that is sharded along the dim looked up gives a Partial sum.
#include <trireme/tensor/rules/across.h>
#include <trireme/tensor/rules/einsum_rule.h>
#include <trireme/tensor/rules/families.h>
#include <trireme/tensor/rules/rule.h>
#include <trireme/tensor/rules/sizes.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/gather.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <string>

namespace trireme::tensor {
namespace {

// Index values relative to this rank's part of a dim.
struct LocalIndex {
  at::Tensor index;       // clamped into the part
  at::Tensor is_here;     // true where the entry is in the part
  bool is_empty = false;  // the part has no entries
};

// In a table that is sharded along the dim looked up, every rank returns the entries that it holds,
// and zeros for the others; the sum over ranks is the result.
// Adds the strategy that shards `table_dim` of the first input, with `kernel`, if the dtype has
// zeros and sums. All other inputs are replicated and the result is Partial.
void add_lookup(const AxisCall& axis, std::int64_t table_dim, LocalKernel kernel,
                std::vector<Strategy>& strategies) {
  const at::Tensor& table = axis.call.input(0);
  if (table.dim() == 0 || table.scalar_type() == at::kBool) return;
  Strategy& strategy = strategies.emplace_back();
  strategy.inputs.assign(static_cast<std::size_t>(axis.call.num_inputs()), Placement(Replicate{}));
  strategy.inputs[0] = Shard{static_cast<int>(table_dim)};
  strategy.outputs.push_back(Partial{});
  strategy.kernel = kernel;
}

// Converts index values that count from the start of `dim` of the first input into values that
// count from the start of this rank's part. Throws IndexError for values out of range.
LocalIndex local_index(const LocalCall& call, const at::Tensor& index, std::int64_t dim) {
  const c10::IntArrayRef sizes = call.input_sizes(0);
  const std::int64_t size = sizes[static_cast<std::size_t>(dim)];
  if (index.is_cpu() && index.numel() > 0) {
    // The local lookup would not notice: it takes a value outside its part for another rank's.
    const auto [lowest, highest] = at::aminmax(index);
    TORCH_CHECK_INDEX(lowest.item<std::int64_t>() >= 0 && highest.item<std::int64_t>() < size,
                      call.call().name(), ": index out of range for dim ", dim, " of size ", size);
  }
  const Extent own = own_extent(sizes, call.input_layout(0), dim);
  const at::Tensor from_start = index - own.offset;
  const at::Tensor is_here = (from_start >= 0).logical_and_(from_start < own.size);
  return {from_start.clamp(0, std::max<std::int64_t>(own.size - 1, 0)), is_here, own.size == 0};
}

// Returns `letters` with another letter at `dim`.
std::string with_letter(std::string letters, std::int64_t dim, char letter) {
  if (!letters.empty()) letters[static_cast<std::size_t>(dim)] = letter;
  return letters;
}

// Returns letters for the dims of self along which the indices have the same size, and `.` for the
// others and for `dim`.
std::string aligned_letters(const at::Tensor& self, const at::Tensor& index, std::int64_t dim) {
  std::string letters = letters_for(self.dim());
  for (std::int64_t d = 0; d < self.dim(); ++d) {
    const bool is_aligned = d != dim && index.dim() == self.dim() && index.size(d) == self.size(d);
    if (!is_aligned) letters[static_cast<std::size_t>(d)] = '.';
  }
  return letters;
}

constexpr char kAlong = 'z';  // the letter of the indices' own dim, along which they select

Indices gather_indices(const Call& call) {
  const std::int64_t dim = dim_of(call);
  const std::string self = aligned_letters(call.input(0), call.input(1), dim);
  const std::string index_letters = with_letter(self, dim, kAlong);
  return {{.inputs = {{self}, {index_letters}}, .outputs = {{index_letters}}, .linear = {0}}};
}

// Gathers from this rank's part. If the dim is sharded, entries of other ranks are zeros.
void gather_from_part(LocalCall& call) {
  const std::int64_t dim = dim_of(call.call());
  if (call.input_layout(0).axes_of(dim).empty()) {
    run_unless_empty(call);
    return;
  }
  const at::Tensor table = call.tensor(0);
  const at::Tensor index = call.tensor(2);
  const LocalIndex local = local_index(call, index, dim);
  if (local.is_empty || index.numel() == 0) {
    call.give({at::zeros(index.sizes(), table.options())});
    return;
  }
  call.give({at::gather(table, dim, local.index).masked_fill_(local.is_here.logical_not(), 0)});
}

Rule gather_rule() {
  const Rule plain = einsum_rule(gather_indices);
  return {.strategies = [plain](const AxisCall& axis, std::vector<Strategy>& all) {
    plain.strategies(axis, all);
    add_lookup(axis, dim_of(axis.call), gather_from_part, all);
    for (Strategy& strategy : all) strategy.kernel = gather_from_part;
  }};
}

// The inputs are grad with the shape of the index, self, and index. Gradients of the same place are
// added.
Indices gather_backward_indices(const Call& call) {
  const int dim_position = call.position("dim");
  const at::Tensor& self = call.input(1);
  const std::int64_t dim = wrapped_dim(call.integer(dim_position), self.dim());
  const std::string letters = aligned_letters(self, call.input(2), dim);
  const std::string index_letters = with_letter(letters, dim, kAlong);
  return {.terms = {.inputs = {{index_letters},
                               {std::string(index_letters.size(), '.')},
                               {index_letters}},
                    .outputs = {{letters, {0, 2}}},
                    .linear = {0}},
          .unread = {1}};
}

void gather_backward(LocalCall& call) {
  const at::Tensor grad = call.tensor(0);
  const at::Tensor index = call.tensor(3);
  const auto sizes = local_output_sizes(call, 0);
  at::Tensor result = at::zeros(sizes, grad.options());
  if (index.numel() > 0) {
    const auto num_dims = static_cast<std::int64_t>(sizes.size());
    result.scatter_add_(wrapped_dim(call.argument(2).toInt(), num_dims), index, grad);
  }
  call.give({result});
}

bool has_source(const Call& call) { return call.num_inputs() > 2; }

// The inputs are self, index, and source unless the source is a number.
Contraction scatter_terms(const Call& call) {
  const std::int64_t dim = dim_of(call);
  std::string letters = aligned_letters(call.input(0), call.input(1), dim);
  Contraction terms = {.inputs = {{letters}, {letters}}, .outputs = {{letters}}};
  if (!has_source(call)) return terms;
  const std::string of_source = aligned_letters(call.input(0), call.input(2), dim);
  for (std::size_t d = 0; d < letters.size(); ++d) {
    if (d >= of_source.size() || of_source[d] == '.') letters[d] = '.';
  }
  return {.inputs = {{letters}, {letters}, {letters}}, .outputs = {{letters}}};
}

Indices scatter_indices(const Call& call) {
  Indices indices = {.terms = scatter_terms(call)};
  const bool replaces = call.position("reduce") < 0;
  if (has_source(call) && replaces) indices.together = {0, 2};
  return indices;
}

Indices scatter_add_indices(const Call& call) {
  Indices indices = {.terms = scatter_terms(call), .together = {0, 2}};
  const at::Tensor& self = call.input(0);
  if (self.dim() == 0) return indices;
  const std::int64_t dim = dim_of(call);
  const bool is_paired = call.input(1).sizes() == call.input(2).sizes();
  if (is_paired && self.scalar_type() != at::kBool) {
    // Each rank may add its part of the sources to a Partial sum.
    for (const std::size_t input : {std::size_t{1}, std::size_t{2}}) {
      std::string& letters = indices.terms.inputs[input].letters;
      letters = with_letter(letters, dim, kAlong);
    }
    indices.terms.added = {0};
  }
  return indices;
}

// index_select: the dim of the index takes the place of `dim`.
Indices index_select_indices(const Call& call) {
  const at::Tensor& self = call.input(0);
  if (self.dim() == 0) return {};
  const std::int64_t dim = dim_of(call);
  const std::string letters = letters_except(self.dim(), {dim});
  const bool is_list = call.input(1).dim() == 1;
  return {{.inputs = {{letters}, {is_list ? std::string(1, kAlong) : std::string()}},
           .outputs = {{is_list ? with_letter(letters, dim, kAlong) : letters}},
           .linear = {0}}};
}

std::vector<at::Tensor> index_select_shape(const Call& call) {
  const at::Tensor& self = call.input(0);
  if (self.dim() == 0) return {self};
  std::vector<std::int64_t> sizes(self.sizes().begin(), self.sizes().end());
  sizes[static_cast<std::size_t>(dim_of(call))] = call.input(1).numel();
  return {self.new_empty(sizes)};
}

// Selects from this rank's part. If the dim is sharded, entries of other ranks are zeros.
void select_from_part(LocalCall& call) {
  const std::int64_t dim = dim_of(call.call());
  if (call.input_layout(0).axes_of(dim).empty()) {
    run_unless_empty(call);
    return;
  }
  const at::Tensor table = call.tensor(0);
  const LocalIndex local = local_index(call, call.tensor(2), dim);
  if (local.is_empty || table.numel() == 0) {
    call.give({at::zeros(local_output_sizes(call, 0), table.options())});
    return;
  }
  at::Tensor found = at::index_select(table, dim, local.index);
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(found.dim()), 1);
  sizes[static_cast<std::size_t>(dim)] = -1;
  call.give({found.masked_fill_(local.is_here.logical_not().view(sizes), 0)});
}

Rule index_select_rule() {
  const Rule plain = einsum_rule(index_select_indices);
  Rule rule = {.strategies = [plain](const AxisCall& axis, std::vector<Strategy>& all) {
    plain.strategies(axis, all);
    if (axis.call.input(0).dim() == 0) return;
    add_lookup(axis, dim_of(axis.call), select_from_part, all);
    for (Strategy& strategy : all) strategy.kernel = select_from_part;
  }};
  return with_shapes(std::move(rule), index_select_shape);
}

Indices index_select_backward_indices(const Call& call) {
  const at::Tensor& grad = call.input(0);
  if (grad.dim() == 0) return {};
  const std::int64_t dim = dim_of(call);
  const std::string letters = letters_except(grad.dim(), {dim});
  const bool is_list = call.input(1).dim() == 1;
  return {{.inputs = {{is_list ? with_letter(letters, dim, kAlong) : letters},
                      {is_list ? std::string(1, kAlong) : std::string()}},
           .outputs = {{letters}},
           .linear = {0}}};
}

std::vector<at::Tensor> of_given_sizes(const Call& call) {
  return {call.input(0).new_empty(call.integers(1))};
}

// The inputs are self, index and source. The source has the dims of self, the index that of `dim`.
Contraction along_dim_terms(const Call& call) {
  const at::Tensor& self = call.input(0);
  const std::string letters =
      self.dim() == 0 ? std::string() : letters_except(self.dim(), {dim_of(call)});
  Contraction terms = {.inputs = {{letters}}, .outputs = {{letters}}};
  for (int i = 1; i < call.num_inputs(); ++i) {
    const auto num_dims = call.input(i).dim();
    const bool is_source = call.argument_of(i) == call.position("source") && num_dims == self.dim();
    terms.inputs.push_back(
        {is_source ? letters : std::string(static_cast<std::size_t>(num_dims), '.')});
  }
  return terms;
}

Indices index_fill_indices(const Call& call) { return {along_dim_terms(call)}; }

Indices index_copy_indices(const Call& call) {
  return {.terms = along_dim_terms(call), .together = {0, 2}};
}

Indices index_add_indices(const Call& call) {
  Indices indices = {.terms = along_dim_terms(call), .together = {0, 2}};
  const at::Tensor& self = call.input(0);
  const bool is_list =
      self.dim() > 0 && call.input(1).dim() == 1 && call.input(2).dim() == self.dim();
  if (is_list && self.scalar_type() != at::kBool) {
    indices.terms.inputs[1].letters = std::string(1, kAlong);
    std::string& letters = indices.terms.inputs[2].letters;
    letters = with_letter(letters, dim_of(call), kAlong);
    indices.terms.added = {0};
  }
  return indices;
}

}  // namespace

void add_gathering_rules(NamedRules& rules) {
  FamilyRules family(rules, "indexing");
  family.add("gather", gather_rule());
  family.add("gather_backward",
             with_shapes(einsum_rule(gather_backward_indices, gather_backward),
                         [](const Call& call) -> std::vector<at::Tensor> {
                           return {call.input(0).new_empty(call.input(1).sizes())};
                         }));
  family.add({"scatter", "scatter_reduce"},
             with_shapes(einsum_rule(scatter_indices, write_unless_empty), like_first));
  family.add("scatter_add",
             with_shapes(einsum_rule(scatter_add_indices, write_unless_empty), like_first));
  family.add("index_select", index_select_rule());
  family.add("index_select_backward",
             with_shapes(with_local_sizes(einsum_rule(index_select_backward_indices), "self_sizes"),
                         of_given_sizes));
  family.add({"index_fill", "index_reduce"},
             with_shapes(einsum_rule(index_fill_indices, write_unless_empty), like_first));
  family.add("index_copy",
             with_shapes(einsum_rule(index_copy_indices, write_unless_empty), like_first));
  family.add("index_add",
             with_shapes(einsum_rule(index_add_indices, write_unless_empty), like_first));
}

}  // namespace trireme::tensor
