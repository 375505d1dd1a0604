// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/state_dict.h>

#include <trireme/base/error.h>
#include <trireme/checkpoint/module_state.h>
#include <trireme/comm/collectives.h>
#include <trireme/parallel/init/deferred_scope.h>
#include <trireme/parallel/manual.h>
#include <trireme/parallel/module/local_memory.h>
#include <trireme/parallel/state/stage_gatherer.h>
#include <trireme/tensor/distributed_tensor.h>

#include <torch/torch.h>

#include <memory>
#include <utility>

namespace trireme {
namespace {

// A module with the given tensors as its parameters, registered under their dotted names.
class Names : public torch::nn::Module {
 public:
  void add(const std::string& name, const at::Tensor& tensor) {
    const auto dot = name.find('.');
    if (dot == std::string::npos) {
      register_parameter(name, tensor, tensor.requires_grad());
      return;
    }
    const std::string first = name.substr(0, dot);
    if (!children_.contains(first)) {
      children_[first] = register_module(first, std::make_shared<Names>());
    }
    children_.at(first)->add(name.substr(dot + 1), tensor);
  }

 private:
  std::map<std::string, std::shared_ptr<Names>> children_;
};

// Returns the parts of parameters by name. An optimizer may list parameters that other stages use,
// so `only_own` is false for optimizers.
Names names_of_parts(const Parallelized& parallelized, bool only_own) {
  Names names;
  for (const Parallelized::Part& part : parallelized.parts()) {
    if (part.is_own || !only_own) names.add(part.name, part.tensor);
  }
  return names;
}

bool has_memory(const at::Tensor& tensor) {
  return tensor.defined() && !detail::is_deferred(tensor);
}

// Describes the layout of a tensor; empty for a plain tensor.
std::string layout_text(const at::Tensor& tensor) {
  if (!has_layout(tensor)) return {};
  const Layout layout = layout_of(tensor);
  return join_message(layout.to_string(), " on ", layout.mesh().to_string());
}

// Returns `values` on the mesh of `like`. If the layouts are equal but the meshes are different
// objects of the same shape, each rank's part is the same and is reused.
at::Tensor on_mesh_of(const at::Tensor& like, const at::Tensor& values) {
  if (!has_layout(like) || layout_text(like) != layout_text(values)) return values;
  return from_local(detail::memory_of(values).detach(), layout_of(like), values.sizes());
}

checkpoint::TensorMap on_meshes_of(const checkpoint::TensorMap& like,
                                   const checkpoint::TensorMap& values) {
  checkpoint::TensorMap all;
  for (const auto& [name, tensor] : values) {
    const auto found = like.find(name);
    all[name] = found == like.end() ? tensor : on_mesh_of(found->second, tensor);
  }
  return all;
}

checkpoint::TensorMap copies(const checkpoint::TensorMap& tensors) {
  checkpoint::TensorMap all;
  for (const auto& [name, tensor] : tensors) {
    all[name] = tensor.detach().to(at::kCPU, tensor.scalar_type(), /*non_blocking=*/false,
                                   /*copy=*/true);
  }
  return all;
}

// While it lives, the optimizer has whole parameters with their whole state.
class WholeOptimizer {
 public:
  WholeOptimizer(Parallelized& parallelized, torch::optim::Optimizer& optimizer)
      : parallelized_(parallelized), optimizer_(optimizer) {
    parallelized_.unshard(optimizer_);
  }
  WholeOptimizer(const WholeOptimizer&) = delete;
  WholeOptimizer& operator=(const WholeOptimizer&) = delete;
  ~WholeOptimizer() { parallelized_.shard(optimizer_); }

