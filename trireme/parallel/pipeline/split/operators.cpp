// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/pipeline/split/operators.h>

#include <trireme/parallel/pipeline/split/node_pointer.h>
#include <trireme/parallel/pipeline/split/weight_gradients.h>

#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <string_view>
#include <utility>

namespace trireme::pipeline::split {
namespace {

using torch::autograd::edge_list;
using torch::autograd::Engine;
using torch::autograd::variable_list;
using torch::autograd::impl::gradient_edge;

// The operators that can be split, sorted. Each returns one tensor, which their gradients do not
// read.
constexpr auto kOperators = std::to_array<std::string_view>({"aten::_convolution",
                                                             "aten::addbmm",
                                                             "aten::addmm",
                                                             "aten::addmv",
                                                             "aten::baddbmm",
                                                             "aten::batch_norm",
                                                             "aten::bilinear",
                                                             "aten::bmm",
                                                             "aten::conv1d",
                                                             "aten::conv2d",
                                                             "aten::conv3d",
                                                             "aten::conv_transpose1d",
                                                             "aten::conv_transpose2d",
                                                             "aten::conv_transpose3d",
                                                             "aten::convolution",
                                                             "aten::embedding",
                                                             "aten::group_norm",
                                                             "aten::instance_norm",
                                                             "aten::layer_norm",
                                                             "aten::linear",
                                                             "aten::matmul",
                                                             "aten::mm",
                                                             "aten::mv",
                                                             "aten::rms_norm"});
static_assert(std::ranges::is_sorted(kOperators));

// The operators whose weight gradients are computed together with the input gradient, sorted. In
// training, the input gradient needs the same sums over a channel as the weight gradients, which
// therefore cost nothing extra. A second backward would read input and gradient again, and would
// have to keep both.
constexpr auto kOfSums = std::to_array<std::string_view>(
    {"aten::batch_norm", "aten::group_norm", "aten::instance_norm"});
static_assert(std::ranges::is_sorted(kOfSums));

// The end of the graph for the stand-in of an input. Unlike a leaf, it does not hold the input's
// memory.
struct InputEnd final : torch::autograd::Node {
  variable_list apply(variable_list&& /*gradients*/) override { return {}; }
  std::string name() const override { return "SplitInput"; }
};

// An operator that has run on stand-ins. It holds no tensor itself; its graph holds the tensors
// that were saved for backward.
struct Stood {
  torch::autograd::Edge output;
  edge_list inputs;
  edge_list weights;
  std::vector<bool> is_transposed;  // of each weight
  bool is_of_sums = false;

  variable_list gradients_of_weights(const at::Tensor& gradient) const {
    variable_list all = gradients_of(weights, gradient, /*keep_graph=*/false);
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (is_transposed[i] && all[i].defined()) all[i] = all[i].t();
    }
    return all;
  }

  // Returns the gradients of inputs, followed by those of weights.
  variable_list gradients_of_all(const at::Tensor& gradient) const {
    edge_list ends = inputs;
    ends.insert(ends.end(), weights.begin(), weights.end());
    return gradients_of(ends, gradient, /*keep_graph=*/false);
  }

  variable_list gradients_of(const edge_list& ends, const at::Tensor& gradient,
                             bool keep_graph) const {
    return Engine::get_default_engine().execute({output}, {gradient}, keep_graph,
                                                /*create_graph=*/false,
                                                /*accumulate_grad=*/false, ends);
  }
};

// The node of a split operator in the stage's graph. Its next edges lead to the inputs only,
// because weights get their gradients from the queue.
struct SplitNode final : torch::autograd::Node {
  variable_list apply(variable_list&& gradients) override {
    const at::Tensor gradient = std::move(gradients).front();
    variable_list of_inputs(stood->inputs.size());
    if (!gradient.defined()) return of_inputs;
    if (stood->is_of_sums && !of_inputs.empty()) {
      variable_list all = stood->gradients_of_all(gradient);
      const auto middle = all.begin() + std::ssize(of_inputs);
      queue->put_off(weights, {}, [kept = variable_list(middle, all.end())] { return kept; });
      all.erase(middle, all.end());
      return all;
    }
    if (!of_inputs.empty()) {
      of_inputs = stood->gradients_of(stood->inputs, gradient, /*keep_graph=*/true);
    }
    queue->put_off(weights, gradient,
                   [kept = stood, gradient] { return kept->gradients_of_weights(gradient); });
    return of_inputs;
  }
  void release_variables() override { stood.reset(); }
  std::string name() const override { return "SplitBackward"; }

