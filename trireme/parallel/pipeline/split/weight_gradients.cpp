// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/pipeline/split/weight_gradients.h>

#include <trireme/parallel/pipeline/messages/buffers.h>

#include <ATen/ops/add.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <utility>

namespace trireme::pipeline {
namespace {

std::shared_ptr<WeightGradients>& current_of_thread() {
  thread_local std::shared_ptr<WeightGradients> current;
  return current;
}

// The sums of the gradients of each weight, in the order of their first.
class Sums {
 public:
  void add(const at::Tensor& weight, at::Tensor gradient) {
    const auto found =
        std::ranges::find_if(weights_, [&](const auto& own) { return own.is_same(weight); });
    if (found == weights_.end()) {
      weights_.push_back(weight);
      sums_.push_back(std::move(gradient));
    } else {
      at::Tensor& sum = sums_[static_cast<std::size_t>(found - weights_.begin())];
      sum = at::add(sum, gradient);
    }
  }

  void accumulate() {
    if (weights_.empty()) return;
    torch::autograd::edge_list edges;
    for (const at::Tensor& weight : weights_) {
      edges.push_back(torch::autograd::impl::gradient_edge(weight));
    }
    torch::autograd::Engine::get_default_engine().execute(
        edges, sums_, /*keep_graph=*/false, /*create_graph=*/false, /*accumulate_grad=*/true);
  }

 private:
  std::vector<at::Tensor> weights_;
  std::vector<at::Tensor> sums_;
};

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

void WeightGradients::run() {
  Sums sums;
  for (Job& job : std::exchange(jobs_, {})) {
    std::vector<at::Tensor> gradients = job.compute();
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      if (!gradients[i].defined()) continue;
      // What accumulates may keep this memory, which is another's.
      if (share_memory(gradients[i], job.gradient)) gradients[i] = gradients[i].clone();
      sums.add(job.weights[i], std::move(gradients[i]));
    }
    job = {};  // what it kept
  }
  sums.accumulate();
}

}  // namespace trireme::pipeline
