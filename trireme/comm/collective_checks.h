// SPDX-License-Identifier: Apache-2.0
// Checks of the tensors, ranks and groups that are passed to collectives. All of them throw
// UsageError.
#pragma once

#include <trireme/comm/group.h>

#include <ATen/core/Tensor.h>

namespace trireme::comm {

/// Throws UsageError that says what the tensor is and what `operation` expects instead.
[[noreturn]] void refuse(const at::Tensor& tensor, const char* operation, const char* expected);

/// Checks that the tensor is dense: without gaps or overlaps, in any order of dimensions.
void check_dense(const at::Tensor& tensor, const char* operation);

/// Checks that the tensor is contiguous. Operations that concatenate slices need row-major order in
/// memory.
void check_rows(const at::Tensor& tensor, const char* operation);

/// Checks that `large` has as many times the elements of `small` as the group has ranks, and the
/// same dtype.
void check_multiple(const at::Tensor& large, const at::Tensor& small, const Group& group,
                    const char* operation, const char* large_name, const char* small_name);

/// Checks that `output` and `input` are contiguous, have the same dtype and number of elements, and
/// divide into a slice for each rank.
void check_all_to_all(const at::Tensor& output, const at::Tensor& input, const Group& group);

/// Announces a read of the tensor to those who observe its operators. If the storage refuses access
/// to its pointer, this runs an operator that reads no element. An observer throws there if the
/// values must not be read.
void before_read(const at::Tensor& tensor);

/// Announces a write to the tensor to those who observe its operators. If the storage refuses
/// access to its pointer, this runs an operator that writes no element.
void before_write(const at::Tensor& tensor);

/// Checks that `peer` is a rank of the group.
void check_peer(int peer, const Group& group, const char* operation);

/// Checks that this process belongs to the group, and that `peer` is another rank of it.
void check_other(int peer, const Group& group, const char* operation);

/// Returns whether the operation has anything to do, that is, whether the group has several ranks.
/// Throws UsageError for an empty group, and for one that this process does not belong to.
bool is_needed(const Group& group, const char* operation);

}  // namespace trireme::comm
