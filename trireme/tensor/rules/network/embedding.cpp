// SPDX-License-Identifier: Apache-2.0
// Rules of embeddings and one_hot. If the rows of a weight are sharded (a parallel vocabulary),
// every rank looks up the indices of its own rows. The results are a Partial sum. The gradient of a
// row is computed where the row is. Embedding bags run on whole tensors.
#include <ATen/ops/embedding.h>

#include <trireme/base/error.h>
#include <trireme/tensor/rules/across.h>
#include <trireme/tensor/rules/families.h>
#include <trireme/tensor/rules/sizes.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/embedding_dense_backward.h>
#include <ATen/ops/embedding_renorm.h>
#include <ATen/ops/zeros.h>

#include <map>
#include <tuple>

namespace trireme::tensor {
namespace {

// Remembers which axes shard the rows of a weight of a given shape, as the last decision of this
// thread on an embedding saw it. Backward is not given the weight, and its decision comes later.
// All ranks decide the same calls in the same order, so they remember the same. If nothing is
// known, or two weights of one shape are sharded differently, a gradient is still right but may
// have to be redistributed.
class RowCuts {
 public:
  void remember(const DeviceMesh& mesh, std::int64_t rows, std::int64_t columns, int axis,
                bool is_cut) {
    Entry& entry = entries_[Key(mesh.state().get(), rows, columns)];
    entry.mesh = mesh;
    const std::uint64_t bit = std::uint64_t{1} << axis;
    entry.axes = is_cut ? entry.axes | bit : entry.axes & ~bit;
  }

  bool is_cut(const DeviceMesh& mesh, std::int64_t rows, std::int64_t columns, int axis) const {
    const auto found = entries_.find(Key(mesh.state().get(), rows, columns));
    return found != entries_.end() && (found->second.axes >> axis & 1) != 0;
  }

  static RowCuts& of_thread() {
    thread_local RowCuts cuts;
    return cuts;
  }

 private:
  using Key = std::tuple<const DeviceMesh::State*, std::int64_t, std::int64_t>;
  struct Entry {
    DeviceMesh mesh;  // keeps the mesh alive, so that no other mesh gets its address
    std::uint64_t axes = 0;
  };

