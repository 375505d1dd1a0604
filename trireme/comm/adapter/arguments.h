// SPDX-License-Identifier: Apache-2.0
// Arguments: turns the tensors that callers of c10d pass into the buffers of an Operation. Checks
// them, copies those that are not in the form that the engine needs, and applies split sizes.
#pragma once

#include <trireme/comm/adapter/engine_connection.h>
#include <trireme/comm/adapter/operation.h>

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace trireme::comm {

/// The arguments of one call, which become an Operation. All functions throw UsageError for wrong
/// arguments, before anything is sent.
class Arguments {
 public:
  using Tensors = std::vector<at::Tensor>;

  Arguments(OperationKind kind, const EngineConnection& engine);

  const at::Tensor& only(const Tensors& tensors) const;
  /// Returns the only list, which must have a tensor for each rank.
  const Tensors& only_list(const std::vector<Tensors>& lists) const;
  /// Checks that both tensors have the same dtype.
  void check_same_type(const at::Tensor& one, const at::Tensor& other) const;
  /// Checks that `count` is `expected`.
  /// @param what names what has these elements, for the message, such as `the output`.
  void check_elements(std::int64_t count, std::int64_t expected, const char* what) const;

  /// Sets the root, which must be in the group.
  void set_root(std::int64_t root);
  /// Sets the other rank of a message, which must be in the group.
  void set_peer(int peer, int tag);
  /// Sets the reduction, which must be defined for the dtype.
  void set_reduction(const c10d::ReduceOp& op, at::ScalarType type);

  /// Sets the input to one tensor, as `num_pieces` pieces of equal length.
  void set_input(const at::Tensor& tensor, int num_pieces = 1);
  /// Sets the output to one tensor, as `num_pieces` pieces of equal length.
  void set_output(const at::Tensor& tensor, int num_pieces = 1);
  /// Sets the input to a tensor for each rank.
  void set_inputs(const Tensors& tensors);
  /// Sets the output to a tensor for each rank.
  void set_outputs(const Tensors& tensors);
  /// Sets the input to the rows of one tensor. `splits` is the number of rows for each rank. If it
  /// is empty, all ranks have equally many.
  void set_input_rows(const at::Tensor& tensor, const std::vector<std::int64_t>& splits);
  /// Sets the output to the rows of one tensor, like `set_input_rows`.
  void set_output_rows(const at::Tensor& tensor, const std::vector<std::int64_t>& splits);

  Operation take() && { return std::move(operation_); }

 private:
  void check_tensor(const at::Tensor& tensor) const;
  std::vector<std::int64_t> check_splits(const at::Tensor& tensor,
                                         const std::vector<std::int64_t>& splits,
                                         const char* what) const;
  at::Tensor input_memory(const at::Tensor& tensor) const;
  at::Tensor output_memory(const at::Tensor& tensor);

  const EngineConnection& engine_;
  const int size_;
  const TensorForm form_;
  std::string title_;  // `all-gather over 4 ranks`
  Operation operation_;
};

}  // namespace trireme::comm
