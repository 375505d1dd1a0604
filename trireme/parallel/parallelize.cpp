// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/parallelize.h>

#include <trireme/base/error.h>
#include <trireme/parallel/buckets/buffer_broadcast.h>
#include <trireme/parallel/comm_hooks/half_precision.h>
#include <trireme/parallel/init/deferred_scope.h>
#include <trireme/parallel/module/agreement.h>
#include <trireme/parallel/module/local_memory.h>
#include <trireme/parallel/parallelized_impl.h>
#include <trireme/parallel/pipeline/module_claim.h>
#include <trireme/parallel/record/predicted_step.h>
#include <trireme/parallel/tensor_parallel/cluster_links.h>
#include <trireme/parallel/tensor_parallel/operator_layouts.h>
#include <trireme/parallel/tensor_parallel/plan_meshes.h>
#include <trireme/parallel/zero/tensor_access.h>
#include <trireme/plan/check_plan.h>
#include <trireme/plan/plan_config.h>
#include <trireme/tensor/dispatch/plain_inputs.h>
#include <trireme/tensor/distributed_tensor.h>

#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/nn/module.h>
#include <torch/nn/modules/embedding.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <unordered_set>

namespace trireme {

using detail::NamedTensor;

namespace {

DataPart part_of(const Plan& plan, const comm::Group& group) {
  std::int64_t behind = 1;  // the number of ranks in the axes after this one, which vary faster
  if (plan.mesh.empty()) return {.index = group.rank(), .count = group.size()};
  for (auto axis = plan.mesh.rbegin(); axis != plan.mesh.rend(); ++axis) {
    if (axis->name == kDataAxis) {
      return {.index = group.rank() / behind % axis->size, .count = axis->size};
    }
    behind *= axis->size;
  }
  return {};
}

}  // namespace

DataPart data_part(const Plan& plan, const comm::Group& group) {
  comm::check_given(group, "data_part");
  if (const auto* const predicted = detail::PredictedStep::of_process()) {
    return part_of(predicted->plan_for(plan, group.size()), group);
  }
  check_plan(plan, {.ranks = group.size()});
  return part_of(plan, group);
}

namespace {

void check_parameters(const std::vector<NamedTensor>& parameters) {
  for (const auto& [name, tensor, has_sparse_gradient] : parameters) {
    if (has_layout(tensor)) {
      throw UsageError(
          join_message("parameter ", name, " is distributed already, as ",
                       trireme::describe(tensor)),
          "parallelize a module before anything of it is distributed: plan.mesh and plan.layouts "
          "say how it is to be; one that was distributed stays so");
    }
    if (!tensor.is_non_overlapping_and_dense()) {
      throw UsageError(join_message("parameter ", name, " has gaps or overlaps (sizes ",
                                    tensor.sizes(), ", strides ", tensor.strides(), ")"),
                       "make it a dense tensor before parallelize");
    }
  }
}

// Returns a check that throws if the module has a parameter that it did not have when it was
// parallelized. The module is held weakly; on the stack, it has no owner and is not watched.
std::function<void()> watch_for_more(torch::nn::Module& module,
                                     const std::vector<NamedTensor>& parameters) {
  const std::weak_ptr<torch::nn::Module> watched = module.weak_from_this();
  std::unordered_set<const c10::TensorImpl*> known;
  for (const NamedTensor& item : parameters) known.insert(item.tensor.unsafeGetTensorImpl());
  return [watched, known = std::move(known)] {
    const auto alive = watched.lock();
    if (!alive) return;
    const auto is_known = [&](const at::Tensor& tensor) {
      return !tensor.defined() || known.contains(tensor.unsafeGetTensorImpl());
    };
    if (std::ranges::all_of(alive->parameters(), is_known)) return;
    for (const auto& item : alive->named_parameters()) {
      if (is_known(item.value())) continue;
      throw UsageError(join_message("parameter ", item.key(), " was added after parallelize"),
                       "add it before, or make a new Parallelized");
    }
  };
}

// Marks the weights of embeddings that give sparse gradients, which are reduced in another way.
void mark_sparse(const torch::nn::Module& module, std::vector<NamedTensor>& parameters) {
  std::unordered_set<const c10::TensorImpl*> sparse;
  // apply() works for a module on the stack too; modules() would need a shared_ptr to it.
  module.apply([&](const torch::nn::Module& part) {
    if (const auto* embedding = part.as<torch::nn::Embedding>()) {
      if (embedding->options.sparse()) sparse.insert(embedding->weight.unsafeGetTensorImpl());
    } else if (const auto* bag = part.as<torch::nn::EmbeddingBag>()) {
      if (bag->options.sparse()) sparse.insert(bag->weight.unsafeGetTensorImpl());
    }
  });
  for (NamedTensor& item : parameters) {
    if (sparse.contains(item.tensor.unsafeGetTensorImpl())) item.has_sparse_gradient = true;
  }
}

// Refuses names in the plan that no parameter has. A misspelt name would otherwise be ignored.
void check_names(const Plan& plan, const std::vector<NamedTensor>& parameters) {
  const auto check = [&](const std::string& field, const std::string& name, const auto& fits) {
    if (std::ranges::any_of(parameters, fits)) return;
    throw UsageError(join_message("plan: ", field, " names ", name,
                                  ", which no parameter is called or begins with"),
                     "names are those of module.named_parameters()");
  };
  for (const auto& [name, level] : plan.zero_level_of) {
    check("zero_level_of", name, [&, whole = name](const NamedTensor& item) {
      return item.name == whole || item.name.starts_with(whole + ".");
    });
  }
  for (const std::string& name : plan.sparse_gradients) {
    check("sparse_gradients", name, [&](const NamedTensor& item) { return item.name == name; });
  }
}

// Allocates and initialises tensors that were constructed without memory and for which `is_own`
// holds. Excluded are parameters that ZeRO level 3 shards over `data`, because each rank
// initialises only its part of them later. Random states are those of rank 0 if the plan broadcasts
// parameters. Returns the tensors that have memory now.
template <typename IsOwn>
std::vector<at::Tensor> give_values(const std::vector<NamedTensor>& tensors, const Plan& plan,
                                    const comm::Group& group, const comm::Group& data,
                                    const IsOwn& is_own) {
  const bool may_be_cut = !shares_work(plan);  // tensor parallelism distributes whole tensors
  std::vector<at::Tensor> deferred;
  std::vector<at::Tensor> whole;
  for (const NamedTensor& item : tensors) {
    if (!detail::is_deferred(item.tensor)) continue;
    deferred.push_back(item.tensor);
    const std::int64_t cut_among = plan.shard_ranks == 0 ? data.size() : plan.shard_ranks;
    const bool is_cut = may_be_cut && item.tensor.requires_grad() && !item.has_sparse_gradient &&
                        cut_among > 1 && zero_level_of(plan, item.name) == 3;
    if (!is_cut && is_own(item)) whole.push_back(item.tensor);
  }
  if (deferred.empty()) return whole;
  if (plan.broadcast_parameters) {
    const at::Tensor states = detail::random_states(deferred);
    detail::check_same_text("number of bytes of random states that initial values are drawn from",
                            std::to_string(states.numel()), group);
    comm::broadcast(states, 0, group, "random generators");
    detail::set_random_states(deferred, states);
  }
  if (!whole.empty()) materialize(whole);
  return whole;
}

// Marks the parameters that plan.sparse_gradients names.
void mark_sparse(const Plan& plan, std::vector<NamedTensor>& parameters) {
  for (NamedTensor& item : parameters) {
    item.has_sparse_gradient =
        item.has_sparse_gradient || std::ranges::count(plan.sparse_gradients, item.name) > 0;
  }
}

// Checks that all ranks drew the same initial values for sharded parameters without memory. Each
// rank keeps its own part, so a difference would not show otherwise.
void check_drawn(const detail::Shards* shards, const comm::Group& data) {
  if (shards == nullptr || shards->drawn().empty()) return;
  detail::check_same_text("initial values of a parameter that is cut", shards->drawn(), data);
}

// The tensors of one module, or of several, that parallelize() works on.
struct Contents {
  std::vector<NamedTensor> parameters;
  std::vector<NamedTensor> buffers;
  std::function<void()> check;
  torch::nn::Module* module = nullptr;
  std::shared_ptr<torch::nn::Module> owned{};  // the parent that was made for several modules
};

Contents contents_of(torch::nn::Module& module) {
  Contents contents = {.parameters = detail::named_tensors(module.named_parameters()),
                       .buffers = detail::named_tensors(module.named_buffers()),
                       .check = {},
                       .module = &module};
  mark_sparse(module, contents.parameters);
  contents.check = watch_for_more(module, contents.parameters);
  return contents;
}

// Returns a check that calls `check`. In the first two steps, it also verifies that the ranks of
// `mesh`, which work together, read the same rows.
std::function<void()> with_same_inputs(std::function<void()> check, const DeviceMesh& mesh,
                                       std::int64_t micro_batches) {
  auto inputs = std::make_shared<std::unique_ptr<tensor::PlainInputs>>(
      std::make_unique<tensor::PlainInputs>(mesh));
  return [check = std::move(check), inputs, passes_left = 2 * micro_batches]() mutable {
    if (check) check();
    if (!*inputs) return;
    (*inputs)->check();
    if (--passes_left == 0) inputs->reset();
  };
}

// Registers modules under their names. Throws UsageError for a name that a module cannot have.
void add_modules(torch::nn::Module& all,
                 const std::vector<std::pair<std::string, ModuleRef>>& modules) {
  for (const auto& [name, module] : modules) {
    if (name.empty() || name.find('.') != std::string::npos ||
        all.named_children().contains(name)) {
      throw UsageError(
          join_message("parallelize was given a module by the name '", name,
                       "', expected a name of its own, without dots"),
          "name modules as a module names its submodules: {{\"generator\", generator}, "
          "{\"critic\", critic}}");
    }
    all.register_module(name, module.shared());
  }
}

// Makes the reducer of the parameters that this rank trains. Collective along `data`.
void make_reducer(Parallelized::Impl& impl, const std::vector<NamedTensor>& trained,
                  const std::vector<at::Tensor>& buffers) {
  impl.reducer.emplace(trained, buffers, impl.plan, impl.data_group);
  impl.reducer->register_comm_hook(comm_hook_for(impl.plan.wire));
}

// Makes layers of batch norm use the rows of all ranks. Collective.
void synchronize_batch_norm(Parallelized::Impl& impl, Contents& contents) {
  detail::set_before_batch_norm(detail::touch);
  impl.batch_norm_group = detail::duplicate(impl.group);
  impl.sync_batch_norm.emplace(*contents.module, impl.batch_norm_group);
  contents.check = [check = std::move(contents.check), &norm = *impl.sync_batch_norm] {
    check();
    norm.check();
  };
}

// Implements parallelize(). All ranks must reach the collectives in it in the same order.
// succeed_together() and check_same_*() throw on all ranks if they fail on one.
std::unique_ptr<Parallelized::Impl> make(Contents contents, const Plan& plan,
                                         const comm::Group& group, const DeviceMesh& mesh = {}) {
  auto impl = std::make_unique<Parallelized::Impl>();
  impl->plan = plan;
  impl->group = group;
  impl->owned = contents.owned;
  impl->parameters = contents.parameters;
  if (auto* const predicted = detail::PredictedStep::of_process()) {
    impl->plan = predicted->begin(contents.module, contents.parameters, plan, group,
                                  PlanEntry::kParallelize);
    impl->data_group = group;
    return impl;
  }
  std::optional<cluster::Cluster> cluster;
  std::string compared;
  detail::succeed_together(group, "take the plan", [&] {
    detail::check_request_is_used("parallelize");
    check_plan(plan, {.ranks = group.size(), .entry = PlanEntry::kParallelize});
    check_names(plan, contents.parameters);
    cluster = detail::cluster_of_environment();
    compared = to_string(plan) + detail::line_of(cluster);
  });
  detail::check_same_text("plan", compared, group, detail::kSamePlanHint);
  mark_sparse(plan, contents.parameters);
  detail::succeed_together(group, "take the module", [&] {
    check_parameters(contents.parameters);
    detail::check_no_hooks(contents.parameters);
    pipeline::ModuleClaim::check_is_free(contents.parameters);
    pipeline::ModuleClaim::check_is_free(contents.buffers);
  });
  detail::check_same_on_all_ranks(contents.parameters, "parameter", group);
  detail::check_same_on_all_ranks(contents.buffers, "buffer", group);
  std::vector<NamedTensor> all = contents.parameters;
  all.insert(all.end(), contents.buffers.begin(), contents.buffers.end());
  give_values(all, plan, group, group, [](const NamedTensor&) { return true; });
  if (plan.broadcast_parameters) detail::broadcast_all(all, group);
  const detail::PlanMeshes meshes = detail::create_meshes(plan, group, mesh);
  impl->data_group = meshes.data;
  impl->mesh = meshes.mesh;
  impl->whole = meshes.whole;
  if (impl->mesh.defined()) {
    detail::succeed_together(group, "distribute the module", [&] {
      if (cluster) {
        detail::set_links(impl->mesh, plan, *cluster);
        detail::set_links(impl->whole, plan, *cluster);
      }
      tensor::set_sequence_attention(impl->mesh, plan.sequence_attention);
      detail::check_can_distribute(contents.module, contents.parameters, impl->mesh, plan.layouts);
      detail::set_operator_layouts(contents.module, impl->mesh, plan.operators);
    });
    detail::distribute(*contents.module, impl->mesh, plan.layouts);
  }
  std::vector<NamedTensor> trained;
  std::ranges::copy_if(contents.parameters, std::back_inserter(trained),
                       [](const NamedTensor& item) { return item.tensor.requires_grad(); });
  std::vector<at::Tensor> following;
  if (plan.broadcast_buffers) {
    for (const NamedTensor& buffer : contents.buffers) {
      following.push_back(detail::memory_of(buffer.tensor));
    }
  }
  // Even a single rank needs a reducer for distributed parameters, whose gradients are
  // redistributed to the parameters' layouts.
  const bool has_nothing_to_do = group.size() == 1 && plan.micro_batches == 1 &&
                                 !plan.offload_optimizer && !impl->mesh.defined();
  const bool is_apart = !plan.data_parallel && !impl->mesh.defined();
  if (is_apart || has_nothing_to_do || trained.empty()) return impl;
  if (plan.sync_batch_norm && contents.module != nullptr && group.size() > 1) {
    synchronize_batch_norm(*impl, contents);
  }
  if (impl->mesh.defined() && impl->mesh.size() > 1) {
    contents.check = with_same_inputs(std::move(contents.check), impl->mesh, plan.micro_batches);
  }
  // Ranks hold different parts of a distributed parameter, and maybe none of a small one, so this
  // may fail on some of them only.
  detail::succeed_together(impl->mesh.defined() ? group : comm::Group::self(), "cut the module",
                           [&] { make_reducer(*impl, trained, following); });
  impl->reducer->compare_on(impl->mesh);
  impl->hooks.emplace(*impl->reducer, plan.micro_batches, std::move(contents.check));
  check_drawn(impl->shards(), impl->data_group);
  return impl;
}

}  // namespace

Parallelized parallelize(ModuleRef module, const Plan& plan, const DeviceMesh& mesh) {
  if (!mesh.defined()) {
    throw UsageError(
        "parallelize was given a default DeviceMesh, which has no ranks",
        "make it of a group: DeviceMesh(world.group, {{\"data\", 2}, {\"tensor\", 2}})");
  }
  Plan on_mesh = plan;
  if (on_mesh.mesh.empty()) on_mesh.mesh = mesh.state()->axes;
  detail::succeed_together(mesh.group(), "take the plan", [&] {
    if (on_mesh.mesh == mesh.state()->axes) return;
    throw UsageError(join_message("parallelize was given the mesh [", mesh.to_string(),
                                  "], and a plan whose mesh has other axes"),
                     "leave plan.mesh empty, or give it the axes of the mesh");
  });
  return Parallelized(make(contents_of(*module), on_mesh, mesh.group(), mesh));
}

Parallelized parallelize(const std::vector<std::pair<std::string, ModuleRef>>& modules,
                         const Plan& plan, const comm::Group& group) {
  comm::check_given(group, "parallelize");
  auto all = std::make_shared<torch::nn::Module>();
  detail::succeed_together(group, "name its modules", [&] { add_modules(*all, modules); });
  Contents contents = contents_of(*all);
  contents.owned = std::move(all);
  return Parallelized(make(std::move(contents), plan, group));
}

Parallelized parallelize(ModuleRef module, const Plan& plan, const comm::Group& group) {
  comm::check_given(group, "parallelize");
  return Parallelized(make(contents_of(*module), plan, group));
}

Parallelized parallelize(const std::vector<std::pair<std::string, at::Tensor>>& parameters,
                         const Plan& plan, const comm::Group& group) {
  comm::check_given(group, "parallelize");
  torch::OrderedDict<std::string, at::Tensor> named;
  detail::succeed_together(group, "name its parameters", [&] {
    for (const auto& [name, tensor] : parameters) {
      if (named.contains(name)) {
        throw UsageError(join_message("two parameters have the name ", name),
                         "give each a name of its own: put the name of its module before it");
      }
      named.insert(name, tensor);
    }
  });
  return Parallelized(make(
      {.parameters = detail::named_tensors(named), .buffers = {}, .check = {}, .module = nullptr},
      plan, group));
}

namespace detail {

void check_no_hooks(const std::vector<NamedTensor>& parameters) {
  for (const NamedTensor& item : parameters) {
    if (!item.tensor.requires_grad()) continue;
    if (!torch::autograd::impl::post_acc_grad_hooks(item.tensor)) continue;
    throw UsageError(
        join_message("parameter ", item.name, " has a post-accumulate-gradient hook already"),
        "a module can be parallelized once at a time; destroy the first Parallelized (or "
        "DataParallel) before");
  }
}

Parallelized parallelize_manual(torch::nn::Module& module,
                                std::shared_ptr<const std::map<std::string, StageUse>> uses,
                                const Plan& plan, const comm::Group& group, const comm::Group& data,
                                const DeviceMesh& mesh, const PlaceTensors& place) {
  const auto is_own = [&all = *uses](const NamedTensor& item) { return all.at(item.name).is_own; };
  auto impl = std::make_unique<Parallelized::Impl>();
  impl->plan = plan;
  impl->group = group;
  impl->data_group = data;
  impl->mesh = mesh;
  impl->uses = std::move(uses);
  impl->parameters = named_tensors(module.named_parameters());
  trireme::mark_sparse(module, impl->parameters);
  trireme::mark_sparse(plan, impl->parameters);
  succeed_together(group, "take the parameters of its stages", [&] {
    check_names(plan, impl->parameters);
    if (data.size() > 1 || impl->mesh.defined()) check_parameters(impl->parameters);
    if (impl->mesh.defined()) check_can_distribute(impl->parameters);
  });
  std::vector<NamedTensor> all = impl->parameters;
  for (const NamedTensor& buffer : named_tensors(module.named_buffers())) all.push_back(buffer);
  const std::vector<at::Tensor> given = give_values(all, plan, group, data, is_own);
  if (plan.broadcast_parameters) {
    for (const at::Tensor& tensor : given) comm::broadcast(tensor, 0, data);
  }
  std::vector<at::Tensor> tensors;
  for (const NamedTensor& item : all) tensors.push_back(item.tensor);
  place(tensors);
  std::vector<NamedTensor> trained;
  std::ranges::copy_if(impl->parameters, std::back_inserter(trained), [&](const NamedTensor& item) {
    return is_own(item) && item.tensor.requires_grad();
  });
  // Ranks along pipe have different parameters, so this may fail on some of them only.
  succeed_together(group, "cut its stages", [&] {
    if ((data.size() == 1 && !plan.offload_optimizer) || trained.empty()) return;
    trireme::make_reducer(*impl, trained, /*buffers=*/{});
    check_drawn(impl->shards(), data);
  });
  return Parallelized(std::move(impl));
}

void broadcast_all(const std::vector<NamedTensor>& tensors, const comm::Group& group) {
  std::vector<comm::Work> works;
  for (const NamedTensor& item : tensors) {
    if (is_deferred(item.tensor)) continue;
    if (item.tensor.is_non_overlapping_and_dense()) {
      works.push_back(comm::broadcast_async(item.tensor, 0, group, item.name));
    } else {
      broadcast_strided(item.tensor, 0, group, item.name);
    }
  }
  for (comm::Work& work : works) work.wait();
}

}  // namespace detail
}  // namespace trireme
