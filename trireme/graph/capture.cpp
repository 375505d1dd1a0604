// SPDX-License-Identifier: Apache-2.0
#include <trireme/graph/capture.h>

#include <trireme/base/error.h>
#include <trireme/graph/record/costs.h>
#include <trireme/graph/record/modules.h>
#include <trireme/graph/record/recorder.h>
#include <trireme/graph/record/refusals.h>
#include <trireme/mesh/device_mesh.h>
#include <trireme/tensor/dispatch/distributed_meta.h>
#include <trireme/tensor/dry_run/dry_run.h>
#include <trireme/tensor/dry_run/fake_tensors.h>
#include <trireme/tensor/dry_run/results.h>
#include <trireme/tensor/ivalue_tensors.h>
#include <trireme/tensor/rules/sizes.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Generator.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_strided.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>
#include <mutex>

namespace trireme::graph {
namespace {

// Restores the default generator: operators on tensors with values draw from it during capture.
class KeptGenerator {
 public:
  KeptGenerator() : generator_(at::detail::getDefaultCPUGenerator()) {
    const std::scoped_lock lock(generator_.mutex());
    state_ = generator_.get_state();
  }
  ~KeptGenerator() {
    const std::scoped_lock lock(generator_.mutex());
    generator_.set_state(state_);
  }
  KeptGenerator(const KeptGenerator&) = delete;
  KeptGenerator& operator=(const KeptGenerator&) = delete;

 private:
  at::Generator generator_;
  at::Tensor state_;
};

tensor::FakeTensors fake_tensors_for(const std::vector<detail::ModuleTensor>& tensors,
                                     const Layout& replicated) {
  std::vector<at::Tensor> all;
  for (const detail::ModuleTensor& item : tensors) all.push_back(item.tensor);
  return {all, std::vector<Layout>(all.size(), replicated)};
}

// Sets the layouts of results to replicated. With a single rank every layout is replicated, and
// operators without a rule accept replicated tensors only.
void replicate(c10::ArrayRef<c10::IValue> made, const Layout& replicated) {
  const auto change = [&](const at::Tensor& tensor) {
    if (tensor::is_wrapper(tensor)) tensor::distributed_meta(tensor).layout = replicated;
  };
  for (const c10::IValue& value : made) tensor::visit_tensors(value, change);
}

// Removes the hooks that users set on gradients of parameters while it lives. They must not see
// gradients without values.
class HooksAside {
 public:
  explicit HooksAside(const std::vector<at::Tensor>& leaves) {
    for (const at::Tensor& leaf : leaves) {
      const auto node = torch::autograd::impl::try_get_grad_accumulator(leaf);
      if (!node || node->tensor_pre_hooks().empty()) continue;
      all_.push_back({node, {}});
      hooks_of(*node).swap(all_.back().hooks);
    }
  }
  ~HooksAside() {
    for (Aside& aside : all_) hooks_of(*aside.node).swap(aside.hooks);
  }
  HooksAside(const HooksAside&) = delete;
  HooksAside& operator=(const HooksAside&) = delete;

 private:
  using Hooks = std::vector<std::unique_ptr<torch::autograd::FunctionPreHook>>;
  struct Aside {
    decltype(torch::autograd::impl::try_get_grad_accumulator(at::Tensor())) node;
    Hooks hooks;
  };

  // A Node has functions to add and read hooks, but none to remove them.
  static Hooks& hooks_of(torch::autograd::Node& node) {
    return const_cast<Hooks&>(node.tensor_pre_hooks());
  }

  std::vector<Aside> all_;
};

// Runs the backward of the first result, which is taken to be the loss.
void record_backward(const Graph& graph, const at::Tensor& loss,
                     const std::vector<at::Tensor>& leaves, const Layout& replicated) {
  std::vector<at::Tensor> inputs;
  for (const at::Tensor& leaf : leaves) {
    if (leaf.requires_grad() && leaf.is_leaf()) inputs.push_back(leaf);
  }
  if (!loss.requires_grad() || !tensor::is_wrapper(loss) || inputs.empty()) return;
  const std::string what = join_message("backward of ", graph.value(graph.results[0]).name);
  const HooksAside hooks_aside(inputs);
  at::Tensor gradient = tensor::fake_tensor(loss, replicated);
  gradient.requires_grad_(false);
  try {
    torch::autograd::grad({loss}, inputs, {gradient},
                          /*retain_graph=*/false, /*create_graph=*/false, /*allow_unused=*/true);
  } catch (const Error& error) {
    detail::refuse_failed(what, error.what());
  } catch (const c10::Error& error) {
    detail::refuse_failed(what, error.what_without_backtrace());
  }
}

}  // namespace

Graph capture(ModuleRef holder, const Forward& forward, const std::vector<at::Tensor>& inputs,
              const CaptureOptions& options) {
  torch::nn::Module& module = *holder;
  const detail::ModuleTree tree(module);
  const KeptGenerator kept;
  const Layout replicated = Layout::replicated(DeviceMesh::unconnected({{"capture", 1}}));
  const tensor::FakeTensors fake_tensors = fake_tensors_for(tree.tensors, replicated);

  Graph graph;
  graph.modules = tree.modules;
  detail::Recorder recorder(graph, replicated);
  detail::Costs costs(graph, recorder);
  tensor::DryRun dry_run(tensor::DryRun::Mode::kInstead,
                         [&](const tensor::DryRunCall& call, c10::ArrayRef<c10::IValue> made) {
                           costs.add(call);
                           replicate(made, replicated);
                         });
  const at::AutoGradMode grad_mode(true);

  std::vector<at::Tensor> leaves;
  for (const detail::ModuleTensor& item : tree.tensors) {
    const ValueKind kind = item.is_parameter ? ValueKind::kParameter : ValueKind::kBuffer;
    (item.is_parameter ? graph.parameters : graph.buffers)
        .push_back(recorder.add(item.tensor, kind, item.names));
    dry_run.give_name(item.tensor, item.names.front());
    leaves.push_back(item.tensor);
  }
  std::vector<at::Tensor> given;
  for (const at::Tensor& input : inputs) {
    const std::string name = join_message("input ", given.size());
    given.push_back(tensor::fake_tensor(input, replicated));
    dry_run.give_name(given.back(), name);
    graph.inputs.push_back(recorder.add(given.back(), ValueKind::kInput, {name}));
    leaves.push_back(given.back());
  }
  std::vector<at::Tensor> results;
  {
    const detail::Recorder::Recording recording(recorder);
    try {
      results = forward(given);
    } catch (const c10::Error& error) {  // thrown between operators, such as by TORCH_CHECK
      detail::refuse_failed("forward" + recorder.after(), error.what_without_backtrace());
    }
  }
  recorder.finish(results);
  detail::assign_modules(graph, tree);
  detail::check_hooks(results, [&](std::uint64_t number) {
    const int node = recorder.node_of_sequence(number);
    return node < 0 ? std::string("forward") : graph.describe(node);
  });
  costs.begin_backward();
  if (options.backward && !results.empty()) {
    record_backward(graph, results[0], leaves, replicated);
  }
  return graph;
}

}  // namespace trireme::graph
