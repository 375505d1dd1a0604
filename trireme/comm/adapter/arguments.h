// SPDX-License-Identifier: Apache-2.0
// From the tensors that c10d's callers give to the buffers of an Operation: checks, copies of what
// is not in the form that the engine wants, split sizes.
#pragma once

#include <trireme/comm/adapter/engine_connection.h>
#include <trireme/comm/adapter/operation.h>

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace trireme::comm {

/// The arguments of one call, which become an Operation. Everything throws UsageError for what
/// cannot be; nothing has happened then.
class Arguments {
 public:
  using Tensors = std::vector<at::Tensor>;

  Arguments(OperationKind kind, const EngineConnection& engine);

  /// Returns the only tensor of a list.
  const at::Tensor& only(const Tensors& tensors) const;
  /// Returns the only list, which has a tensor for each rank.
  const Tensors& only_list(const std::vector<Tensors>& lists) const;
  void check_same_type(const at::Tensor& one, const at::Tensor& other) const;
  /// @param what has these elements, for the message: `the output`.
  void check_elements(std::int64_t count, std::int64_t expected, const char* what) const;

  /// Sets the root, which must be in the group.
  void set_root(std::int64_t root);
  /// Sets the other rank of a message, which must be in the group.
  void set_peer(int peer, int tag);
  /// Sets how values are folded, which must be defined for the dtype.
  void set_reduction(const c10d::ReduceOp& op, at::ScalarType type);

  /// Sets input or output to one tensor, as `num_pieces` pieces of one length.
  void set_input(const at::Tensor& tensor, int num_pieces = 1);
  void set_output(const at::Tensor& tensor, int num_pieces = 1);
  /// Sets them to a tensor for each rank.
  void set_inputs(const Tensors& tensors);
  void set_outputs(const Tensors& tensors);
  /// Sets them to the rows of one tensor: `splits` of them for each rank, as many where it is
  /// empty.
  void set_input_rows(const at::Tensor& tensor, const std::vector<std::int64_t>& splits);
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
