// SPDX-License-Identifier: Apache-2.0
#include <python/native/gloo_checks.h>

#include <trireme/base/error.h>

#include <cstdint>
#include <string>

namespace trireme::python {
namespace {

using Tensors = std::vector<at::Tensor>;

template <typename... Parts>
[[noreturn]] void refuse(const char* call, const char* hint, const Parts&... parts) {
  throw UsageError(join_message(call, ": ", parts...), hint);
}

void check_root_rank(const char* call, const CallSite& site, std::int64_t root) {
  if (root >= 0 && root < site.size) return;
  refuse(call, "ranks count within the group", "invalid root rank: ", root,
         ", expected a rank from 0 to ", site.size - 1);
}

void check_root_tensor(const char* call, const Tensors& tensors, std::int64_t root) {
  if (root >= 0 && root < static_cast<std::int64_t>(tensors.size())) return;
  refuse(call, "the root tensor is the position of a tensor in the list",
         "invalid root tensor: ", root, " of a list of ", tensors.size());
}

void check_not_empty(const char* call, const Tensors& tensors) {
  if (tensors.empty()) {
    refuse(call, "give at least one tensor", "requires non-empty tensor list");
  }
}

void check_type(const char* call, const at::Tensor& tensor, const at::Tensor& expected,
                std::size_t index) {
  if (tensor.layout() != expected.layout()) {
    refuse(call, "convert one of the tensors", "invalid tensor layout at index ", index,
           " (expected ", expected.layout(), ", got ", tensor.layout(), ")");
  }
  if (tensor.scalar_type() != expected.scalar_type()) {
    refuse(call, "convert one of the tensors", "invalid tensor type at index ", index,
           " (expected ", expected.scalar_type(), ", got ", tensor.scalar_type(), ")");
  }
}

void check_size(const char* call, const at::Tensor& tensor, const at::Tensor& expected,
                std::size_t index, bool is_equal) {
  if (is_equal) return;
  refuse(call, "give tensors of one size", "invalid tensor size at index ", index, " (expected ",
         expected.sizes(), ", got ", tensor.sizes(), ")");
}

// Checks that all tensors have the layout, dtype and shape of the first.
void check_alike(const char* call, const Tensors& tensors) {
  for (std::size_t i = 1; i < tensors.size(); ++i) {
    check_type(call, tensors[i], tensors.front(), i);
    check_size(call, tensors[i], tensors.front(), i, tensors[i].sizes() == tensors.front().sizes());
  }
}

// Checks a list with a tensor for each rank, of the dtype and the number of elements of `expected`.
void check_list(const char* call, const CallSite& site, const char* what,
                const std::vector<Tensors>& lists, const at::Tensor& expected) {
  const std::string lower = what;
  std::string upper = lower;
  upper.front() = upper.front() == 'i' ? 'I' : 'O';  // input, output
  if (lists.size() != 1) {
    refuse(call, "give one list with a tensor for each rank on the root",
           "requires a single-element ", lower, " list containing a list with ", site.size,
           " tensors, got ", lists.size(), " lists");
  }
  const Tensors& list = lists.front();
  if (list.size() != static_cast<std::size_t>(site.size)) {
    refuse(call, "give one list with a tensor for each rank on the root", "Incorrect ", lower,
           " list size ", list.size(), ". ", upper, " list size should be ", site.size,
           ", same as size of the process group.");
  }
  for (std::size_t i = 0; i < list.size(); ++i) {
    check_type(call, list[i], expected, i);
    check_size(call, list[i], expected, i, list[i].numel() == expected.numel());
  }
}

}  // namespace

void check_broadcast(const CallSite& site, const Tensors& tensors,
                     const c10d::BroadcastOptions& options) {
  check_root_rank("broadcast", site, options.rootRank);
  check_root_tensor("broadcast", tensors, options.rootTensor);
  check_alike("broadcast", tensors);
}

void check_all_reduce(const Tensors& tensors, const c10d::AllreduceOptions& options) {
  check_not_empty("all_reduce", tensors);
  check_alike("all_reduce", tensors);
  if (tensors.front().is_sparse() && options.reduceOp.op_ != c10d::ReduceOp::SUM) {
    refuse("all_reduce", "use ReduceOp.SUM, or tensor.to_dense()",
           "unsupported reduction operation for a sparse tensor, expected the sum");
  }
}

void check_all_reduce_coalesced(const Tensors& tensors) {
  constexpr auto kCall = "all_reduce_coalesced";
  check_not_empty(kCall, tensors);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].layout() != tensors.front().layout()) {
      check_type(kCall, tensors[i], tensors.front(), i);
    }
    if (tensors[i].scalar_type() != tensors.front().scalar_type()) {
      refuse(kCall, "make one call per dtype", "tensors must all have the same type, got ",
             tensors.front().scalar_type(), " and ", tensors[i].scalar_type());
    }
  }
  if (tensors.front().layout() != at::kStrided) {
    refuse(kCall, "make one all_reduce per tensor, or use tensor.to_dense()", "unsupported layout ",
           tensors.front().layout(), ", expected Strided");
  }
}

