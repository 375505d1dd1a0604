// SPDX-License-Identifier: Apache-2.0
// What parallelize() made of a module of Python, with the functions that Python's optimizers need
// in place of those for torch::optim.
#pragma once

#include <trireme/comm/group.h>
#include <trireme/parallel/parallelize.h>
#include <trireme/plan/plan.h>

#include <ATen/core/Tensor.h>
#include <python/native/module_of_tensors.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace torch::optim {
class Optimizer;
}

namespace trireme::python {

/// The lists of tensors that an optimizer steps, one for each of its parameter groups.
using TensorGroups = std::vector<std::vector<at::Tensor>>;

/// Stands for an optimizer of Python whose parameters are sharded. While it lives, its tensors
/// count as stepped.
struct Stepped {
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  TensorGroups groups() const;
};

/// A parameter that is sharded, and what this rank steps in its place.
struct PartOfParameter {
  at::Tensor parameter;
  int zero_level = 0;
  std::int64_t elements = 0;  ///< of this rank's part
  /// Flat tensors, in order, which are this rank's part together.
  std::vector<at::Tensor> stepped{};
};

/// A module of Python that is parallelized. Not thread-safe. Calls are made without the GIL, and
/// are collective where those of Parallelized are.
class ModuleInParallel {
 public:
  /// Parallelizes the module of these tensors; see parallelize(). Collective and blocking.
  ModuleInParallel(const ModuleTensors& tensors, const Plan& plan, const comm::Group& group);
  /// Calls drop(): Python destroys objects at any time, so other ranks need not do so now.
  ~ModuleInParallel() { drop(); }
  ModuleInParallel(const ModuleInParallel&) = delete;
  ModuleInParallel& operator=(const ModuleInParallel&) = delete;

  /// Returns what parallelize() returned. Throws UsageError after close().
  Parallelized& get();
  const Parallelized& get() const;

  /// Makes the module an ordinary one again. Collective and blocking.
  void close();
  /// Removes the hooks without waiting for other ranks: parameters of ZeRO level 3 keep this rank's
  /// part only. Not collective.
  void drop();

  /// Replaces parameters in these groups by this rank's parts (Parallelized::shard).
  Stepped shard(const TensorGroups& groups);
  /// Returns the sharded parameters, in the module's order. Not collective.
  std::vector<PartOfParameter> sharded_parameters() const;
  /// Returns a copy of this rank's part of `whole`, which has the shape of `parameter`: flat [n].
  /// Throws UsageError for a parameter that is not sharded. Not collective.
  at::Tensor cut(const at::Tensor& parameter, const at::Tensor& whole) const;
  /// Returns a tensor like `parameter`, which is put together from the parts of all ranks.
  /// Collective over the ranks that hold the parts, and blocking.
  /// @param part this rank's part, flat [n]; nothing where this rank has none.
  at::Tensor join(const at::Tensor& parameter, const std::optional<at::Tensor>& part,
                  at::ScalarType dtype) const;

  /// Clips the gradients of all these tensors together (clip_by_global_norm), or only returns
  /// their norm if `max_norm` is not given. Collective and blocking where something is sharded.
  at::Tensor clip(const std::vector<at::Tensor>& stepped, std::optional<double> max_norm) const;

  /// Begins and ends a time in which backward() only accumulates. Calls may be nested.
  void begin_no_sync();
  void end_no_sync();

 private:
  std::shared_ptr<torch::nn::Module> module_;
  std::optional<Parallelized> parallelized_;
  std::vector<std::unique_ptr<Parallelized::NoSync>> no_sync_;
};

}  // namespace trireme::python
