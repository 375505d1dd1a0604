// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/pipeline/execution/rebuild.h>

#include <trireme/base/error.h>
#include <trireme/parallel/pipeline/split/weight_gradients.h>
#include <trireme/parallel/pipeline/step_report.h>
#include <trireme/parallel/recompute/recompute.h>

#include <algorithm>
#include <memory>
#include <utility>

namespace trireme::pipeline {
namespace {

// A part that can run twice: first in forward, then in backward.
class Rebuilt {
 public:
  explicit Rebuilt(const graph::RunPart& run)
      : run_(run), weight_gradients_(WeightGradients::current()) {}

  std::vector<at::Tensor> operator()(const std::vector<at::Tensor>& inputs) {
    if (!std::exchange(has_run_, true)) return run_(inputs);
    const StepRecorder::Rebuilding rebuilding;
    // The second run must split the same operators, so that autograd saves the same tensors.
    const WeightGradients::Guard guard(weight_gradients_.lock());
    return run_(inputs);
  }

 private:
  graph::RunPart run_;
  // Weak, because the queue holds the graph, and the graph holds this object.
  std::weak_ptr<WeightGradients> weight_gradients_;
  bool has_run_ = false;
};

}  // namespace

std::vector<at::Tensor> rebuild_in_backward(const graph::Part& part, const graph::RunPart& run,
                                            const std::vector<at::Tensor>& inputs) {
  const auto is_on_device = [](const at::Tensor& input) { return !input.is_cpu(); };
  RecomputeOptions options;
  options.name = join_message("operators ", part.begin, " to ", part.end - 1);
  // On the CPU, all random numbers come from the streams of `run`, so the generator need not be
  // saved.
  options.preserve_random = std::ranges::any_of(inputs, is_on_device);
  options.keep_between_passes = true;
  return recompute(Rebuilt(run), inputs, std::move(options));
}

}  // namespace trireme::pipeline
