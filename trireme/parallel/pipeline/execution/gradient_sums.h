// SPDX-License-Identifier: Apache-2.0
// What becomes of gradients besides adding micro-batches: sums of each stage for a parameter that
// several stages share, one division at the end, and what `.grad()` held before.
#pragma once

#include <trireme/comm/group.h>
#include <trireme/parallel/module/gradients_aside.h>
#include <trireme/parallel/pipeline/messages/message_buffers.h>
#include <trireme/parallel/pipeline/program/pipeline_program.h>

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace trireme::pipeline {

/// A parameter of one name in several stages is one: each stage adds its micro-batches by itself,
/// and `finish` adds the stages in their order, with the same bits on every rank that has it. Not
/// thread-safe.
class GradientSums {
 public:
  /// Learns which parameters stages share. Collective and blocking; throws the same UsageError on
  /// every rank where they differ. `program` must outlive this.
  GradientSums(const Program& program, const std::vector<StageCode>& stages,
               const comm::Group& group, at::Device device);

  /// Messages between ranks have tags from 0 to this.
  int num_tags() const noexcept { return num_tags_; }

  /// Begins a step: puts aside what `.grad()` holds.
  void begin();

  /// While it lives, `.grad()` of shared parameters is the sum of that stage.
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

  /// Adds up shared parameters, divides, and adds to what was put aside. Blocking: waits for the
  /// ranks that share a parameter. Throws CommError, and UsageError for a sparse gradient that
  /// another rank needs.
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
    at::Tensor parameter;   // undefined where this rank has none of its stages
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
