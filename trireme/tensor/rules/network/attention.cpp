// SPDX-License-Identifier: Apache-2.0
// Scaled dot product attention. On the CPU it may be sharded along the batch, the heads, and the
// sequence of the queries. Keys and values are then whole, or sharded along the sequence too: they
// travel (ring_attention.h), or the axis shards heads meanwhile (attention_by_heads.h). Under a
// causal mask a rank whose queries begin later sees more keys. On CUDA attention may be sharded
// along the batch and the heads. Attention with dropout is decomposed into products and a softmax
// (dispatch/install.cpp).
#include <trireme/base/error.h>
#include <trireme/tensor/axis_links.h>
#include <trireme/tensor/rules/across.h>
#include <trireme/tensor/rules/families.h>
#include <trireme/tensor/rules/network/attention_blocks.h>
#include <trireme/tensor/rules/network/attention_by_heads.h>
#include <trireme/tensor/rules/network/ring_attention.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

namespace trireme::tensor {
namespace {

// Returns a new tensor [batch, heads, sequence, …] in the memory order of LibTorch's kernels: heads
// inside the sequence.
at::Tensor heads_inside(const at::Tensor& query, at::ScalarType type) {
  std::vector<std::int64_t> sizes = query.sizes().vec();
  std::swap(sizes[kHeads], sizes[kSequence]);
  return query.new_empty(sizes, type).transpose(kHeads, kSequence);
}

// Returns the blocks of this rank's queries under a causal mask: the keys before them, which they
// all see, and those with which they begin. As two blocks, hidden scores are hardly computed.
std::array<AttentionBlock, 2> own_blocks(const LocalCall& call, int query, const at::Tensor& key) {
  const Extent rows = own_extent(call.input_sizes(query), call.input_layout(query), kSequence);
  const std::int64_t before = std::min(rows.offset, key.size(kSequence));
  const std::int64_t beside = std::min(rows.size, key.size(kSequence) - before);
  return {AttentionBlock{.rows = rows, .keys = {.offset = 0, .size = before}},
          AttentionBlock{.rows = rows, .keys = {.offset = before, .size = beside}}};
}

at::Tensor part_of_keys(const at::Tensor& keys, const AttentionBlock& block) {
  return keys.narrow(kSequence, block.keys.offset, block.keys.size);
}

// Runs attention on this rank's queries. If the sequence is sharded under a causal mask, the kernel
// is told where these queries begin.
void attention(LocalCall& call) {
  const at::Tensor query = call.tensor(0);
  const at::Tensor key = call.tensor(1);
  if (query.numel() == 0 || key.numel() == 0) {
    const c10::IntArrayRef rows = query.sizes().slice(0, 3);
    call.give({at::zeros_like(query),
               at::zeros(rows, query.options().dtype(wide_type(query.scalar_type())))});
    return;
  }
  const AttentionSettings settings = attention_settings(call);
  if (!settings.is_causal || call.input_layout(0).axes_of(kSequence).empty()) {
    call.call_operator();
    return;
  }
  BlockSum sum;
  for (const AttentionBlock& block : own_blocks(call, 0, key)) {
    if (!is_seen(block, settings.is_causal)) continue;
    sum.add(attend(query, part_of_keys(key, block), part_of_keys(call.tensor(2), block), block,
                   settings));
  }
  const BlockResult result = sum.result(query);
  call.give({result.output, result.logsumexp});
}

void attention_backward(LocalCall& call) {
  const at::Tensor query = call.tensor(1);
  const at::Tensor key = call.tensor(2);
  const at::Tensor value = call.tensor(3);
  if (query.numel() == 0 || key.numel() == 0) {
    call.give({at::zeros_like(query), at::zeros_like(key), at::zeros_like(value)});
    return;
  }
  const AttentionSettings settings = attention_settings(call);
  if (!settings.is_causal || call.input_layout(1).axes_of(kSequence).empty()) {
    call.call_operator();
    return;
  }
  const QuerySide side = {.grad_output = call.tensor(0),
                          .query = query,
                          .output = call.tensor(4),
                          .logsumexp = call.tensor(5)};
  at::Tensor of_query = widened(at::zeros_like(query));
  const at::Tensor of_key = at::zeros_like(key);  // of keys that no query sees
  const at::Tensor of_value = at::zeros_like(value);
  for (const AttentionBlock& block : own_blocks(call, 1, key)) {
    if (!is_seen(block, settings.is_causal)) continue;
    const BlockGradients of_block = attend_backward(side, part_of_keys(key, block),
                                                    part_of_keys(value, block), block, settings);
    of_query += of_block.query;
    part_of_keys(of_key, block).copy_(of_block.key);
    part_of_keys(of_value, block).copy_(of_block.value);
  }
  call.give({of_query.to(query.scalar_type()), of_key, of_value});
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

// Returns the scores that a causal mask leaves to some rows.
double seen_scores(const Extent& rows, std::int64_t keys) {
  // Rows before `all` see one key more than the row before them, and the others all keys.
  const std::int64_t end = rows.offset + rows.size;
  const std::int64_t all = std::clamp(keys, rows.offset, end);
  const auto growing = static_cast<double>(all - rows.offset);
  return growing * static_cast<double>(rows.offset + 1 + all) / 2 +
         static_cast<double>(end - all) * static_cast<double>(keys);
}

// Returns the scores of the part of the queries that has most under a causal mask, as a multiple of
// the mean.
double causal_imbalance(std::int64_t rows, std::int64_t keys, std::int64_t parts) {
  double most = 0;
  for (std::int64_t part = 0; part < parts; ++part) {
    most = std::max(most, seen_scores(part_of(rows, parts, part), keys));
  }
  const double all = seen_scores({.offset = 0, .size = rows}, keys);
  return all > 0 ? most * static_cast<double>(parts) / all : 1;
}

int input_named(const Call& call, const char* name) { return call.input_of(call.position(name)); }

// The strategies of one axis for an attention or its backward.
class AttentionStrategies {
 public:
  AttentionStrategies(const AxisCall& axis, bool is_backward)
      : axis_(axis),
        call_(axis.call),
        is_backward_(is_backward),
        mesh_(axis.layouts[0].mesh()),
        query_(input_named(call_, "query")),
        key_(input_named(call_, "key")) {}

  void add(std::vector<Strategy>& strategies) const {
    const std::size_t first = strategies.size();
    for (int dim = 0; dim <= static_cast<int>(kSequence); ++dim) {
      if (dim == kHeads && !shards_heads()) continue;
      strategies.push_back(of_dim(dim));
    }
    if (has_whole_keys_elsewhere()) {
      strategies.push_back(of_ring());
      if (shards_heads() && heads_of_part() >= axis_.ranks) strategies.push_back(of_heads());
    }
    if (is_sequence_cut()) keep_sequence_cut(strategies, first);
  }

 private:
  const Placement& current(int input) const {
    return axis_.layouts[static_cast<std::size_t>(input)][axis_.axis];
  }

  // With fewer heads of keys than of queries, neighbouring queries share heads, which must be on
  // one rank.
  bool shards_heads() const {
    const std::int64_t heads = call_.input(key_).size(kHeads);
    return call_.input(query_).size(kHeads) == heads || heads % axis_.parts(key_, kHeads) == 0;
  }

  // The heads of keys that the ranks along the axis have together.
  std::int64_t heads_of_part() const {
    const std::int64_t others = axis_.parts(key_, kHeads) / axis_.ranks;
    return (call_.input(key_).size(kHeads) + others - 1) / others;
  }

  // The kernels of a sharded sequence of keys work along one axis.
  bool has_whole_keys_elsewhere() const { return axis_.parts(key_, kSequence) == axis_.ranks; }

  // The bytes of an input that the ranks along the axis have together.
  double bytes(int input) const {
    const at::Tensor& tensor = call_.input(input);
    double bytes = static_cast<double>(tensor.numel() * tensor.element_size());
    const Layout& layout = axis_.layouts[static_cast<std::size_t>(input)];
    for (int other = 0; other < mesh_.num_axes(); ++other) {
      if (other != axis_.axis && layout[other].is_shard()) {
        bytes /= static_cast<double>(mesh_.size(other));
      }
    }
    return bytes;
  }

  // Ranks hold parts of the sequences of queries and keys before the call.
  bool is_sequence_cut() const {
    return current(query_).is_shard(kSequence) && current(key_).is_shard(kSequence);
  }

  // The time in which one rank computes an equal share of what the ranks along the axis have.
  double compute_seconds() const {
    if (!is_sequence_cut()) return 0;
    const at::Tensor& query = call_.input(query_);
    const double whole = static_cast<double>(query.numel() * query.element_size());
    const double flops = is_backward_ ? backward_flops(call_) : forward_flops(call_);
    const bool is_half = at::isReducedFloatingType(query.scalar_type());
    return whole > 0 ? flops * bytes(query_) / whole / static_cast<double>(axis_.ranks) /
                           attention_flops_along(*mesh_.state(), axis_.axis, is_half)
                     : 0;
  }

  // The time that the rank with most work takes longer, if queries are sharded.
  double waiting_seconds() const {
    if (!call_.boolean(call_.position("is_causal"))) return 0;
    return compute_seconds() * (causal_imbalance(call_.input(query_).size(kSequence),
                                                 call_.input(key_).size(kSequence), axis_.ranks) -
                                1);
  }

  // Sharded along `dim`; if that is the sequence, keys and values are whole.
  Strategy of_dim(int dim) const {
    const bool are_keys_cut = dim != kSequence;
    Strategy strategy = whole_inputs(call_);
    place_all(strategy, dim, are_keys_cut);
    strategy.kernel = is_backward_ ? attention_backward : attention;
    if (are_keys_cut) return strategy;
    strategy.seconds = waiting_seconds();
    // The gradients of gathered keys and values are sums that are still to be made.
    if (is_backward_ && current(key_).is_shard()) {
      const DeviceMesh::State& state = *mesh_.state();
      const cluster::LocalCopy copy = copy_along(state, axis_.axis, kCopyOfProcessor);
      strategy.seconds +=
          2 * (copy.seconds + bytes(key_) / copy.bytes_per_second +
               seconds_along(state, axis_.axis, Collective::kReduceScatter, bytes(key_)));
    }
    return strategy;
  }

  // Places queries and what belongs to them, the mask and the results.
  void place_all(Strategy& strategy, int dim, bool are_keys_cut) const {
    place_mask(strategy, call_, call_.input(query_), call_.input(key_), dim);
    for (const char* name : {"grad_out", "query", "out", "logsumexp"}) {
      place(strategy, call_, name, Shard{dim});
    }
    if (are_keys_cut) {
      for (const char* name : {"key", "value"}) place(strategy, call_, name, Shard{dim});
    }
    const Placement of_keys = are_keys_cut ? Placement(Shard{dim}) : Placement(Partial{});
    strategy.outputs = {Shard{dim}, is_backward_ ? of_keys : Placement(Shard{dim})};
    if (is_backward_) strategy.outputs.push_back(of_keys);
  }

  Strategy of_ring() const {
    Strategy strategy = whole_inputs(call_);
    place_all(strategy, static_cast<int>(kSequence), /*are_keys_cut=*/true);
    strategy.kernel = is_backward_ ? ring_attention_backward : ring_attention;
    strategy.is_copy = true;
    // All blocks but one are computed while messages travel.
    const auto ranks = static_cast<double>(axis_.ranks);
    const double computes = compute_seconds() + waiting_seconds();
    const double sends = ring_seconds(mesh_, axis_.axis, bytes(key_), bytes(key_), is_backward_);
    strategy.seconds = waiting_seconds() + std::max(0.0, sends - computes * (ranks - 1) / ranks);
    return strategy;
  }

  Strategy of_heads() const {
    Strategy strategy = whole_inputs(call_);
    place_all(strategy, static_cast<int>(kSequence), /*are_keys_cut=*/true);
    // The kernel takes the rows and heads of the mask that it needs.
    place(strategy, call_, "attn_mask", Replicate{});
    strategy.kernel = is_backward_ ? attention_by_heads_backward : attention_by_heads;
    strategy.is_copy = true;
    const double times = is_backward_ ? 4 : 2;  // queries, output and their gradients; keys, values
    const double moved = times * (bytes(query_) + bytes(key_)) * padding();
    strategy.seconds =
        heads_seconds(mesh_, axis_.axis, moved, is_backward_) + (padding() - 1) * compute_seconds();
    return strategy;
  }

  // The heads of the rank with most relative to the mean. Messages are padded to them.
  double padding() const {
    const std::int64_t heads = heads_of_part();
    const std::int64_t most = (heads + axis_.ranks - 1) / axis_.ranks;
    return static_cast<double>(most * axis_.ranks) / static_cast<double>(heads);
  }

  // Prefers strategies whose output is sharded along the sequence as the queries are, since what
  // comes after attention is. Of these, all or those that the mesh asks for.
  void keep_sequence_cut(std::vector<Strategy>& strategies, std::size_t first) const {
    const SequenceAttention choice = sequence_attention(*mesh_.state());
    const auto keeps_sequence = [&](const Strategy& strategy) {
      return strategy.inputs[static_cast<std::size_t>(query_)].is_shard(kSequence);
    };
    const auto is_asked_for = [&](const Strategy& strategy) {
      switch (choice) {
        case SequenceAttention::kRing:
          return strategy.kernel == ring_attention || strategy.kernel == ring_attention_backward;
        case SequenceAttention::kHeads:
          return strategy.kernel == attention_by_heads ||
                 strategy.kernel == attention_by_heads_backward;
        case SequenceAttention::kGather:
          return !strategy.is_copy && keeps_sequence(strategy);
        case SequenceAttention::kCheapest:
          break;
      }
      return keeps_sequence(strategy);
    };
    bool is_found = false;
    for (std::size_t i = first; i < strategies.size(); ++i) {
      strategies[i].is_preferred = is_asked_for(strategies[i]);
      is_found = is_found || strategies[i].is_preferred;
    }
    // Where several axes shard the sequence of keys, those that come first gather it.
    if (is_found || !has_whole_keys_elsewhere()) return;
    throw UsageError(
        join_message("attention by heads along axis ", mesh_.axis_name(axis_.axis), " of ",
                     axis_.ranks, " ranks was given queries of ", call_.input(query_).sizes(),
                     " and keys of ", call_.input(key_).sizes(), ", whose ",
                     call_.input(key_).size(kHeads), " heads cannot be divided over the ranks"),
        "set Plan::sequence_attention to kCheapest or kRing, or take an axis of fewer ranks");
  }

  const AxisCall& axis_;
  const Call& call_;
  bool is_backward_;
  DeviceMesh mesh_;
  int query_;
  int key_;
};

void attention_strategies(const AxisCall& axis, std::vector<Strategy>& strategies) {
  AttentionStrategies(axis, /*is_backward=*/false).add(strategies);
}

void attention_backward_strategies(const AxisCall& axis, std::vector<Strategy>& strategies) {
  AttentionStrategies(axis, /*is_backward=*/true).add(strategies);
}

void attention_exchanges(const DecidedCall& decided, std::vector<Exchange>& exchanges) {
  if (decided.kernel == ring_attention || decided.kernel == ring_attention_backward) {
    add_ring_exchanges(decided, exchanges);
  }
  if (decided.kernel == attention_by_heads || decided.kernel == attention_by_heads_backward) {
    add_heads_exchanges(decided, exchanges);
  }
}

// Counts the scores that a causal mask leaves to each rank along the axes that shard the queries.
// Attention by heads computes all queries of its heads.
double attention_imbalance(const DecidedCall& decided) {
  const Call& call = decided.call;
  if (!call.boolean(call.position("is_causal")) || decided.kernel == attention_by_heads ||
      decided.kernel == attention_by_heads_backward) {
    return 1;
  }
  const int query = input_named(call, "query");
  const std::int64_t keys = call.input(input_named(call, "key")).size(kSequence);
  const Layout& layout = decided.inputs[static_cast<std::size_t>(query)];
  std::int64_t parts = 1;
  for (const int axis : layout.axes_of(kSequence)) parts *= layout.mesh().size(axis);
  return causal_imbalance(call.input(query).size(kSequence), keys, parts);
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
  family.add("_scaled_dot_product_flash_attention_for_cpu", {.strategies = attention_strategies,
                                                             .shapes = attention_shapes,
                                                             .flops = forward_flops,
                                                             .exchanges = attention_exchanges,
                                                             .imbalance = attention_imbalance});
  family.add("_scaled_dot_product_flash_attention_for_cpu_backward",
             {.strategies = attention_backward_strategies,
              .shapes = attention_backward_shapes,
              .flops = backward_flops,
              .exchanges = attention_exchanges,
              .imbalance = attention_imbalance});
}

}  // namespace trireme::tensor
