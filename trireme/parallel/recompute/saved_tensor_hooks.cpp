// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/recompute/saved_tensor_hooks.h>

#include <trireme/base/error.h>

#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <mutex>
#include <typeinfo>
#include <utility>

namespace trireme::detail {
namespace {

namespace autograd = torch::autograd;

thread_local const SavedTensorHooksGuard* innermost = nullptr;

// Adds hooks to LibTorch's engine, which still does all work of backward passes.
class PackingEngine final : public autograd::Engine {
 public:
  static autograd::Engine& get() {
    // Never destroyed: LibTorch may use it until the process ends. It has no threads.
    static PackingEngine& engine = *new PackingEngine;
    return engine;
  }

  autograd::variable_list execute(const autograd::edge_list& roots,
                                  const autograd::variable_list& inputs, bool keep_graph,
                                  bool create_graph, bool accumulate_grad,
                                  const autograd::edge_list& outputs) override {
    return get_base_engine().execute(roots, inputs, keep_graph, create_graph, accumulate_grad,
                                     outputs);
  }

  c10::intrusive_ptr<at::ivalue::Future> execute_with_graph_task(
      const std::shared_ptr<autograd::GraphTask>& task, decltype(autograd::Edge::function) root,
      autograd::InputBuffer&& buffer) override {
    return get_base_engine().execute_with_graph_task(task, std::move(root), std::move(buffer));
  }

  std::unique_ptr<autograd::SavedVariableHooks> get_default_saved_variable_hooks() override {
    return innermost == nullptr ? nullptr : innermost->saved_hooks().hooks();
  }

 private:
  PackingEngine() = default;
};

void install() {
  // The default engine is one for the whole process. Without a guard on a thread, the engine
  // installed here behaves as LibTorch's own.
  static std::mutex mutex;
  const std::scoped_lock lock(mutex);
  autograd::Engine& installed = autograd::Engine::get_default_engine();
  if (&installed == &PackingEngine::get()) return;
  if (&installed != &autograd::Engine::get_base_engine()) {
    throw UsageError(
        join_message(
            "recompute and offloading cannot work with the autograd engine of this process, ",
            typeid(installed).name()),
        "another library has replaced LibTorch's own, as Python's torch does; leave "
        "these out here, or that library");
  }
  autograd::set_default_engine_stub(&PackingEngine::get);
}

}  // namespace

bool is_second_run() { return innermost != nullptr && innermost->saved_hooks().is_second_run(); }

std::unique_ptr<autograd::SavedVariableHooks> hooks_for_copy() {
  for (const SavedTensorHooksGuard* each = innermost; each != nullptr; each = each->outer()) {
    if (auto hooks = each->saved_hooks().hooks_for_copy()) return hooks;
  }
  return nullptr;
}

SavedTensorHooksGuard::SavedTensorHooksGuard(SavedTensorHooks& saved_hooks)
    : saved_hooks_(saved_hooks), outer_(innermost) {
  install();
  innermost = this;
}

SavedTensorHooksGuard::~SavedTensorHooksGuard() { innermost = outer_; }

}  // namespace trireme::detail
