// SPDX-License-Identifier: Apache-2.0
// A module's own run beside runs of its graph, whole and cut in two: the same bits are expected.
#pragma once

#include <trireme/graph/boundaries.h>
#include <trireme/graph/capture.h>
#include <trireme/graph/replay.h>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace trireme::test {

using Tensors = std::vector<at::Tensor>;

/// A module, what is done with it, and what it is given.
struct Subject {
  std::shared_ptr<torch::nn::Module> module;
  graph::Forward forward;
  Tensors inputs;
};

struct Outcome {
  Tensors results;
  Tensors gradients;  ///< of parameters and inputs; undefined where there are none
  Tensors buffers;
};

inline graph::Graph captured(const Subject& subject) {
  return graph::capture(*subject.module, subject.forward, subject.inputs);
}

/// Copies, so that what writes to inputs leaves them as they are.
inline Tensors fresh(const Tensors& inputs) {
  Tensors all;
  for (const at::Tensor& input : inputs) {
    all.push_back(input.detach().clone().requires_grad_(input.requires_grad()));
  }
  return all;
}

/// Runs `run` on copies of the inputs from the same random state and the same buffers as any other,
/// which are put back.
inline Outcome outcome_of(const Subject& subject,
                          const std::function<Tensors(const Tensors&)>& run) {
  torch::manual_seed(7);
  Tensors buffers;
  for (const at::Tensor& buffer : subject.module->buffers()) buffers.push_back(buffer.clone());
  subject.module->zero_grad(/*set_to_none=*/true);
  const Tensors inputs = fresh(subject.inputs);
  Outcome outcome;
  for (const at::Tensor& result : run(inputs)) outcome.results.push_back(result.detach().clone());
  for (const at::Tensor& parameter : subject.module->parameters()) {
    outcome.gradients.push_back(parameter.grad().defined() ? parameter.grad().clone()
                                                           : at::Tensor());
  }
  for (const at::Tensor& input : inputs) {
    outcome.gradients.push_back(input.is_leaf() ? input.grad() : at::Tensor());
  }
  const torch::NoGradGuard no_grad;
  std::size_t i = 0;
  for (const at::Tensor& buffer : subject.module->buffers()) {
    outcome.buffers.push_back(buffer.clone());
    buffer.copy_(buffers[i++]);
  }
  return outcome;
}

inline void backward_from(const at::Tensor& loss) {
  if (loss.requires_grad()) loss.backward(torch::ones_like(loss));
}

inline Outcome eager(const Subject& subject) {
  return outcome_of(subject, [&](const Tensors& inputs) {
    Tensors results = subject.forward(inputs);
    backward_from(results[0]);
    return results;
  });
}

/// Pieces one after the other, each given detached tensors, and backward in reverse.
class Pipeline {
 public:
  Pipeline(const std::shared_ptr<const graph::Graph>& graph, const std::vector<int>& boundaries,
           const torch::nn::Module& module, graph::RunOptions options = {})
      : graph_(graph), options_(std::move(options)) {
    for (std::size_t i = 0; i + 1 < boundaries.size(); ++i) {
      pieces_.emplace_back(graph, boundaries[i], boundaries[i + 1], module);
    }
  }

  Tensors run(const Tensors& inputs) {
    std::map<graph::ValueId, at::Tensor> values;
    for (std::size_t i = 0; i < inputs.size(); ++i) values[graph_->inputs[i]] = inputs[i];
    for (const graph::Piece& piece : pieces_) forward(piece, values);
    Tensors results;
    for (const graph::ValueId id : graph_->results) results.push_back(values.at(id));
    if (results[0].requires_grad()) gradients_[graph_->results[0]] = torch::ones_like(results[0]);
    for (auto ran = ran_.rbegin(); ran != ran_.rend(); ++ran) backward(*ran);
    return results;
  }

 private:
  struct Ran {
    std::map<graph::ValueId, at::Tensor> received;
    std::map<graph::ValueId, at::Tensor> made;
  };

  void forward(const graph::Piece& piece, std::map<graph::ValueId, at::Tensor>& values) {
    Ran& ran = ran_.emplace_back();
    Tensors given;
    for (const graph::ValueId id : piece.inputs()) {
      at::Tensor tensor = values.at(id);
      if (graph_->value(id).node >= 0) {
        tensor = tensor.detach().requires_grad_(tensor.requires_grad());
        ran.received[id] = tensor;
      }
      given.push_back(tensor);
    }
    const Tensors made = piece.run(given, options_);
    for (std::size_t i = 0; i < made.size(); ++i) {
      values[piece.outputs()[i]] = ran.made[piece.outputs()[i]] = made[i];
    }
  }

  void backward(const Ran& ran) {
    Tensors roots;
    Tensors gradients;
    for (const auto& [id, tensor] : ran.made) {
      const auto gradient = gradients_.find(id);
      if (gradient == gradients_.end() || !tensor.requires_grad()) continue;
      roots.push_back(tensor);
      gradients.push_back(gradient->second);
    }
    if (!roots.empty()) torch::autograd::backward(roots, gradients);
    for (const auto& [id, tensor] : ran.received) {
      if (!tensor.grad().defined()) continue;
      at::Tensor& sum = gradients_[id];
      sum = sum.defined() ? sum + tensor.grad() : tensor.grad();
    }
  }

  std::shared_ptr<const graph::Graph> graph_;
  graph::RunOptions options_;
  std::vector<graph::Piece> pieces_;
  std::vector<Ran> ran_;
  std::map<graph::ValueId, at::Tensor> gradients_;
};

inline Outcome replayed(const Subject& subject, const std::shared_ptr<const graph::Graph>& graph,
                        const std::vector<int>& boundaries, const graph::RunOptions& options = {}) {
  Pipeline pipeline(graph, boundaries, *subject.module, options);
  return outcome_of(subject, [&](const Tensors& inputs) { return pipeline.run(inputs); });
}

inline void expect_same_tensors(const Tensors& expected, const Tensors& given, const char* what) {
  ASSERT_EQ(expected.size(), given.size()) << what;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    ASSERT_EQ(expected[i].defined(), given[i].defined()) << what << " " << i;
    if (!expected[i].defined()) continue;
    ASSERT_EQ(expected[i].sizes(), given[i].sizes()) << what << " " << i;
    EXPECT_EQ(expected[i].scalar_type(), given[i].scalar_type()) << what << " " << i;
    EXPECT_TRUE(torch::equal(expected[i], given[i])) << what << " " << i;
  }
}

inline void expect_same(const Outcome& expected, const Outcome& given) {
  expect_same_tensors(expected.results, given.results, "result");
  expect_same_tensors(expected.gradients, given.gradients, "gradient");
  expect_same_tensors(expected.buffers, given.buffers, "buffer");
}

}  // namespace trireme::test