void check_reduce(const CallSite& site, const Tensors& tensors,
                  const c10d::ReduceOptions& options) {
  check_root_rank("reduce", site, options.rootRank);
  check_root_tensor("reduce", tensors, options.rootTensor);
  if (tensors.size() != 1) {
    refuse("reduce", "make one call per tensor", "requires a single-element tensor list, got ",
           tensors.size(), " tensors");
  }
}

void check_gather(const CallSite& site, const std::vector<Tensors>& outputs, const Tensors& inputs,
                  const c10d::GatherOptions& options) {
  check_root_rank("gather", site, options.rootRank);
  if (inputs.size() != 1) {
    refuse("gather", "make one call per tensor",
           "requires a single-element input tensor list, got ", inputs.size(), " tensors");
  }
  if (site.rank == options.rootRank) {
    check_list("gather", site, "output", outputs, inputs.front());
  } else if (!outputs.empty()) {
    refuse("gather", "give outputs on the root alone", "requires empty output on non-root");
  }
}

void check_scatter(const CallSite& site, const Tensors& outputs, const std::vector<Tensors>& inputs,
                   const c10d::ScatterOptions& options) {
  check_root_rank("scatter", site, options.rootRank);
  if (outputs.size() != 1) {
    refuse("scatter", "make one call per tensor",
           "requires a single-element output tensor list, got ", outputs.size(), " tensors");
  }
  if (site.rank == options.rootRank) {
    check_list("scatter", site, "input", inputs, outputs.front());
  } else if (!inputs.empty()) {
    refuse("scatter", "give inputs on the root alone", "requires empty input on non-root");
  }
}

void check_all_gather(const CallSite& site, const std::vector<Tensors>& outputs,
                      const Tensors& inputs) {
  constexpr auto kCall = "all_gather";
  if (inputs.empty() && outputs.empty()) {
    refuse(kCall, "give at least one tensor", "requires non-empty input tensor list");
  }
  if (inputs.size() != outputs.size()) {
    refuse(kCall, "give a list of outputs for each input",
           "requires input/output tensor lists to have the same length, got ", inputs.size(),
           " inputs and ", outputs.size(), " lists of outputs");
  }
  check_alike(kCall, inputs);
  const std::size_t expected = inputs.size() * static_cast<std::size_t>(site.size);
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (outputs[i].size() != expected) {
      refuse(kCall, "give an output for each input of each rank",
             "invalid output tensor list at index ", i, " (expected length ", expected, ", got ",
             outputs[i].size(), ")");
    }
    for (std::size_t j = 0; j < outputs[i].size(); ++j) {
      check_type(kCall, outputs[i][j], inputs.front(), j);
      if (inputs.size() == 1) continue;
      check_size(kCall, outputs[i][j], inputs.front(), j,
                 outputs[i][j].numel() == inputs.front().numel());
    }
  }
}

void check_all_gather_coalesced(const CallSite& site, const std::vector<Tensors>& outputs,
                                const Tensors& inputs) {
  constexpr auto kCall = "all_gather_coalesced";
  if (inputs.empty()) {
    refuse(kCall, "give at least one tensor", "requires non-empty input tensor list");
  }
  if (outputs.size() != static_cast<std::size_t>(site.size)) {
    refuse(kCall, "give a list of outputs for each rank",
           "output lists should be equal to world size, got ", outputs.size(), " for ", site.size);
  }
  for (const Tensors& of_rank : outputs) {
    if (of_rank.size() != inputs.size()) {
      refuse(kCall, "give each rank an output for each input",
             "invalid output size: (expected length ", inputs.size(), ", got ", of_rank.size(),
             ")");
    }
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (of_rank[i].sizes() != inputs[i].sizes()) {
        refuse(kCall, "give outputs of the inputs' sizes",
               "invalid size of output tensor at index ", i, " (expected ", inputs[i].sizes(),
               ", got ", of_rank[i].sizes(), ")");
      }
      check_type(kCall, of_rank[i], inputs[i], i);
    }
  }
}

}  // namespace trireme::python
