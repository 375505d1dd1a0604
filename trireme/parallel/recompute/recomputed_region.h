// SPDX-License-Identifier: Apache-2.0
// One call of a function whose saved tensors are computed again when backward asks for them.
//
//   forward    node 0 … node n of autograd's graph, each with places for what it saved:
//              place 0, place 1, …, numbered in the order of saving; nothing is in them
//   backward   a node takes from its place -> the function runs again, under hooks that put
//              what it saves first into place 0, second into place 1, …; that graph is dropped
//
// The second run ends by an exception of ours as soon as the last place that anyone still holds is
// filled. A place is emptied as it is taken from. What several backward passes that keep the graph
// compute is told apart by autograd's number of the pass, or kept until its node lets go of it
// (RecomputeOptions::keep_between_passes).
#pragma once

#include <trireme/parallel/recompute/effects.h>
#include <trireme/parallel/recompute/execution_context.h>
#include <trireme/parallel/recompute/recompute.h>
#include <trireme/parallel/recompute/saved_tensor_hooks.h>
#include <trireme/parallel/recompute/tensor_version.h>

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace trireme::detail {

/// What must be the same in both runs.
struct Shape {
  explicit Shape(const at::Tensor& tensor);
  bool operator==(const Shape&) const = default;
  std::string to_string() const;

  std::vector<std::int64_t> sizes;
  at::ScalarType dtype = at::ScalarType::Undefined;  ///< of a tensor that is not defined
  at::Device device = at::kCPU;
};

/// Thread-safe.
class Region : public std::enable_shared_from_this<Region> {
 public:
  /// Takes the inputs as what is saved by whoever packs on this thread now.
  Region(ManyToMany function, const std::vector<at::Tensor>& inputs, RecomputeOptions options);

  /// The first run; once.
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
  // What the first run knows of a tensor that was saved.
  struct Saved {
    Shape shape;
    const c10::StorageImpl* memory;
    std::optional<TensorVersion> version;  // of memory that the function did not make
    bool is_held = true;                   // by a node
  };
  // What the second run gives for it.
  struct Value {
    at::Tensor tensor;
    TensorVersion version;
  };
  using Values = std::map<std::size_t, Value>;

  std::size_t add_place(const at::Tensor& tensor, bool is_inside);
  void leave_place(std::size_t index);
  at::Tensor take(std::size_t index);
  Value taken(std::size_t index);
  // All places that are held, or one.
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
  // Of its copies of memory those that the hooks around the function keep; empty where it keeps
  // none.
  std::vector<std::unique_ptr<torch::autograd::SavedVariableHooks>> packed_copies_;
  std::vector<Input> inputs_;
  std::vector<Shape> outputs_;
  // The second run may let go of nodes of the first.
  std::recursive_mutex mutex_;
  std::vector<Saved> saved_;
  std::map<int, Values> values_;  // by backward pass, or of all of them
};

}  // namespace trireme::detail