  std::shared_ptr<Stood> stood;
  std::vector<at::Tensor> weights;
  std::shared_ptr<WeightGradients> queue;
};

bool is_autocast(const at::Tensor& tensor) {
  return at::autocast::is_autocast_enabled(tensor.device().type());
}

bool needs_gradient(const c10::IValue& argument) {
  return argument.isTensor() && argument.toTensor().defined() &&
         argument.toTensor().requires_grad();
}

// Returns the leaf that an argument stands for: the argument itself, or the leaf that it is the
// transpose of, as in torch::nn::Linear. Returns an undefined tensor for other arguments.
at::Tensor weight_of(const c10::IValue& argument) {
  if (!needs_gradient(argument)) return {};
  const at::Tensor& tensor = argument.toTensor();
  if (tensor.is_leaf()) return tensor;
  const auto& function = tensor.grad_fn();
  if (function->num_outputs() != 1 || function->name() != "TBackward0") return {};
  const auto* const leaf =
      dynamic_cast<const torch::autograd::AccumulateGrad*>(function->next_edge(0).function.get());
  return leaf == nullptr ? at::Tensor() : leaf->variable;
}

bool can_replace(const c10::OperatorHandle& handle, const c10::IValue* begin,
                 const c10::IValue* end) {
  if (!WeightGradients::current() || !c10::GradMode::is_enabled() ||
      c10::InferenceMode::is_enabled() ||
      !std::ranges::binary_search(kOperators, handle.operator_name().name)) {
    return false;
  }
  const c10::IValue* const weight =
      std::find_if(begin, end, [](const auto& argument) { return weight_of(argument).defined(); });
  return weight != end && !is_autocast(weight->toTensor());
}

// Replaces an argument by a detached tensor with the same memory: a leaf for a weight, else a
// tensor whose graph ends in an InputEnd.
at::Tensor stand_in_for(c10::IValue& argument, bool is_weight) {
  at::Tensor tensor = argument.toTensor().detach();
  if (is_weight) {
    tensor.set_requires_grad(true);
  } else {
    torch::autograd::set_history(tensor, make_node<InputEnd>().first);
  }
  argument = tensor;
  return tensor;
}

at::Tensor call(const c10::OperatorHandle& handle, std::vector<c10::IValue> arguments) {
  if (!replace(handle, arguments)) handle.callBoxed(arguments);
  return std::move(arguments.back()).toTensor();
}

c10::OperatorHandle find(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "");
}

}  // namespace

bool replace(const c10::OperatorHandle& handle, std::vector<c10::IValue>& stack) {
  const std::size_t count = handle.schema().arguments().size();
  const std::size_t first = stack.size() - count;
  if (!can_replace(handle, stack.data() + first, stack.data() + stack.size())) return false;
  auto [node, split] = make_node<SplitNode>();
  split->stood = std::make_shared<Stood>();
  split->stood->is_of_sums = std::ranges::binary_search(kOfSums, handle.operator_name().name);
  split->queue = WeightGradients::current();
  edge_list edges;
  std::vector<c10::IValue> arguments(stack.begin() + static_cast<std::ptrdiff_t>(first),
                                     stack.end());
  for (c10::IValue& argument : arguments) {
    if (!needs_gradient(argument)) continue;
    const at::Tensor own = argument.toTensor();
    if (const at::Tensor weight = weight_of(argument); weight.defined()) {
      split->weights.push_back(weight);
      split->stood->is_transposed.push_back(!weight.is_same(own));
      split->stood->weights.push_back(gradient_edge(stand_in_for(argument, /*is_weight=*/true)));
    } else {
      edges.push_back(gradient_edge(own));
      split->stood->inputs.push_back(gradient_edge(stand_in_for(argument, /*is_weight=*/false)));
    }
  }
  handle.callBoxed(arguments);
  const at::Tensor stood = std::move(arguments.back()).toTensor();
  split->stood->output = gradient_edge(stood);
  split->set_next_edges(std::move(edges));
  at::Tensor output = stood.detach();
  torch::autograd::set_history(output, node);
  stack.resize(first);
  stack.emplace_back(std::move(output));
  return true;
}

at::Tensor linear(const at::Tensor& input, const at::Tensor& weight,
                  const std::optional<at::Tensor>& bias) {
  static const c10::OperatorHandle handle = find("aten::linear");
  return call(handle, {input, weight, bias});
}

at::Tensor convolution(const at::Tensor& input, const at::Tensor& weight,
                       const std::optional<at::Tensor>& bias, at::IntArrayRef stride,
                       at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
                       at::IntArrayRef output_padding, std::int64_t groups) {
  static const c10::OperatorHandle handle = find("aten::convolution");
  return call(handle,
              {input, weight, bias, stride, padding, dilation, transposed, output_padding, groups});
}

at::Tensor embedding(const at::Tensor& weight, const at::Tensor& indices,
                     std::int64_t padding_index, bool scale_by_frequency, bool sparse) {
  static const c10::OperatorHandle handle = find("aten::embedding");
  return call(handle, {weight, indices, padding_index, scale_by_frequency, sparse});
}

at::Tensor layer_norm(const at::Tensor& input, at::IntArrayRef normalized_shape,
                      const std::optional<at::Tensor>& weight,
                      const std::optional<at::Tensor>& bias, double epsilon) {
  static const c10::OperatorHandle handle = find("aten::layer_norm");
  return call(handle, {input, normalized_shape, weight, bias, epsilon, /*cudnn_enable=*/true});
}

at::Tensor batch_norm(const at::Tensor& input, const std::optional<at::Tensor>& weight,
                      const std::optional<at::Tensor>& bias,
                      const std::optional<at::Tensor>& running_mean,
                      const std::optional<at::Tensor>& running_variance, bool training,
                      double momentum, double epsilon) {
  static const c10::OperatorHandle handle = find("aten::batch_norm");
  return call(handle, {input, weight, bias, running_mean, running_variance, training, momentum,
                       epsilon, /*cudnn_enabled=*/true});
}

}  // namespace trireme::pipeline::split
