// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/module/agreement.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/comm/check_values.h>
#include <trireme/comm/consensus.h>
#include <trireme/parallel/init/deferred_scope.h>

namespace trireme::detail {
namespace {

// Returns one line for each tensor: `weight [10, 4] strides [4, 1] Float on cpu, trained`.
std::string describe(const std::vector<NamedTensor>& tensors) {
  TextWriter text;
  for (const auto& [name, tensor, has_sparse_gradient] : tensors) {
    text << name << " " << tensor.sizes() << " strides " << tensor.strides() << " "
         << tensor.scalar_type() << " on "
         << c10::DeviceTypeName(tensor.device().type(), /*lower_case=*/true)
         << (tensor.requires_grad() ? ", trained" : "")
         << (has_sparse_gradient ? ", sparse gradient" : "")
         << (is_deferred(tensor) ? ", without memory" : "") << "\n";
  }
  return text.str();
}

}  // namespace

std::int64_t digest_of(const at::Tensor& tensor) {
  return comm::digest_of_values(tensor.detach().as_strided({tensor.numel()}, {1}));
}

void check_same_text(const std::string& what, const std::string& text, const comm::Group& group,
                     const std::string& hint) {
  const auto difference = comm::find_difference(text, group);
  if (!difference) return;
  throw UsageError(
      join_message("ranks differ in the ", what, ": rank 0 has '", difference->line_of_first,
                   "', rank ", difference->rank, " has '", difference->line_of_rank, "'"),
      hint.empty() ? join_message("give every rank the same ", what) : hint);
}

void succeed_together(const comm::Group& group, const std::string& doing,
                      const std::function<void()>& call) {
  comm::succeed_together(doing, group, call);
}

void abort(const comm::Group& group, const std::string& reason) { group.abort(reason); }

void check_same_on_all_ranks(const std::vector<NamedTensor>& tensors, const std::string& kind,
                             const comm::Group& group) {
  const auto difference = comm::find_difference(describe(tensors), group);
  if (!difference) return;
  throw UsageError(join_message("the module differs between ranks, first in a ", kind,
                                ":\n    rank 0 has ", difference->line_of_first, "\n    rank ",
                                difference->rank, " has ", difference->line_of_rank),
                   "build the same module on every rank before parallelize");
}

}  // namespace trireme::detail
