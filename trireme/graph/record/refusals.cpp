// SPDX-License-Identifier: Apache-2.0
#include <trireme/graph/record/refusals.h>

#include <trireme/base/error.h>

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <limits>
#include <unordered_set>

namespace trireme::graph::detail {
namespace {

std::string shape_of(const at::Tensor& tensor) {
  return join_message(tensor.scalar_type(), " ", tensor.sizes());
}

}  // namespace

void refuse_value(const std::string& where, std::string_view why) {
  throw UsageError(join_message("capture: ", where, " ", why),
                   join_message("leave what needs the value (item(), nonzero(), printing, branches "
                                "on it) out of forward, or ",
                                kByHand));
}

void refuse_function(const std::string& where) {
  throw UsageError(
      join_message("capture: a torch::autograd::Function was applied just before or around ", where,
                   ": the operators within it would be recorded, and the backward that it was "
                   "written for lost"),
      join_message("write it with operators whose gradients LibTorch knows, or register it as an "
                   "operator with an autograd kernel (TORCH_LIBRARY), or ",
                   kByHand));
}

void refuse_gradient(const std::string& where) {
  throw UsageError(
      join_message("capture: ", where, " belongs to a backward pass that forward itself starts"),
      join_message("take gradients outside of what is captured, or ", kByHand));
}

void refuse_unseen(const std::string& where, const at::Tensor& tensor) {
  throw UsageError(
      join_message(
          "capture: ", where, " is given a tensor, ", shape_of(tensor),
          ", that comes from a part of forward that is not seen: another thread, or a copy "
          "past the dispatcher (variable_data, tensor_data)"),
      join_message("compute it on the thread of forward and with operators, or ", kByHand));
}

void refuse_meta(const std::string& where, const at::Tensor& tensor) {
  throw UsageError(join_message("capture: ", where, " is given a meta tensor, ", shape_of(tensor),
                                ", that is neither an input nor a tensor of the module"),
                   "give it as one of the inputs, or register it as a buffer");
}

void refuse_write(const std::string& where, const at::Tensor& tensor) {
  throw UsageError(join_message("capture: ", where, " writes to a tensor, ", shape_of(tensor),
                                ", that forward has not made and the module does not have"),
                   "register it as a buffer, or give it as one of the inputs");
}

void refuse_foreign_parameter(const std::string& where, const at::Tensor& tensor) {
  throw UsageError(join_message("capture: ", where, " is given a tensor, ", shape_of(tensor),
                                ", that requires a gradient and is neither an input nor a "
                                "parameter of the module"),
                   "register it as a parameter, or give it as one of the inputs");
}

void refuse_failed(const std::string& where, std::string_view what) {
  throw UsageError(
      join_message("capture: ", where, ": ", what.substr(0, what.find("\n  hint:"))),
      join_message(
          "where forward by itself fails too, give it tensors of the shapes and types that "
          "the module takes; where it runs, the operator has no rule that says what it "
          "gives (docs/guide/rules.md says how to add one), or it needs values: leave it "
          "out of forward, or ",
          kByHand));
}

void check_hooks(const std::vector<at::Tensor>& results,
                 const std::function<std::string(std::uint64_t)>& describe) {
  // Visits the autograd graph of the results; each node once.
  std::unordered_set<const torch::autograd::Node*> seen;
  std::vector<torch::autograd::Node*> waiting;
  const auto add = [&](torch::autograd::Node* node) {
    if (node != nullptr && seen.insert(node).second) waiting.push_back(node);
  };
  for (const at::Tensor& result : results) {
    if (result.defined() && result.grad_fn()) add(result.grad_fn().get());
  }
  while (!waiting.empty()) {
    torch::autograd::Node* const node = waiting.back();
    waiting.pop_back();
    // Nodes that accumulate gradients of parameters have hooks of the user, which stay.
    if (node->sequence_nr() == std::numeric_limits<std::uint64_t>::max()) continue;
    if (!node->tensor_pre_hooks().empty() || !node->pre_hooks().empty() ||
        !node->post_hooks().empty()) {
      throw UsageError(
          join_message("capture: forward sets a hook on the gradient of what ",
                       describe(node->sequence_nr()), " gives, and a record would lose it"),
          join_message("leave register_hook out of forward, or ", kByHand));
    }
    for (const torch::autograd::Edge& edge : node->next_edges()) add(edge.function.get());
  }
}

}  // namespace trireme::graph::detail
