// SPDX-License-Identifier: Apache-2.0
// An unmodified module trained in stages over several devices of one process.
// docs/design/pipeline.md; docs/guide/pipeline.md.
#pragma once

#include <trireme/graph/capture.h>
#include <trireme/parallel/recompute/plan_recomputation.h>
#include <trireme/parallel/step/pipeline.h>
#include <trireme/plan/plan.h>
#include <trireme/schedule/schedule.h>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace trireme {

/// How long a step takes with a batch cut into so many micro-batches.
struct SplitTime {
  int micro_batches = 1;
  std::int64_t rows = 0;  ///< of the largest
  double seconds = 0;     ///< the median of those measured
};

/// Trains a module whose stages are on several devices of this process, without ranks and without a
/// launcher: micro-batches follow each other through the stages, each device works on its own while
/// others do, and what goes from one to the next is copied beside. The loop is that of one process:
///
///     Plan plan{.stages = {{"conv1", 0}, {"layer3", 1}}, .micro_batches = 8};
///     DevicePipeline pipeline(*net, [&](const std::vector<at::Tensor>& in) -> std::vector<at::Tensor> {
///       return {torch::cross_entropy_loss(net->forward(in[0]), in[1])};
///     }, plan, {at::Device("cuda:0"), at::Device("cuda:1")});
///     for (...) {
///       optimizer.zero_grad();
///       const at::Tensor loss = pipeline.step({images, labels}).loss;
///       optimizer.step();
///     }
///
/// Results, and the order in which gradients are added, are those of Pipeline with as many ranks
/// along `pipe`; to the bit on the processor, elsewhere kernels are others. Parameters go to the
/// devices of their stages with the first batch, and stay the same tensors, so that an optimizer
/// may be made before; state that it has by then stays where it is (load it after prepare()). One
/// that stages on several devices use (tied embeddings) lies on the first of these, and the others
/// get its values before each step. Tensors that forward takes from elsewhere are constants, with
/// the values that they have at the first batch: what changes is to be a buffer or an input. The
/// processor may be named several times: its stages run on threads of their own, which share what
/// at::get_num_threads() says now.
///
/// Move-only, not thread-safe; must not outlive the module.
class DevicePipeline {
 public:
  /// Throws UsageError for devices that are not there, for another one than the processor that is
  /// named twice (plan.chunks gives a device several stages), and for what a plan asks of several
  /// processes: a mesh, layouts, ZeRO, synchronised batch norm.
  ///
  /// @param forward as for Pipeline.
  /// @param plan micro_batches 0: the first step finds how many are fastest (find_micro_batches).
  /// @param devices in the order in which stages are given to them: those that are ranks along
  /// `pipe` in `plan.stages` and schedules.
  [[nodiscard]] DevicePipeline(ModuleRef module, graph::Forward forward, const Plan& plan,
                               const std::vector<at::Device>& devices);
  DevicePipeline(DevicePipeline&&) noexcept;
  DevicePipeline& operator=(DevicePipeline&&) noexcept;
  ~DevicePipeline();

  /// Pipeline::step on one batch, which may lie on any device; what is in pinned memory must not
  /// change before the devices have read it. The loss is on the device of the last stage. Blocking
  /// until all operators are queued, on the processor until they are done; a report has the times
  /// at which they were. Where something throws, that is thrown here, all devices stop, and
  /// gradients are of no use; the next step begins anew. Throws UsageError within autocast.
  PipelineStep step(const std::vector<at::Tensor>& batch, const PipelineStepOptions& options = {});

  /// Pipeline::evaluate. Results are on the devices of the stages that make them.
  PipelineEvaluation evaluate(const std::vector<at::Tensor>& batch);

  /// What the first step would do before it runs: records the module, and moves it.
  void prepare(const std::vector<at::Tensor>& batch);

  /// Measures steps with this batch cut into 1, 2, 4, … micro-batches, to four times the best so
  /// far, and around the best; steps take the fastest from now on. Passes over what does not fit
  /// into a device's memory, and throws that where nothing fits. Losses are dropped, and
  /// gradients, buffers and random numbers are afterwards what they were. Blocking; takes some
  /// dozens of steps. As ours are measured times, other runs may choose otherwise, and round
  /// otherwise: a run that is to be repeated to the bit names plan.micro_batches. UsageError for a
  /// plan with a schedule of its own, which is for one number. Source: the
  /// search of PyTorch's model parallel tutorial, made automatic.
  /// @return what was measured, by numbers of micro-batches.
  std::vector<SplitTime> find_micro_batches(const std::vector<at::Tensor>& batch);

  /// How many there are; 0 where that is still to be found.
  std::int64_t micro_batches() const noexcept;

  // Of the last step; they throw UsageError before the first.

  const graph::Graph& graph() const;
  const std::vector<int>& boundaries() const;
  const schedule::Schedule& schedule() const;
  const Recomputation& recomputation() const;
  std::string to_string() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trireme