  std::map<Key, Entry> entries_;
};

void check_indices(const at::Tensor& indices, std::int64_t rows) {
  if (indices.numel() == 0 || !indices.is_cpu()) return;
  const auto [smallest, largest] = at::aminmax(indices);
  const auto low = smallest.item().toLong();
  const auto high = largest.item().toLong();
  TORCH_CHECK_INDEX(low >= 0 && high < rows, "index ", low < 0 ? low : high,
                    " is out of range for an embedding of ", rows, " rows");
}

// -- embedding -----------------------------------------------------------------------------------

// Looks up the indices of this rank's rows; other indices give zeros.
void look_up_own_rows(LocalCall& call) {
  const at::Tensor weight = call.tensor(0);
  const at::Tensor indices = call.tensor(1);
  const c10::IntArrayRef sizes = call.input_sizes(0);
  check_indices(indices, sizes[0]);
  const Extent own = own_extent(sizes, call.input_layout(0), 0);
  if (weight.numel() == 0) {
    std::vector<std::int64_t> result = indices.sizes().vec();
    result.push_back(weight.size(1));
    call.give({at::zeros(result, weight.options())});
    return;
  }
  const at::Tensor is_elsewhere = (indices < own.offset) | (indices >= own.offset + own.size);
  const at::Tensor here = (indices - own.offset).masked_fill_(is_elsewhere, 0);
  call.give({at::embedding(weight, here).masked_fill_(is_elsewhere.unsqueeze(-1), 0)});
}

void embedding_strategies(const AxisCall& axis, std::vector<Strategy>& strategies) {
  const Call& call = axis.call;
  const at::Tensor& weight = call.input(0);
  const at::Tensor& indices = call.input(1);
  RowCuts::of_thread().remember(axis.layouts[0].mesh(), weight.size(0), weight.size(1), axis.axis,
                                axis.layouts[0][axis.axis].is_shard(0));
  for (int dim = 0; dim < static_cast<int>(indices.dim()); ++dim) {
    strategies.push_back({{Replicate{}, Shard{dim}}, {Shard{dim}}});
    strategies.back().is_preferred = dim == dim_to_begin(axis, 1, 0);
  }
  strategies.push_back({{Shard{1}, Replicate{}}, {Shard{static_cast<int>(indices.dim())}}});
  strategies.push_back({{Shard{0}, Replicate{}}, {Partial{}}, look_up_own_rows});
  strategies.push_back({{Partial{}, Replicate{}}, {Partial{}}});
}

std::vector<at::Tensor> embedding_shape(const Call& call) {
  std::vector<std::int64_t> sizes = call.input(1).sizes().vec();
  sizes.push_back(call.input(0).size(1));
  return {call.input(0).new_empty(sizes)};
}

// The arguments are the gradient, the indices, the number of rows, the padding index, and a flag.
// The flag divides gradients by the frequency of an index, which needs all indices.
void embedding_backward(LocalCall& call) {
  const at::Tensor grad = call.tensor(0);
  const at::Tensor indices = call.tensor(1);
  const std::int64_t padding = call.argument(3).toInt();
  const bool by_frequency = call.argument(4).toBool();
  const c10::IntArrayRef sizes = call.output_sizes(0);
  const Layout& layout = call.output_layout(0);
  const Extent own = own_extent(sizes, layout, 0);
  if (grad.numel() == 0 || own.size == 0) {
    call.give({at::zeros({own.size, grad.size(-1)}, grad.options())});
    return;
  }
  if (layout.axes_of(0).empty()) {
    call.give({at::embedding_dense_backward(grad, indices, own.size, padding, by_frequency)});
    return;
  }
  // Indices of other ranks' rows and the padding are mapped to an extra row, which is dropped.
  const at::Tensor is_elsewhere =
      (indices < own.offset) | (indices >= own.offset + own.size) | (indices == padding);
  const at::Tensor here = (indices - own.offset).masked_fill_(is_elsewhere, own.size);
  const at::Tensor rows =
      at::embedding_dense_backward(grad, here, own.size + 1, own.size, by_frequency);
  call.give({rows.narrow(0, 0, own.size)});
}

void embedding_backward_strategies(const AxisCall& axis, std::vector<Strategy>& strategies) {
  const Call& call = axis.call;
  const at::Tensor& indices = call.input(1);
  const int sparse = call.position("sparse");
  if (sparse >= 0 && call.boolean(sparse)) {
    throw UsageError("the gradient of a distributed embedding cannot be sparse",
                     "make the embedding with sparse = false");
  }
  const std::int64_t rows = call.integer(2);
  const bool are_rows_cut =
      RowCuts::of_thread().is_cut(axis.layouts[0].mesh(), rows, call.input(0).size(-1), axis.axis);
  if (are_rows_cut) strategies.push_back({{Replicate{}, Replicate{}}, {Shard{0}}});
  // A replicated gradient of the rows looked up is smaller than all rows, which end up on one rank
  // each.
  if (are_rows_cut && rows > indices.numel()) return;
  strategies.push_back({{Shard{static_cast<int>(indices.dim())}, Replicate{}}, {Shard{1}}});
  strategies.push_back({{Partial{}, Replicate{}}, {Partial{}}});
  if (call.boolean(4)) return;
  for (int dim = 0; dim < static_cast<int>(indices.dim()); ++dim) {
    strategies.push_back({{Shard{dim}, Shard{dim}}, {Partial{}}});
  }
}

std::vector<at::Tensor> embedding_backward_shape(const Call& call) {
  return {call.input(0).new_empty({call.integer(2), call.input(0).size(-1)})};
}

// Every rank scales its own rows.
void renormalise_own_rows(LocalCall& call) {
  at::Tensor weight = call.tensor(0);
  const at::Tensor indices = call.tensor(1);
  check_indices(indices, call.input_sizes(0)[0]);
  const Extent own = own_extent(call.input_sizes(0), call.input_layout(0), 0);
  const at::Tensor is_here = (indices >= own.offset) & (indices < own.offset + own.size);
  const at::Tensor here = indices.masked_select(is_here) - own.offset;
  if (here.numel() > 0) {
    at::embedding_renorm_(weight, here, call.argument(2).toDouble(), call.argument(3).toDouble());
  }
  call.give({weight});
}

// -- one_hot -------------------------------------------------------------------------------------

// Without a number of classes the shape depends on values, so nothing is sharded.
void one_hot_strategies(const AxisCall& axis, std::vector<Strategy>& strategies) {
  if (axis.call.integer(1) < 0) return;
  for (int dim = 0; dim < static_cast<int>(axis.call.input(0).dim()); ++dim) {
    strategies.push_back({{Shard{dim}}, {Shard{dim}}});
  }
}

std::vector<at::Tensor> one_hot_shape(const Call& call) {
  const std::int64_t num_classes = call.integer(1);
  if (num_classes < 0) return {};
  std::vector<std::int64_t> sizes = call.input(0).sizes().vec();
  sizes.push_back(num_classes);
  return {call.input(0).new_empty(sizes, at::kLong)};
}

}  // namespace

void add_embedding_rules(NamedRules& rules) {
  FamilyRules family(rules, "embeddings");
  family.add(
      "embedding",
      {.strategies = embedding_strategies, .shapes = embedding_shape, .begins_shards = true});
  // A kernel of the rule, since the rows may be sharded though gradient and indices are whole.
  family.add({"embedding_backward", "embedding_dense_backward"},
             {.strategies = embedding_backward_strategies,
              .shapes = embedding_backward_shape,
              .kernel = embedding_backward});
  family.add(
      "embedding_renorm_",
      {.strategies =
           [](const AxisCall&, std::vector<Strategy>& strategies) {
             strategies.push_back({{Shard{0}, Replicate{}}, {Shard{0}}, renormalise_own_rows});
           },
       .shapes = like_first});
  // The shapes of saved tensors depend on the implementation that LibTorch chooses.
  family.add({"_embedding_bag", "_embedding_bag_forward_only", "_embedding_bag_backward",
              "_embedding_bag_dense_backward", "_embedding_bag_per_sample_weights_backward"},
             local_shape_rule());
  family.add("one_hot", {.strategies = one_hot_strategies, .shapes = one_hot_shape});
}

}  // namespace trireme::tensor
