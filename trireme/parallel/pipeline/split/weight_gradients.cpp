// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/pipeline/split/weight_gradients.h>

#include <trireme/parallel/pipeline/messages/message_buffers.h>
#include <trireme/parallel/pipeline/split/node_pointer.h>

#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <string>
#include <unordered_map>
#include <utility>

namespace trireme::pipeline {
namespace {

std::shared_ptr<WeightGradients>& current_of_thread() {
  thread_local std::shared_ptr<WeightGradients> current;
  return current;
}

// A node that passes given gradients on. It keeps no reference to them, so that autograd can take
// their memory for `.grad()` instead of copying it.
struct Giving final : torch::autograd::Node {
  torch::autograd::variable_list apply(torch::autograd::variable_list&& /*gradients*/) override {
    return std::move(gradients);
  }
  std::string name() const override { return "WeightGradients"; }

  torch::autograd::variable_list gradients;
};

// Accumulates gradients into leaves through autograd, so that their hooks run.
void accumulate(const std::vector<at::Tensor>& weights, torch::autograd::variable_list gradients) {
  if (weights.empty()) return;
  torch::autograd::edge_list edges;
  for (const at::Tensor& weight : weights) {
    edges.push_back(torch::autograd::impl::gradient_edge(weight));
  }
  auto [node, giving] = make_node<Giving>();
  giving->set_next_edges(std::move(edges));
  const at::Tensor begin = at::empty({0}, gradients.front().device());
  giving->add_input_metadata(begin);
  giving->gradients = std::move(gradients);
  torch::autograd::Engine::get_default_engine().execute(
      {{node, 0}}, {begin}, /*keep_graph=*/false, /*create_graph=*/false, /*accumulate_grad=*/true);
}

}  // namespace

WeightGradients::Guard::Guard(std::shared_ptr<WeightGradients> gradients)
    : previous_(std::exchange(current_of_thread(), std::move(gradients))) {}

WeightGradients::Guard::~Guard() { current_of_thread() = std::move(previous_); }

const std::shared_ptr<WeightGradients>& WeightGradients::current() noexcept {
  return current_of_thread();
}

void WeightGradients::put_off(std::vector<at::Tensor> weights, at::Tensor gradient,
                              Compute compute) {
  jobs_.push_back({std::move(weights), std::move(gradient), std::move(compute)});
}

bool WeightGradients::reads(const at::Tensor& tensor) const {
  return std::ranges::any_of(jobs_,
                             [&](const Job& job) { return share_memory(job.gradient, tensor); });
}

// Each gradient is accumulated before the next one is computed, while it is still in the cache. So
// memory is needed for one of them at a time.
void WeightGradients::run() {
  struct Use {
    int left = 0;  // jobs that have not run yet
    at::Tensor sum{};
  };
  std::vector<Job> jobs = std::exchange(jobs_, {});
  std::unordered_map<const c10::TensorImpl*, Use> uses;
  for (const Job& job : jobs) {
    for (const at::Tensor& weight : job.weights) ++uses[weight.unsafeGetTensorImpl()].left;
  }
  for (Job& job : jobs) {
    std::vector<at::Tensor> gradients = job.compute();
    std::vector<at::Tensor> complete;
    std::vector<at::Tensor> sums;
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      at::Tensor& gradient = gradients[i];
      // Autograd may take the gradient's memory for `.grad()`, so it must not be shared with
      // another tensor. A sparse gradient may share its values with `job.gradient` and its indices
      // with the batch, which cannot be detected.
      const bool may_be_shared = gradient.defined() && gradient.is_sparse();
      if (may_be_shared || share_memory(gradient, job.gradient)) gradient = gradient.clone();
      Use& use = uses.at(job.weights[i].unsafeGetTensorImpl());
      if (!use.sum.defined()) {
        use.sum = std::move(gradient);
      } else if (gradient.defined()) {
        use.sum = at::add(use.sum, gradient);
      }
      if (--use.left > 0 || !use.sum.defined()) continue;
      complete.push_back(job.weights[i]);
      sums.push_back(std::move(use.sum));
    }
    job = {};  // frees the tensors that it kept
    accumulate(complete, std::move(sums));
  }
}

}  // namespace trireme::pipeline