 private:
  Parallelized& parallelized_;
  torch::optim::Optimizer& optimizer_;
};

}  // namespace

FullState full_state(Parallelized& parallelized, ConstModuleRef given,
                     torch::optim::Optimizer& optimizer, int root) {
  const torch::nn::Module& module = *given;
  const comm::Group& group = parallelized.group();
  if (root < 0 || root >= group.size()) {
    throw UsageError(join_message("full_state was asked to collect on rank ", root,
                                  " of a group of ", group.size()),
                     "give a rank of the group");
  }
  const torch::NoGradGuard no_grad;
  const bool is_root = group.rank() == root;
  FullState state;
  const WholeOptimizer whole(parallelized, optimizer);
  const detail::StageGatherer places(parallelized);
  for (const auto& [name, tensor] : checkpoint::module_tensors(module)) {
    const detail::StageUse use = detail::use_of(parallelized, name);
    // full() gathers the tensor. It is called on all ranks that have the tensor.
    at::Tensor present = use.is_own ? full(tensor.detach()) : tensor;
    present = places.gather_to(present, use.first_rank, root);
    if (is_root) state.module.merge(copies({{name, present}}));
  }
  checkpoint::OptimizerState content = checkpoint::optimizer_state(optimizer, module);
  places.gather_all_to(content, parallelized, root);
  for (const auto& [name, tensor] : content.tensors) {
    const at::Tensor present = full(tensor);
    if (is_root) state.optimizer.tensors.merge(copies({{name, present}}));
  }
  if (is_root) state.optimizer.scalars = std::move(content.scalars);
  return state;
}

void load_full_state(const FullState& state, Parallelized& parallelized, ModuleRef given,
                     torch::optim::Optimizer& optimizer) {
  torch::nn::Module& module = *given;
  constexpr auto kSource = "the given state";
  const WholeOptimizer whole(parallelized, optimizer);
  // Check the module before the optimizer is changed, so that an error leaves both as they were.
  checkpoint::check_module_tensors(state.module, module, kSource);
  checkpoint::load_optimizer_state(detail::state_of_stages(state.optimizer, parallelized),
                                   optimizer, module, kSource);
  if (!detail::StageGatherer(parallelized).has_stages()) {
    return checkpoint::load_module_tensors(state.module, module, kSource);
  }
  // Tensors of other stages may have no memory on this rank.
  const torch::NoGradGuard no_grad;
  const auto load = [&](const auto& tensors) {
    for (const auto& item : tensors) {
      if (has_memory(item.value())) at::Tensor(item.value()).copy_(state.module.at(item.key()));
    }
  };
  load(module.named_parameters());
  load(module.named_buffers());
}

PartialState partial_state(const Parallelized& parallelized, ConstModuleRef given,
                           torch::optim::Optimizer& optimizer) {
  const torch::nn::Module& module = *given;
  PartialState state;
  const auto is_own = [&](const std::string& name) {
    return detail::use_of(parallelized, name).is_own;
  };
  for (const auto& buffer : module.named_buffers()) {
    if (!has_memory(buffer.value()) || !is_own(buffer.key())) continue;
    state.buffers[buffer.key()] = buffer.value().detach();
  }
  for (const Parallelized::Part& part : parallelized.parts()) {
    if (!part.is_own) continue;
    state.parameters[part.name] = part.tensor.detach();
    state.places[part.name] = {.sizes = part.parameter.sizes().vec(),
                               .strides = part.parameter.strides().vec(),
                               .offset = part.offset,
                               .layout = layout_text(part.parameter),
                               .is_whole = part.tensor.is_same(part.parameter)};
  }
  parallelized.with_whole_parts(optimizer, [&] {
    state.optimizer =
        checkpoint::optimizer_state(optimizer, names_of_parts(parallelized, /*only_own=*/false));
  });
  return state;
}

void load_optimizer_parts(const checkpoint::OptimizerState& state, const Parallelized& parallelized,
                          torch::optim::Optimizer& optimizer, std::string_view source) {
  const Names names = names_of_parts(parallelized, /*only_own=*/false);
  parallelized.with_whole_parts(
      optimizer, [&] { checkpoint::load_optimizer_state(state, optimizer, names, source); });
}

void load_partial_state(const PartialState& state, Parallelized& parallelized, ModuleRef given,
                        torch::optim::Optimizer& optimizer) {
  torch::nn::Module& module = *given;
  const auto is_own = [&](const std::string& name) {
    return detail::use_of(parallelized, name).is_own;
  };
  const auto parts = parallelized.parts();
  for (const Parallelized::Part& part : parts) {
    if (!part.is_own) continue;
    const auto place = state.places.find(part.name);
    const bool fits = place != state.places.end() && place->second.offset == part.offset &&
                      part.parameter.sizes() == at::IntArrayRef(place->second.sizes) &&
                      part.parameter.strides() == at::IntArrayRef(place->second.strides);
    if (fits && place->second.layout != layout_text(part.parameter)) {
      throw CheckpointError(
          join_message("the given state has parameter ", part.name, " as ", place->second.layout,
                       ", and it is ", layout_text(part.parameter), " now"),
          "load parts with the plan and ranks they were taken with, or the whole state");
    }
    if (fits) continue;
    throw CheckpointError(
        join_message("the given state has no part of parameter ", part.name, " ",
                     part.parameter.sizes(), " from element ", part.offset, " on"),
        "load parts with the plan and ranks they were taken with, or the whole state");
  }
  for (const auto& buffer : module.named_buffers()) {
    const auto found = state.buffers.find(buffer.key());
    if (!has_memory(buffer.value()) || !is_own(buffer.key())) continue;
    if (found == state.buffers.end() || found->second.sizes() != buffer.value().sizes() ||
        layout_text(found->second) != layout_text(buffer.value())) {
      throw CheckpointError(join_message("the given state has no buffer ", buffer.key(), " ",
                                         buffer.value().sizes(), " ", layout_text(buffer.value())),
                            "load it into the module it was taken from");
    }
  }
  Names names = names_of_parts(parallelized, /*only_own=*/true);
  const checkpoint::TensorMap own = checkpoint::module_tensors(names);
  const checkpoint::TensorMap parameters = on_meshes_of(own, state.parameters);
  checkpoint::check_module_tensors(parameters, names, "the given state");
  checkpoint::OptimizerState of_optimizer{.tensors = {}, .scalars = state.optimizer.scalars};
  for (const auto& [name, tensor] : state.optimizer.tensors) {
    const auto found = own.find(checkpoint::parameter_of_state(name));
    of_optimizer.tensors[name] = found == own.end() ? tensor : on_mesh_of(found->second, tensor);
  }
  // The last call that may throw for a wrong state. Parameters are changed only after it.
  load_optimizer_parts(of_optimizer, parallelized, optimizer, "the given state");
  // The copies of these parts on other ranks become out of date.
  parallelized.expect_parts_to_change();
  checkpoint::load_module_tensors(parameters, names, "the given state");
  const torch::NoGradGuard no_grad;
  for (const auto& buffer : module.named_buffers()) {
    if (!has_memory(buffer.value()) || !is_own(buffer.key())) continue;
    buffer.value().copy_(on_mesh_of(buffer.value(), state.buffers.at(buffer.key())));
  }
}

}  // namespace trireme
