// SPDX-License-Identifier: Apache-2.0
#include <trireme/comm/collective_checks.h>

#include <trireme/base/error.h>
#include <trireme/comm/engine.h>

#include <c10/util/Exception.h>

namespace trireme::comm {

void refuse(const at::Tensor& tensor, const char* operation, const char* expected) {
  throw UsageError(
      join_message(operation, " was given ",
                   tensor.defined()
                       ? join_message("a tensor of sizes ", tensor.sizes(), ", strides ",
                                      tensor.strides(), ", on ", tensor.device())
                       : std::string("an undefined tensor"),
                   ", expected ", expected),
      "pass tensor.contiguous()");
}

void check_dense(const at::Tensor& tensor, const char* operation) {
  if (!tensor.defined() || !tensor.is_non_overlapping_and_dense()) {
    refuse(tensor, operation, "a dense one, without gaps or overlaps");
  }
}

void check_rows(const at::Tensor& tensor, const char* operation) {
  check_dense(tensor, operation);
  if (!tensor.is_contiguous()) refuse(tensor, operation, "a contiguous one, not a permuted one");
}

namespace {

// Returns false for outdated values of a TrainingStep, and for tensors without memory.
bool gives_pointer(const at::Tensor& tensor) {
  if (!tensor.has_storage()) return true;
  try {
    static_cast<void>(tensor.storage().data());
    return true;
  } catch (const c10::Error&) {
    return false;
  }
}

at::Tensor nothing_of(const at::Tensor& tensor) { return tensor.detach().as_strided({0}, {1}); }

}  // namespace

void before_read(const at::Tensor& tensor) {
  if (!gives_pointer(tensor)) static_cast<void>(nothing_of(tensor).clone());
}

void before_write(const at::Tensor& tensor) {
  if (!gives_pointer(tensor)) nothing_of(tensor).zero_();
}

void check_multiple(const at::Tensor& large, const at::Tensor& small, const Group& group,
                    const char* operation, const char* large_name, const char* small_name) {
  if (large.scalar_type() == small.scalar_type() && large.numel() == small.numel() * group.size())
    return;
  throw UsageError(join_message(operation, " over ", group.size(), " ranks: ", large_name, " is ",
                                large.sizes(), " of ", large.scalar_type(), ", ", small_name,
                                " is ", small.sizes(), " of ", small.scalar_type()),
                   join_message(large_name, " needs ", group.size(), " times the elements of ",
                                small_name, " and the same dtype"));
}

void check_peer(int peer, const Group& group, const char* operation) {
  if (peer >= 0 && peer < group.size()) return;
  throw UsageError(join_message(operation, " with rank ", peer, " of group '", group.name(),
                                "', which has ranks 0 to ", group.size() - 1),
                   "give a rank that is in the group");
}

bool is_needed(const Group& group, const char* operation) {
  if (group.rank() < 0) {
    throw UsageError(join_message(operation, " on group '", group.name(),
                                  "', to which this process does not belong"),
                     "call it only on ranks that are in the list given to subgroup");
  }
  if (group.size() > 1) return true;
  check_given(group, operation);
  return false;
}

void check_all_to_all(const at::Tensor& output, const at::Tensor& input, const Group& group) {
  check_rows(output, "all-to-all");
  check_rows(input, "all-to-all");
  if (output.scalar_type() == input.scalar_type() && output.numel() == input.numel() &&
      input.numel() % group.size() == 0) {
    return;
  }
  throw UsageError(join_message("all-to-all over ", group.size(), " ranks: input is ",
                                input.sizes(), " of ", input.scalar_type(), ", output is ",
                                output.sizes(), " of ", output.scalar_type()),
                   "both need the same dtype and the same number of elements, a multiple of the "
                   "number of ranks");
}

void check_other(int peer, const Group& group, const char* operation) {
  is_needed(group, operation);
  check_peer(peer, group, operation);
  if (peer != group.rank()) return;
  throw UsageError(
      join_message(operation, " between rank ", peer, " of group '", group.name(), "' and itself"),
      "name another rank of the group");
}

}  // namespace trireme::comm
