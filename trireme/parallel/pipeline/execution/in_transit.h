// SPDX-License-Identifier: Apache-2.0
// InTransit: a table of the tensors that one stage has computed and another has not taken yet.
// Activations and gradients have one table each.
#pragma once

#include <trireme/parallel/pipeline/pipeline_program.h>

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace trireme::pipeline {

/// Has one entry for each boundary tensor, stage that takes it, and micro-batch. `program` must
/// outlive it.
class InTransit {
 public:
  explicit InTransit(const Program& program) : program_(program) {
    std::size_t count = 0;
    for (const BoundaryTensor& boundary_tensor : program.boundary_tensors) {
      first_.push_back(count);
      count += boundary_tensor.to.size() * static_cast<std::size_t>(program.schedule.micro_batches);
    }
    tensors_.resize(count);
  }

  /// Returns the entry.
  /// @param boundary_tensor index into Program::boundary_tensors.
  at::Tensor& at(std::size_t boundary_tensor, int to, int micro_batch) {
    const auto& all = program_.boundary_tensors[boundary_tensor].to;
    const auto place = std::ranges::find(all, to) - all.begin();
    return tensors_[first_[boundary_tensor] +
                    static_cast<std::size_t>(place * program_.schedule.micro_batches +
                                             micro_batch)];
  }

  /// Returns the tensor of an entry and clears the entry.
  at::Tensor take(std::size_t boundary_tensor, int to, int micro_batch) {
    return std::exchange(at(boundary_tensor, to, micro_batch), {});
  }

 private:
  const Program& program_;
  std::vector<std::size_t> first_;  // by boundary tensor
  std::vector<at::Tensor> tensors_;
};

}  // namespace trireme::pipeline
