// SPDX-License-Identifier: Apache-2.0
// Strategies of operators: into how many parts each dim of each input of one call is cut, as
// MindSpore's `shard` says it. The inputs are redistributed to the cut before the call; outputs and
// gradients follow. Guide: docs/guide/operator-strategies.md.
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

/// One tuple for each tensor that an operator is given, in the order of its arguments (absent ones
/// left out, lists element by element): into how many parts each dim is cut. `{{4, 1}, {1, 1}}`
/// cuts the rows of the first of two matrices into four. Parts are as equal as they can be.
using OperatorStrategy = std::vector<std::vector<std::int64_t>>;

/// `{{4, 1}, {1, 1}}`
std::string to_string(const OperatorStrategy& strategy);

/// A mesh on which a dim can be cut into every number of parts that divides the number of ranks: an
/// axis for each prime factor, the smallest first. Collective over the group, as DeviceMesh is.
DeviceMesh devices_mesh(const comm::Group& group);

/// The layout of a tensor whose dims are cut into so many parts, the first axes of the mesh taken
/// first; what they leave repeats. For parameters that lie as the operators that use them are cut.
/// Throws UsageError where a number is below one, their product is more than the devices or does
/// not divide their number, or no axes of the mesh make them.
Layout layout_of_parts(const DeviceMesh& mesh, c10::IntArrayRef parts);

/// A batch of which every rank has all: it stays whole until the first operator that cuts it, which
/// each rank does for itself. No communication. Differentiable.
at::Tensor full_batch(const at::Tensor& batch, const DeviceMesh& mesh);

/// A batch of which each rank has a slice along dim 0, in order of the ranks: the slices together
/// are the batch, cut into as many parts as there are devices. Slices have equal sizes, or those
/// that local_sizes() tells, else UsageError. Collective and blocking. Differentiable.
at::Tensor batch_of_slices(const at::Tensor& slice, const DeviceMesh& mesh);

/// A strategy that waits for the next operator of this thread; see with_strategy, which is how to
/// use it. Not to be moved to another thread. They nest: only the innermost one waits.
class StrategyOfNextOperator {
 public:
  [[nodiscard]] explicit StrategyOfNextOperator(OperatorStrategy strategy);
  ~StrategyOfNextOperator();
  StrategyOfNextOperator(const StrategyOfNextOperator&) = delete;
  StrategyOfNextOperator& operator=(const StrategyOfNextOperator&) = delete;
  StrategyOfNextOperator(StrategyOfNextOperator&&) = delete;
  StrategyOfNextOperator& operator=(StrategyOfNextOperator&&) = delete;

  /// Throws UsageError where no operator came.
  void expect_taken() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Calls `call`, whose first operator on distributed tensors gets the strategy, and returns what it
/// returns:
///
///     auto y = with_strategy({{4, 1}, {1, 1}}, [&] { return torch::matmul(x, w); });
///
/// Every input is brought to its cut first, by the cheapest path; cuts may use fewer devices than
/// there are, where their number divides, and the rest repeats. Of several ways the operator's rule
/// allows, the one that moves least is taken. The result is as the operator's rule lays it out;
/// a sum that is still to be made stays Partial until an operator needs it. The gradient of an
/// input that was moved comes back in the layout that the input had.
///
/// Passed over are operators on numbers and tensors without dims, factories such as zeros_like, and
/// views unless the strategy has one tuple; composite operators count as the operator that they are
/// made of (docs/guide/operator-strategies.md). On plain tensors the strategy does nothing, and on
/// a mesh of one rank nothing is cut, so that the program runs alone as well.
///
/// Collective over the mesh, as operators on distributed tensors are: every rank gives the same
/// strategy. Throws UsageError where the strategy does not fit the operator's tensors, the number
/// of devices or the operator's rule, where it would move a tensor that the operator writes to, and
/// where no operator came.
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

/// While it lives, operators of this thread without a strategy are cut by data: those inputs that
/// are no parameters along dim 0 over all devices, everything else whole. Where the operator's rule
/// does not allow it, the size does not divide, or the result would not be cut along dim 0 (losses
/// of no dims aside), the operator follows its inputs at least cost, and so do views, operators
/// that write into their inputs, and all of backward. A parameter is a leaf that requires a
/// gradient.
class DataParallelDefault {
 public:
  [[nodiscard]] DataParallelDefault();
  ~DataParallelDefault();
  DataParallelDefault(const DataParallelDefault&) = delete;
  DataParallelDefault& operator=(const DataParallelDefault&) = delete;
  DataParallelDefault(DataParallelDefault&&) = delete;
  DataParallelDefault& operator=(DataParallelDefault&&) = delete;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trireme
