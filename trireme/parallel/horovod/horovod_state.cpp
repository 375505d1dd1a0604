// SPDX-License-Identifier: Apache-2.0
// Broadcasts parameters and optimizer state from one rank to all, as Horovod does.
#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/checkpoint/optimizer_state.h>
#include <trireme/parallel/buckets/buffer_broadcast.h>
#include <trireme/parallel/horovod.h>
#include <trireme/parallel/horovod/calls.h>
#include <trireme/parallel/module/agreement.h>

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <typeinfo>

namespace trireme::hvd {
namespace {

using trireme::detail::NamedTensor;

detail::Mistake mistake_of_root(int root_rank, const comm::Group& group) {
  if (root_rank >= 0 && root_rank < group.size()) return {};
  return {join_message("root_rank is ", root_rank, ", expected 0 to ", group.size() - 1),
          "give a rank of the process set"};
}

void broadcast_all(const std::vector<at::Tensor>& tensors, int root_rank,
                   const comm::Group& group) {
  // Dense tensors are sent concurrently. Others need a copy, and are sent one by one.
  std::vector<comm::Work> works;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.is_non_overlapping_and_dense()) {
      works.push_back(comm::broadcast_async(tensor, root_rank, group));
    } else {
      trireme::detail::broadcast_strided(tensor, root_rank, group);
    }
  }
  for (comm::Work& work : works) work.wait();
}

void broadcast_tensors(const std::vector<NamedTensor>& tensors, const std::string& kind,
                       int root_rank, const comm::Group& group) {
  trireme::detail::check_same_on_all_ranks(tensors, kind, group);
  std::vector<at::Tensor> values;
  for (const NamedTensor& tensor : tensors) values.push_back(tensor.tensor);
  broadcast_all(values, root_rank, group);
}

// Registers the optimizer's parameters in a module by their places: `0_3` is parameter 3 of group
// 0. The component `checkpoint` identifies parameters of optimizers by name.
void register_places(const torch::optim::Optimizer& optimizer, torch::nn::Module& places) {
  for (std::size_t group = 0; group < optimizer.param_groups().size(); ++group) {
    const auto& parameters = optimizer.param_groups()[group].params();
    for (std::size_t place = 0; place < parameters.size(); ++place) {
      places.register_parameter(join_message(group, "_", place), parameters[place],
                                parameters[place].requires_grad());
    }
  }
}

using Parameters = torch::OrderedDict<std::string, at::Tensor>;

// Returns the parameter of a state named `optimizer.<place>.<field>`.
const at::Tensor& parameter_of(const std::string& name, const Parameters& parameters) {
  const auto begin = name.find('.') + 1;
  return parameters[name.substr(begin, name.find('.', begin) - begin)];
}

// Returns a mistake if a state is not shaped like its parameter, as the receiving ranks expect.
detail::Mistake mistake_of_state(const checkpoint::TensorMap& tensors,
                                 const Parameters& parameters) {
  for (const auto& [name, tensor] : tensors) {
    const at::Tensor& parameter = parameter_of(name, parameters);
    const bool fits =
        tensor.sizes() == parameter.sizes() && tensor.scalar_type() == parameter.scalar_type();
    if (fits) continue;
    return {join_message("the state ", name, " is ", tensor.scalar_type(), " ", tensor.sizes(),
                         ", its parameter ", parameter.scalar_type(), " ", parameter.sizes()),
            "make a new optimizer after the model was cast or changed"};
  }
  return {};
}

std::string describe(const torch::optim::Optimizer& optimizer, int root_rank) {
  TextWriter text;
  text << c10::demangle(typeid(optimizer).name()) << " with groups of";
  for (const auto& group : optimizer.param_groups()) text << " " << group.params().size();
  text << " parameters, from rank " << root_rank;
  return text.str();
}

}  // namespace

NamedParameters named_parameters(ConstModuleRef given, const std::string& prefix) {
  const torch::nn::Module& module = *given;
  NamedParameters parameters;
  for (const NamedTensor& item : trireme::detail::named_tensors(module.named_parameters())) {
    parameters.emplace_back(prefix.empty() ? item.name : prefix + "." + item.name, item.tensor);
  }
  return parameters;
}

void broadcast_parameters(ConstModuleRef given, int root_rank, const comm::Group& process_set) {
  const torch::nn::Module& module = *given;
  detail::check_same_call("broadcast_parameters", join_message("root rank ", root_rank),
                          mistake_of_root(root_rank, process_set), process_set);
  broadcast_tensors(trireme::detail::named_tensors(module.named_parameters()), "parameter",
                    root_rank, process_set);
  broadcast_tensors(trireme::detail::named_tensors(module.named_buffers()), "buffer", root_rank,
                    process_set);
}

void broadcast_parameters(const NamedParameters& parameters, int root_rank,
                          const comm::Group& process_set) {
  detail::check_same_call("broadcast_parameters", join_message("root rank ", root_rank),
                          mistake_of_root(root_rank, process_set), process_set);
  std::vector<NamedTensor> tensors;
  for (const auto& [name, tensor] : parameters) tensors.push_back({name, tensor});
  broadcast_tensors(tensors, "parameter", root_rank, process_set);
}

void broadcast_optimizer_state(torch::optim::Optimizer& optimizer, int root_rank,
                               const comm::Group& process_set) {
  detail::check_same_call("broadcast_optimizer_state", describe(optimizer, root_rank),
                          mistake_of_root(root_rank, process_set), process_set);
  torch::nn::Module places;
  register_places(optimizer, places);
  trireme::detail::check_same_on_all_ranks(
      trireme::detail::named_tensors(places.named_parameters()), "parameter of the optimizer",
      process_set);

  checkpoint::OptimizerState state = checkpoint::optimizer_state(optimizer, places);
  std::string names;
  for (const auto& [name, tensor] : state.tensors) names += name + "\n";
  const auto parameters = places.named_parameters();
  const bool is_root = process_set.rank() == root_rank;
  // Only the root's state is sent, but a mistake in it must be an error on all ranks.
  detail::check_same_call("broadcast_optimizer_state", "state",
                          is_root ? mistake_of_state(state.tensors, parameters) : detail::Mistake(),
                          process_set);
  state.scalars = broadcast_object(state.scalars, root_rank, process_set);
  TextReader lines(broadcast_object(names, root_rank, process_set));
  checkpoint::TensorMap tensors;
  std::vector<at::Tensor> values;
  for (std::string name; std::getline(lines, name);) {
    const at::Tensor& parameter = parameter_of(name, parameters);
    at::Tensor& value = tensors[name];
    value = is_root ? state.tensors.at(name).contiguous()
                    : at::empty(parameter.sizes(), parameter.options().requires_grad(false));
    values.push_back(value);
  }
  broadcast_all(values, root_rank, process_set);
  state.tensors = std::move(tensors);
  // Loaded on the root too, so that the state has the same strides on all ranks.
  checkpoint::load_optimizer_state(state, optimizer, places,
                                   join_message("the state of rank ", root_rank));
}

}  // namespace trireme::hvd
