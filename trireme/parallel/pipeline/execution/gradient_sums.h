// SPDX-License-Identifier: Apache-2.0
// GradientSums: the gradients of a step on one rank. Autograd adds the micro-batches; this class
// adds the stages that share a parameter, divides once, and adds what `.grad()` held before. The
// sum over the ranks along `data`, which have the same stages, is that of Reducer and follows it.
#pragma once

#include <trireme/comm/group.h>
#include <trireme/parallel/module/gradients_aside.h>
#include <trireme/parallel/pipeline/messages/message_buffers.h>
#include <trireme/parallel/pipeline/pipeline_program.h>

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace trireme::pipeline {

/// Parameters of one name in several stages are one parameter. Each stage adds its micro-batches to
/// a sum of its own. finish() adds these sums, the last stage first, so that every rank that has
/// the parameter gets the same bits. Not thread-safe.
class GradientSums {
 public:
  /// Finds out which parameters stages share. Collective and blocking. Throws the same UsageError
  /// on every rank if parameters of one name differ in shape or dtype. `program` must outlive this
  /// object.
  GradientSums(const Program& program, const std::vector<StageCode>& stages,
               const comm::Group& group, at::Device device);

  /// Returns the number of message tags that are used, which are 0 to num_tags() - 1.
  int num_tags() const noexcept { return num_tags_; }

  /// Begins a step, and stores what `.grad()` holds, to be added in finish().
  void begin();

  /// Makes `.grad()` of shared parameters the sum of one stage while it lives.
  class [[nodiscard]] OfStage {
   public:
    OfStage(GradientSums& sums, int stage);
    ~OfStage();
    OfStage(const OfStage&) = delete;
    OfStage& operator=(const OfStage&) = delete;

   private:
    void exchange();
    GradientSums& sums_;
    int stage_;
  };

  /// Adds the stages of shared parameters, divides all gradients, and adds what `.grad()` held
  /// before the step. Blocks until the ranks that share a parameter have sent their sums. Throws
  /// CommError, and UsageError for a sparse gradient that another rank needs.
  void finish();

 private:
  struct Use {
    int stage = 0;
    int rank = 0;
    int tag = 0;
    at::Tensor sum;  // of this step
  };
  struct Shared {
    std::string name;
    at::Tensor parameter;   // undefined if this rank has none of its stages
    std::vector<Use> uses;  // by stage
    bool crosses_ranks() const;
  };
  void find_shared(const std::vector<std::string>& texts);
  void complete_own_sums();
  void exchange();
  void add_up(Shared& shared) const;
  bool is_shared(const at::Tensor& parameter) const;

  const Program& program_;
  comm::Group group_;
  Buffers buffers_;
  std::vector<at::Tensor> own_;  // parameters
  detail::GradientsAside aside_;
  std::vector<Shared> shared_;
  int num_tags_ = 0;
};

}  // namespace trireme::pipeline
