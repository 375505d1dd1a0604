// SPDX-License-Identifier: Apache-2.0
// The parameters and buffers of one module on the devices where its stages run.
#pragma once

#include <trireme/parallel/pipeline/staged_graph.h>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <string>
#include <unordered_map>
#include <vector>

namespace trireme::pipeline {

/// The module's own tensors go to the first device that uses them, and stay the same tensors;
/// others that use them too have copies. Not thread-safe, but that place() of several ranks may be.
class Placement {
 public:
  /// @param devices by rank.
  explicit Placement(std::vector<at::Device> devices);

  /// Moves what stages use and is not there yet. Gives memory to what deferred() left without.
  /// Throws UsageError for a buffer that one device writes and another uses; what runs out of
  /// memory throws c10::Error.
  void add(const StagedGraph& staged);

  /// What stands for them on a rank.
  Place place(int rank) const;

  /// The module's tensors are where they were, should they have been moved meanwhile; copies get
  /// their values, and have no gradients afterwards.
  void follow();

 private:
  struct Tensor {
    at::Tensor own;                  // the module's
    int home = 0;                    // rank
    std::vector<at::Tensor> copies;  // by rank, undefined where there is none
  };

  at::Tensor tensor_at(const std::string& name, int rank) const;
  void add(const std::string& name, const at::Tensor& tensor, int rank);

  std::vector<at::Device> devices_;
  std::unordered_map<std::string, Tensor> tensors_;
};

}  // namespace trireme::pipeline
