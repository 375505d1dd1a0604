// SPDX-License-Identifier: Apache-2.0
#include <trireme/checkpoint/module_state.h>

#include <trireme/base/error.h>

#include <torch/torch.h>

#include <set>
#include <vector>

namespace trireme::checkpoint {
namespace {

struct Member {
  std::string_view kind;
  std::string name;
  at::Tensor tensor;
};

// Returns parameters, then buffers, each in the order of registration.
std::vector<Member> members_of(const torch::nn::Module& module) {
  std::vector<Member> members;
  for (const auto& item : module.named_parameters())
    members.push_back({"parameter", item.key(), item.value()});
  for (const auto& item : module.named_buffers())
    members.push_back({"buffer", item.key(), item.value()});
  return members;
}

// Returns a message if the saved tensor does not match this member; otherwise an empty string.
std::string misfit(const Member& member, const TensorMap& tensors) {
  const auto found = tensors.find(member.name);
  if (found == tensors.end()) {
    return join_message("of shape ", member.tensor.sizes(), " is missing there");
  }
  const at::Tensor& saved = found->second;
  if (saved.sizes() != member.tensor.sizes()) {
    return join_message("has shape ", saved.sizes(), " there and ", member.tensor.sizes(),
                        " in the model");
  }
  if (saved.scalar_type() != member.tensor.scalar_type()) {
    return join_message("has dtype ", saved.scalar_type(), " there and ",
                        member.tensor.scalar_type(), " in the model");
  }
  return {};
}

}  // namespace

TensorMap module_tensors(ConstModuleRef given) {
  const torch::nn::Module& module = *given;
  TensorMap tensors;
  for (Member& member : members_of(module)) {
    if (!tensors.emplace(member.name, member.tensor.detach()).second) {
      throw UsageError(join_message("the module has a parameter and a buffer of the same name '",
                                    member.name, "'"),
                       "rename one of them");
    }
  }
  return tensors;
}

void check_module_tensors(const TensorMap& tensors, ConstModuleRef given, std::string_view source) {
  const torch::nn::Module& module = *given;
  std::string first;
  std::size_t missing = 0;
  std::size_t different = 0;
  std::set<std::string_view> known;
  const std::vector<Member> members = members_of(module);
  for (const Member& member : members) {
    known.insert(member.name);
    const std::string problem = misfit(member, tensors);
    if (problem.empty()) continue;
    // The message shows the first problem and counts the others.
    if (first.empty()) {
      first = join_message(member.kind, " '", member.name, "' ", problem);
    } else {
      (tensors.contains(member.name) ? different : missing) += 1;
    }
  }
  std::size_t unexpected = 0;
  for (const auto& [name, tensor] : tensors) {
    if (known.contains(name)) continue;
    if (first.empty()) {
      first =
          join_message("'", name, "' of shape ", tensor.sizes(), " is there and not in the model");
    } else {
      ++unexpected;
    }
  }
  if (first.empty()) return;
  throw CheckpointError(
      join_message(source, " is of another model: ", first, " (besides it: ", different,
                   " of another shape or dtype, ", missing, " missing, ", unexpected,
                   " unexpected)"),
      "build the model with the options it was saved with, or give the checkpoint of this model");
}

void load_module_tensors(const TensorMap& tensors, ModuleRef given, std::string_view source) {
  torch::nn::Module& module = *given;
  check_module_tensors(tensors, module, source);
  const torch::NoGradGuard no_grad;
  for (Member& member : members_of(module)) member.tensor.copy_(tensors.at(member.name));
}

}  // namespace trireme::checkpoint
