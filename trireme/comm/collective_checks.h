// SPDX-License-Identifier: Apache-2.0
// What a collective asks of its tensors, ranks and group. All throw UsageError.
#pragma once

#include <trireme/comm/group.h>

#include <ATen/core/Tensor.h>

namespace trireme::comm {

/// Says what the tensor is and what was expected instead.
[[noreturn]] void refuse(const at::Tensor& tensor, const char* operation, const char* expected);

/// For a tensor on a device that the group's engine does not carry: names the engines that do.
[[noreturn]] void refuse_device(const at::Tensor& tensor, const char* operation,
                                const Group& group);

/// Without gaps or overlaps, in any order of dimensions.
void check_dense(const at::Tensor& tensor, const char* operation);

/// Contiguous: for operations that concatenate slices, memory order must be row-major order.
void check_rows(const at::Tensor& tensor, const char* operation);

/// `large` has as many times the elements of `small` as the group has ranks.
void check_multiple(const at::Tensor& large, const at::Tensor& small, const Group& group,
                    const char* operation, const char* large_name, const char* small_name);

void check_all_to_all(const at::Tensor& output, const at::Tensor& input, const Group& group);

/// If the storage of a tensor refuses access to its pointer, runs an operator that reads no
/// element. An observer of the tensor throws there if its values must not be read.
void before_read(const at::Tensor& tensor);

/// If the storage of a tensor refuses access to its pointer, runs an operator that writes no
/// element. An observer of the tensor thereby learns that it is written.
void before_write(const at::Tensor& tensor);

/// In the group.
void check_peer(int peer, const Group& group, const char* operation);

/// In the group, which this process belongs to, and not this rank.
void check_other(int peer, const Group& group, const char* operation);

/// Returns whether there is anything to do for this operation: not in a group of one. Throws for an
/// empty group.
bool is_needed(const Group& group, const char* operation);

}  // namespace trireme::comm
