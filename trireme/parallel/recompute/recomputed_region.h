// SPDX-License-Identifier: Apache-2.0
// One call of a function whose saved tensors are recomputed when backward asks for them.
//
//   forward    node 0 … node n of autograd's graph have places for the tensors that they saved:
//              place 0, place 1, …, numbered in the order of saving; all are empty
//   backward   a node takes from its place -> the function runs again, under hooks that put the
//              first saved tensor into place 0, the second into place 1, …; that graph is dropped
//
// An internal exception ends the second run as soon as the last place that a node still holds is
// filled. Taking a tensor empties its place. If several backward passes keep the graph, their
// tensors are stored by autograd's id of the pass, or until the nodes release them
// (RecomputeOptions::keep_between_passes).
#pragma once

#include <trireme/parallel/recompute/effects.h>
#include <trireme/parallel/recompute/recompute.h>
#include <trireme/parallel/recompute/saved_tensor_hooks.h>

#include <ATen/core/Tensor.h>
#include <c10/core/AutogradState.h>
#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace torch::nn {

class Module;

}  // namespace torch::nn

namespace trireme::detail {

/// A snapshot of the state outside of tensors that a run of a function depends on: grad mode,
/// autocast and other modes of this thread, and the training flags of modules.
class ExecutionContext {
 public:
  /// Takes a snapshot now, with the training flags of `modules` and all their submodules.
  explicit ExecutionContext(const std::vector<std::shared_ptr<torch::nn::Module>>& modules);

  class Restored;

 private:
  // Applies the snapshot to this thread and to the modules.
  void restore() const;

  std::vector<std::shared_ptr<torch::nn::Module>> modules_;
  c10::impl::LocalDispatchKeySet keys_;
  c10::AutogradState autograd_;
  std::vector<std::pair<c10::DeviceType, c10::ScalarType>> autocast_dtypes_;
  bool caches_casts_;
  std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>> training_;  // parents first
};

/// Applies a snapshot while it lives, and restores the state before it at the end. The cache of
/// autocast is off meanwhile, because cached casts would outlive the graph that they belong to.
class ExecutionContext::Restored {
 public:
  explicit Restored(const ExecutionContext& context);
  Restored(const Restored&) = delete;
  Restored& operator=(const Restored&) = delete;
  ~Restored();

 private:
  ExecutionContext outer_;
};

/// Shape, dtype and device of a tensor, which must be the same in both runs.
struct Shape {
  explicit Shape(const at::Tensor& tensor);
  bool operator==(const Shape&) const = default;
  std::string to_string() const;

  std::vector<std::int64_t> sizes;
  at::ScalarType dtype = at::ScalarType::Undefined;  ///< Undefined for an undefined tensor
  at::Device device = at::kCPU;
};

/// One recomputed call. Thread-safe.
class Region : public std::enable_shared_from_this<Region> {
 public:
  /// Saves the inputs by the saved-tensor hooks that are active on this thread now, if there are
  /// any.
  Region(ManyToMany function, const std::vector<at::Tensor>& inputs, RecomputeOptions options);

  /// Performs the first run. Must be called once.
  std::vector<at::Tensor> run(const std::vector<at::Tensor>& inputs);

 private:
  class Place;
  class FirstRunHooks;
  class SecondRunHooks;

  struct Input {
    torch::autograd::SavedVariable saved;
    std::optional<TensorVersion> version;
    bool requires_grad = false;
  };
  // What the first run recorded about a saved tensor.
  struct Saved {
    Shape shape;
    const c10::StorageImpl* memory;
    std::optional<TensorVersion> version;  // only for memory that existed before the run
    bool is_held = true;                   // false once its node has released it
  };
  // A tensor that the second run computed for a place.
  struct Value {
    at::Tensor tensor;
    TensorVersion version;
  };
  using Values = std::map<std::size_t, Value>;

  std::size_t add_place(const at::Tensor& tensor, bool is_inside);
  void leave_place(std::size_t index);
  at::Tensor take(std::size_t index);
  Value taken(std::size_t index);
  // Runs the function again. Returns the tensors of all places that are held, or of `only`.
  Values run_again(std::optional<std::size_t> only);
  std::vector<at::Tensor> inputs_again() const;
  void pack_copies();
  Effects effects_again() const;
  void check_versions() const;
  void check_same(const SecondRunHooks& saved_hooks, const std::vector<at::Tensor>& outputs) const;

  ManyToMany function_;
  const RecomputeOptions options_;
  const std::string title_;
  const ExecutionContext execution_context_;
  Effects effects_;
  // Copies in effects_ that the hooks of an outer function keep elsewhere; empty if they keep none.
  std::vector<std::unique_ptr<torch::autograd::SavedVariableHooks>> packed_copies_;
  std::vector<Input> inputs_;
  std::vector<Shape> outputs_;
  // Recursive, because the second run may destroy nodes of the first, which call leave_place().
  std::recursive_mutex mutex_;
  std::vector<Saved> saved_;
  std::map<int, Values> values_;  // by id of the backward pass, or under kAllPasses
};

}  // namespace trireme::detail
