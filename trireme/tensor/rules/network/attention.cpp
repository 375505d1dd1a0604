// SPDX-License-Identifier: Apache-2.0
// Scaled dot product attention. On the CPU it may be sharded along the batch, the heads, and the
// sequence of the queries; keys and values are whole in the last case. Under a causal mask a rank
// whose queries begin later sees more keys. On CUDA it may be sharded along the batch and the
// heads. Attention with dropout is decomposed into products and a softmax
// (dispatch/attention_of_distributed.h).
#include <trireme/tensor/rules/across.h>
#include <trireme/tensor/rules/families.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

namespace trireme::tensor {
namespace {

constexpr std::int64_t kHeads = 1;
constexpr std::int64_t kSequence = 2;

// The causal mask for queries [batch, heads, sequence, …] of this rank.
struct CausalRows {
  std::int64_t num_keys;  // the number of keys that these queries see
  at::Tensor mask;        // [sequence, num_keys], added to the scores

  CausalRows(const at::Tensor& query, const Extent& rows, std::int64_t keys)
      : num_keys(std::min(keys, rows.offset + rows.size)) {
    const auto options = query.options().dtype(at::kLong);
    const at::Tensor row = at::arange(rows.offset, rows.offset + rows.size, options).unsqueeze(1);
    const at::Tensor is_later = at::arange(num_keys, options).unsqueeze(0) > row;
    mask = at::zeros({rows.size, num_keys}, query.options())
               .masked_fill_(is_later, -std::numeric_limits<double>::infinity());
  }
};

bool is_causal(LocalCall& call) {
  return call.argument(call.call().position("is_causal")).toBool();
}

std::optional<double> scale_of(LocalCall& call) {
  return call.argument(call.call().position("scale")).toOptional<double>();
}

// Returns a new tensor [batch, heads, sequence, …] in the memory order of LibTorch's kernels: heads
// inside the sequence.
at::Tensor heads_inside(const at::Tensor& query, at::ScalarType type) {
  std::vector<std::int64_t> sizes = query.sizes().vec();
  std::swap(sizes[kHeads], sizes[kSequence]);
  return query.new_empty(sizes, type).transpose(kHeads, kSequence);
}

// Runs attention on this rank's queries. If the sequence is sharded under a causal mask, the mask
// of these queries replaces is_causal.
void attention(LocalCall& call) {
  const at::Tensor query = call.tensor(0);
  if (query.numel() == 0 || call.tensor(1).numel() == 0) {
    const c10::IntArrayRef rows = query.sizes().slice(0, 3);
    call.give({at::zeros_like(query),
               at::zeros(rows, query.options().dtype(wide_type(query.scalar_type())))});
    return;
  }
  if (!is_causal(call) || call.input_layout(0).axes_of(kSequence).empty()) {
    call.call_operator();
    return;
  }
  const Extent rows = own_extent(call.input_sizes(0), call.input_layout(0), kSequence);
  const CausalRows causal(query, rows, call.tensor(1).size(kSequence));
  const auto [output, logsumexp] = at::_scaled_dot_product_flash_attention_for_cpu(
      query, call.tensor(1).narrow(kSequence, 0, causal.num_keys),
      call.tensor(2).narrow(kSequence, 0, causal.num_keys), call.argument(3).toDouble(),
      /*is_causal=*/false, causal.mask, scale_of(call));
  call.give({output, logsumexp});
}

// Returns gradients of all keys: zeros for those that no query of this rank sees.
at::Tensor with_unseen_keys(const at::Tensor& seen, const at::Tensor& like) {
  at::Tensor all = at::zeros_like(like);
  all.narrow(kSequence, 0, seen.size(kSequence)).copy_(seen);
  return all;
}

void attention_backward(LocalCall& call) {
  const at::Tensor query = call.tensor(1);
  const at::Tensor key = call.tensor(2);
  const at::Tensor value = call.tensor(3);
  if (query.numel() == 0 || key.numel() == 0) {
    call.give({at::zeros_like(query), at::zeros_like(key), at::zeros_like(value)});
    return;
  }
  if (!is_causal(call) || call.input_layout(1).axes_of(kSequence).empty()) {
    call.call_operator();
    return;
  }
  const Extent rows = own_extent(call.input_sizes(1), call.input_layout(1), kSequence);
  const CausalRows causal(query, rows, key.size(kSequence));
  const auto [grad_query, grad_key, grad_value] =
      at::_scaled_dot_product_flash_attention_for_cpu_backward(
          call.tensor(0), query, key.narrow(kSequence, 0, causal.num_keys),
          value.narrow(kSequence, 0, causal.num_keys), call.tensor(4), call.tensor(5),
          call.argument(6).toDouble(), /*is_causal=*/false, causal.mask, scale_of(call));
  call.give({grad_query, with_unseen_keys(grad_key, key), with_unseen_keys(grad_value, value)});
}

// Sets the placement of the mask, which is broadcast to [batch, heads, queries, keys].
void place_mask(Strategy& strategy, const Call& call, const at::Tensor& query,
                const at::Tensor& key, std::int64_t dim) {
  const int position = call.position("attn_mask");
  const int input = call.input_of(position);
  if (input < 0) return;
  const std::vector<std::int64_t> scores = {query.size(0), query.size(1), query.size(2),
                                            key.size(2)};
  strategy.inputs[static_cast<std::size_t>(input)] = placed_along(call.input(input), scores, dim);
}

// Adds a strategy each for the batch, the heads and the sequence of the queries; `place_all` sets
// the placements of the other tensors.
template <typename Place>
void add_cuts(const Call& call, std::vector<Strategy>& strategies, const Place& place_all) {
  const at::Tensor& query = call.input(call.input_of(call.position("query")));
  const at::Tensor& key = call.input(call.input_of(call.position("key")));
  for (int dim = 0; dim <= static_cast<int>(kSequence); ++dim) {
    // With fewer heads of keys than of queries, neighbouring queries share heads: not sharded.
    if (dim == kHeads && query.size(kHeads) != key.size(kHeads)) continue;
    Strategy& strategy = strategies.emplace_back(whole_inputs(call));
    place_mask(strategy, call, query, key, dim);
    place_all(strategy, call, dim);
  }
}

void attention_strategies(const AxisCall& axis, std::vector<Strategy>& strategies) {
  add_cuts(axis.call, strategies, [](Strategy& strategy, const Call& call, int dim) {
    place(strategy, call, "query", Shard{dim});
    if (dim != kSequence) {
      place(strategy, call, "key", Shard{dim});
      place(strategy, call, "value", Shard{dim});
    }
    strategy.outputs = {Shard{dim}, Shard{dim}};
    strategy.kernel = attention;
  });
}

void attention_backward_strategies(const AxisCall& axis, std::vector<Strategy>& strategies) {
  add_cuts(axis.call, strategies, [](Strategy& strategy, const Call& call, int dim) {
    for (const char* name : {"grad_out", "query", "out", "logsumexp"}) {
      place(strategy, call, name, Shard{dim});
    }
    const bool are_keys_cut = dim != kSequence;
    if (are_keys_cut) {
      place(strategy, call, "key", Shard{dim});
      place(strategy, call, "value", Shard{dim});
    }
    const Placement of_keys = are_keys_cut ? Placement(Shard{dim}) : Placement(Partial{});
    strategy.outputs = {Shard{dim}, of_keys, of_keys};
    strategy.kernel = attention_backward;
  });
}

std::vector<at::Tensor> attention_shapes(const Call& call) {
  const at::Tensor& query = call.input(0);
  const at::Tensor output = heads_inside(query, query.scalar_type());
  return {output, heads_inside(query, wide_type(query.scalar_type())).select(3, 0)};
}

std::vector<at::Tensor> attention_backward_shapes(const Call& call) {
  return {heads_inside(call.input(1), call.input(1).scalar_type()),
          heads_inside(call.input(2), call.input(2).scalar_type()),
          heads_inside(call.input(3), call.input(3).scalar_type())};
}

// CUDA's memory-efficient attention returns output, logsumexp [batch, heads, rows], and the seed
// and offset of dropout, which are not used without it.
constexpr std::int64_t kAlignedRows = 32;  // LibTorch rounds the rows of logsumexp up to this

void efficient_strategies(const AxisCall& axis, std::vector<Strategy>& strategies) {
  for (const int dim : {0, static_cast<int>(kHeads)}) {
    Strategy& strategy = strategies.emplace_back(whole_inputs(axis.call));
    for (const char* name : {"query", "key", "value"}) place(strategy, axis.call, name, Shard{dim});
    strategy.outputs = {Shard{dim}, Shard{dim}, Replicate{}, Replicate{}};
  }
}

void efficient_backward_strategies(const AxisCall& axis, std::vector<Strategy>& strategies) {
  for (const int dim : {0, static_cast<int>(kHeads)}) {
    Strategy& strategy = strategies.emplace_back(whole_inputs(axis.call));
    for (const char* name : {"grad_out_", "query", "key", "value", "out", "logsumexp"}) {
      place(strategy, axis.call, name, Shard{dim});
    }
    strategy.outputs = {Shard{dim}, Shard{dim}, Shard{dim}, Replicate{}};
  }
}

std::vector<at::Tensor> efficient_shapes(const Call& call) {
  const at::Tensor& query = call.input(0);
  const at::Tensor& value = call.input(2);
  std::vector<std::int64_t> sizes = query.sizes().vec();
  std::swap(sizes[kHeads], sizes[kSequence]);
  sizes[3] = value.size(3);
  const std::int64_t rows = query.size(kSequence);
  const bool keeps_sums = call.boolean(call.position("compute_log_sumexp"));
  const std::int64_t aligned = (rows + kAlignedRows - 1) / kAlignedRows * kAlignedRows;
  const auto numbers = query.options().dtype(at::kLong);
  return {query.new_empty(sizes).transpose(kHeads, kSequence),
          at::empty({query.size(0), query.size(kHeads), keeps_sums ? aligned : 0},
                    query.options().dtype(at::kFloat)),
          at::empty({}, numbers), at::empty({}, numbers)};
}

std::vector<at::Tensor> efficient_backward_shapes(const Call& call) {
  std::vector<at::Tensor> shapes = attention_backward_shapes(call);
  shapes.emplace_back();  // the gradient of a mask, which is not given
  return shapes;
}

// Counts the products of queries and keys and of weights and values. A causal mask halves them.
double attention_flops(const Call& call, const at::Tensor& query, const at::Tensor& key) {
  const double products =
      4.0 * static_cast<double>(query.numel()) * static_cast<double>(key.size(kSequence));
  return call.boolean(call.position("is_causal")) ? products / 2 : products;
}

double forward_flops(const Call& call) {
  return attention_flops(call, call.input(0), call.input(1));
}

// Four products, and one that recomputes the weights.
double backward_flops(const Call& call) {
  return 2.5 * attention_flops(call, call.input(1), call.input(2));
}

}  // namespace

void add_attention_rules(NamedRules& rules) {
  FamilyRules family(rules, "attention");
  family.add(
      "_scaled_dot_product_efficient_attention",
      {.strategies = efficient_strategies, .shapes = efficient_shapes, .flops = forward_flops});
  family.add("_scaled_dot_product_efficient_attention_backward",
             {.strategies = efficient_backward_strategies,
              .shapes = efficient_backward_shapes,
              .flops = backward_flops});
  family.add(
      "_scaled_dot_product_flash_attention_for_cpu",
      {.strategies = attention_strategies, .shapes = attention_shapes, .flops = forward_flops});
  family.add("_scaled_dot_product_flash_attention_for_cpu_backward",
             {.strategies = attention_backward_strategies,
              .shapes = attention_backward_shapes,
              .flops = backward_flops});
}

}  // namespace trireme::tensor
