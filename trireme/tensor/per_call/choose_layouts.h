// SPDX-License-Identifier: Apache-2.0
// The layouts that an operator's strategy, or data parallelism, asks of the inputs of one call.
#pragma once

#include <trireme/tensor/operator_strategy.h>
#include <trireme/tensor/rules/rule.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace trireme::tensor {

/// Strategies along one axis, as Rule::strategies gives them.
using StrategiesOf = std::function<void(const AxisCall&, std::vector<Strategy>&)>;

/// A call whose inputs are to be laid out.
struct OpenCall {
  std::string name;                ///< of the operator, for messages
  const Call& call;                ///< outputs may be missing where it is composite
  const StrategiesOf& strategies;  ///< empty: it takes its inputs whole
  c10::ArrayRef<Layout> current;   ///< of the inputs; plain ones count as replicated
  const DeviceMesh& mesh;
};

/// Layouts that cut each input as the strategy says: those of the operator's combinations that are
/// reached at least cost. On a mesh of one rank, those that the inputs have. Throws UsageError as
/// with_strategy says.
std::vector<Layout> layouts_by_strategy(const OpenCall& open, const OperatorStrategy& strategy);

/// Layouts that cut dim 0 of inputs that are no parameters over all ranks; none where
/// DataParallelDefault leaves the call as it is.
std::optional<std::vector<Layout>> layouts_by_batch(const OpenCall& open,
                                                    const std::vector<bool>& is_parameter);

/// Whether LibTorch made the tensor of a number.
bool is_number(const at::Tensor& tensor);

}  // namespace trireme::tensor
