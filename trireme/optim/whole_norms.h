// SPDX-License-Identifier: Apache-2.0
// The norms of whole parameters and of their updates, for an optimizer that steps only this rank's
// part of each (ZeRO). All norms of a step take one all-reduce, and a second one if parameters are
// distributed tensors besides.
#pragma once

#include <trireme/comm/group.h>

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

namespace trireme::detail {

/// The parameters of which several ranks step a part each. All ranks add the parts of the same
/// parameters in the same order, also empty ones. Not thread-safe.
class WholeNorms {
 public:
  /// @param group the ranks that hold the parts of this rank's share of a parameter.
  explicit WholeNorms(comm::Group group) : group_(std::move(group)) {}

  /// Says that the optimizer steps `part`, which is this rank's part of a parameter, or a piece of
  /// it. A part that the optimizer lists several times is added as often.
  /// @param part the tensor that the optimizer steps.
  /// @param parameter the whole parameter, which may be distributed on one mesh.
  void add(const at::Tensor& part, const at::Tensor& parameter);

  /// Returns true if the part was added.
  bool contains(const at::Tensor& part) const {
    return row_of_.contains(part.unsafeGetTensorImpl());
  }
  /// Returns how often the part that was added most often was added.
  std::size_t most_times() const noexcept { return most_times_; }
  /// Returns true if nothing was added.
  bool empty() const noexcept { return parameters_.empty(); }

  /// The sums of squares of one step.
  class Sums;

 private:
  struct Parameter {
    bool is_distributed = false;
    bool is_counted = true;  // this rank is the first that holds its part of a distributed one
  };

  void add_over_mesh(const at::Tensor& table) const;

  comm::Group group_;
  comm::Group mesh_group_ = comm::Group::self();  // the ranks over which parameters are distributed
  bool has_distributed_ = false;
  at::Device device_ = at::kCPU;
  std::vector<Parameter> parameters_;
  std::unordered_map<const c10::TensorImpl*, std::size_t> row_of_;      // of each part
  std::unordered_map<const c10::TensorImpl*, std::size_t> row_of_all_;  // of each parameter
  std::unordered_map<const c10::TensorImpl*, std::size_t> times_;       // of each part
  std::size_t most_times_ = 0;
};

/// Adds up the squares of parameters and of their updates. On the CPU the sums are exact, so that
/// the norms have the same bits however parameters are cut. On an accelerator they are in fp64, and
/// the host does not wait for it.
class WholeNorms::Sums {
 public:
  /// Refers to `parameters`.
  explicit Sums(const WholeNorms& parameters);

  /// Adds the squares of a part and of its update.
  void add(const at::Tensor& part, const at::Tensor& update);
  /// Adds the sums of all ranks. Collective and blocking, also for a rank that has added nothing.
  void add_up();

  /// The norms of one whole parameter, one number each, in fp64.
  struct Norms {
    at::Tensor parameter;
    at::Tensor update;
  };
  /// Returns the norms of the parameter that a part belongs to. To be called after add_up().
  Norms norms_of(const at::Tensor& part) const;

 private:
  bool is_exact() const noexcept { return parameters_.device_.is_cpu(); }

  const WholeNorms& parameters_;
  // A row for each sum, those of a parameter and of its update side by side. On the CPU the columns
  // are the words of exact sums, and on an accelerator there is one.
  at::Tensor table_;
  at::Tensor norms_;  // [parameters, 2]
};

}  // namespace trireme::detail
