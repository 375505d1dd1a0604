// SPDX-License-Identifier: Apache-2.0
// Placement: the parameters and buffers of one module on the devices of one process that run its
// stages.
#pragma once

#include <trireme/parallel/pipeline/staged_graph.h>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <string>
#include <unordered_map>
#include <vector>

namespace trireme::pipeline {

/// Moves each tensor of the module to the first device that uses it; the tensor object stays the
/// same. Other devices that use it get a copy. Not thread-safe, except that place() may be called
/// for several ranks at once.
class Placement {
 public:
  /// @param devices the devices, by rank along `pipe`.
  explicit Placement(std::vector<at::Device> devices);

  /// Moves tensors that the stages use and that are not on their device yet. Tensors that
  /// deferred() left without memory get it. Throws UsageError for a buffer that one device writes
  /// and another uses, and c10::Error if a device has too little memory.
  void add(const StagedGraph& staged);

  /// Returns the device of a rank and its tensors.
  Place place(int rank) const;

  /// Moves the module's tensors back to their devices if the caller has moved them, copies their
  /// values to the copies, and clears the gradients of the copies. Called before each step.
  void follow();

 private:
  struct Tensor {
    at::Tensor own;                  // the module's tensor
    int home = 0;                    // the rank whose device stores it
    std::vector<at::Tensor> copies;  // by rank; undefined for ranks without a copy
  };

  at::Tensor tensor_at(const std::string& name, int rank) const;
  void add(const std::string& name, const at::Tensor& tensor, int rank);

  std::vector<at::Device> devices_;
  std::unordered_map<std::string, Tensor> tensors_;
};

}  // namespace trireme::pipeline
