// SPDX-License-Identifier: Apache-2.0
// Strategies of operators: the number of parts into which each dim of each input of one call is
// sharded, as MindSpore's `shard` takes them. The inputs are redistributed accordingly before the
// call; outputs and gradients follow from it. Guide: docs/guide/operator-strategies.md.
#pragma once

#include <trireme/tensor/layout.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace trireme {

/// One tuple for each tensor that an operator is given: the number of parts of each dim. The tuples
/// are in the order of the arguments; absent arguments are left out and lists count element by
/// element. `{{4, 1}, {1, 1}}` shards the rows of the first of two matrices into four parts. Sizes
/// of parts differ by one at most.
using OperatorStrategy = std::vector<std::vector<std::int64_t>>;

/// Returns text such as `{{4, 1}, {1, 1}}`.
std::string to_string(const OperatorStrategy& strategy);

/// Makes a mesh of all ranks of the group on which a dim can be sharded into any number of parts
/// that divides the number of ranks. It has one axis for each prime factor, the smallest first,
/// named `devices0`, `devices1`, …, or `devices` if there is one. Collective over the group.
DeviceMesh devices_mesh(const comm::Group& group);

/// Returns the layout of a tensor whose dims are sharded into `parts`. Axes of the mesh are used
/// from the first; on the axes that are left the tensor is replicated. On a mesh of one rank it is
/// the replicated layout. Use it to give parameters the layout that the operators on them need.
///
/// Throws UsageError where a number is below one, where their product does not divide the number of
/// devices, and where no combination of axes gives these numbers.
Layout layout_of_parts(const DeviceMesh& mesh, c10::IntArrayRef parts);

/// Makes a distributed tensor of a batch that every rank has as a whole. It stays replicated until
/// the first operator that shards it, which each rank does locally. Nothing is communicated.
/// Differentiable.
at::Tensor full_batch(const at::Tensor& batch, const DeviceMesh& mesh);

/// Makes a distributed batch from one slice along dim 0 on each rank, in the order of the ranks.
/// The batch is the slices together, sharded over all devices. The sizes of the slices must be
/// those that local_sizes() returns, such as equal ones; otherwise it throws UsageError. Collective
/// and blocking. Differentiable.
at::Tensor batch_of_slices(const at::Tensor& slice, const DeviceMesh& mesh);

/// Holds a strategy for the next operator of this thread. Use with_strategy instead of this class.
/// It must stay on the thread that made it. Objects nest: only the innermost one applies.
class StrategyOfNextOperator {
 public:
  /// Makes `strategy` pending for the next operator of this thread.
  [[nodiscard]] explicit StrategyOfNextOperator(OperatorStrategy strategy);
  ~StrategyOfNextOperator();
  StrategyOfNextOperator(const StrategyOfNextOperator&) = delete;
  StrategyOfNextOperator& operator=(const StrategyOfNextOperator&) = delete;

  /// Throws UsageError if no operator with a tensor was called.
  void expect_taken() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Calls `call` and returns its result. The first operator on distributed tensors that it calls is
/// run with the strategy:
///
///     auto y = with_strategy({{4, 1}, {1, 1}}, [&] { return torch::matmul(x, w); });
///
/// Each input is redistributed to the layout that the strategy asks for, by the cheapest path. A
/// strategy may use fewer devices than there are if their number divides; the input is replicated
/// over the others. If the operator's rule allows several layouts, the cheapest to reach is taken.
/// The output has the layout that the rule gives it; an output that is Partial stays so until an
/// operator needs its values. The gradient of an input is redistributed to the layout that the
/// input had.
///
/// These operators do not count as the first one: operators on numbers and on tensors without dims,
/// factories such as zeros_like, and views. Views do count if the strategy has a single tuple. A
/// composite operator counts as the operator that it calls (docs/guide/operator-strategies.md). On
/// plain tensors the strategy has no effect, and on a mesh of one rank nothing is sharded, so the
/// same program runs on a single process.
///
/// Collective over the mesh: every rank gives the same strategy. Throws UsageError where the
/// strategy does not fit the operator's tensors, the number of devices or the operator's rule;
/// where it would move a tensor that the operator writes to; and where no operator was called.
template <typename Call>
decltype(auto) with_strategy(OperatorStrategy strategy, Call&& call) {
  const StrategyOfNextOperator next(std::move(strategy));
  if constexpr (std::is_void_v<std::invoke_result_t<Call>>) {
    std::forward<Call>(call)();
    next.expect_taken();
  } else {
    decltype(auto) result = std::forward<Call>(call)();
    next.expect_taken();
    return result;
  }
}

/// While an object of this class lives, operators of this thread that have no strategy are data
/// parallel: inputs that are no parameters are sharded along dim 0 over all devices, and all other
/// inputs are replicated. A parameter is a leaf that requires a gradient.
///
/// In the following cases an operator takes the layouts that cost least:
///   - the operator's rule does not allow sharding along dim 0;
///   - the number of devices does not divide the size of dim 0;
///   - the result would not be sharded along dim 0, unless it has no dims, such as a loss;
///   - the operator is a view or writes into its inputs;
///   - the operator is called in backward.
class DataParallelDefault {
 public:
  /// Starts the default on this thread. Objects nest.
  [[nodiscard]] DataParallelDefault();
  ~DataParallelDefault();
  DataParallelDefault(const DataParallelDefault&) = delete;
  DataParallelDefault& operator=(const DataParallelDefault&) = delete;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trireme
