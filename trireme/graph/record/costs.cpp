// SPDX-License-Identifier: Apache-2.0
#include <trireme/graph/record/costs.h>

#include <trireme/tensor/dry_run/interception.h>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/enum_tag.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mkldnn_rnn_layer.h>
#include <ATen/ops/zeros.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/generated/Functions.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <string_view>
#include <tuple>

namespace trireme::graph::detail {
namespace {

constexpr std::int64_t kLstm = 2;  // LibTorch's number for an LSTM, the one kind that oneDNN runs

// The arguments whose sizes determine the workspace: the input [time, batch, features], the weights
// of input and state [4 hidden, …], and the state [batch, hidden].
constexpr auto kArguments = std::to_array<std::string_view>({"input", "weight1", "weight2", "hx_"});

std::int64_t bytes_of_layer(at::ScalarType dtype,
                            const std::vector<std::vector<std::int64_t>>& sizes) {
  const c10::impl::ExcludeDispatchKeyGuard aside(
      c10::DispatchKeySet(tensor::kBelowAutograd) |
      c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset);
  // The kernel makes a workspace only if gradients are enabled.
  const at::AutoGradMode as_in_forward(true);
  const auto zeros = [dtype](at::IntArrayRef shape) { return at::zeros(shape, dtype); };
  const at::Tensor bias = zeros({sizes[1][0]});
  const at::Tensor state = zeros(sizes[3]);
  const auto made = at::mkldnn_rnn_layer(
      zeros(sizes[0]), zeros(sizes[1]), zeros(sizes[2]), bias, bias, state, state,
      /*reverse=*/false, /*batch_sizes=*/{}, kLstm, /*hidden_size=*/sizes[3].back(),
      /*num_layers=*/1, /*has_biases=*/true, /*bidirectional=*/false, /*batch_first=*/false,
      /*train=*/true);
  const at::Tensor& workspace = std::get<3>(made);
  return workspace.defined() ? static_cast<std::int64_t>(workspace.nbytes()) : 0;
}

using torch::autograd::SavedVariable;

at::Tensor without_memory(const tensor::DryRunTensor& like) {
  at::Tensor made = at::empty_strided(like.sizes, like.strides,
                                      at::TensorOptions().dtype(like.dtype).device(at::kMeta));
  return made.requires_grad_(like.requires_grad);
}

template <typename Product>
std::vector<at::Tensor> saved_by(torch::autograd::Node* node, SavedVariable Product::* first,
                                 SavedVariable Product::* second) {
  auto* const product = dynamic_cast<Product*>(node);
  if (product == nullptr) return {};
  return {(product->*first).unpack(), (product->*second).unpack()};
}

std::vector<at::Tensor> saved_by(torch::autograd::Node* node) {
  using torch::autograd::generated::BmmBackward0;
  using torch::autograd::generated::DotBackward0;
  using torch::autograd::generated::MmBackward0;
  using torch::autograd::generated::MvBackward0;
  std::vector<at::Tensor> saved = saved_by(node, &MmBackward0::self_, &MmBackward0::mat2_);
  if (saved.empty()) saved = saved_by(node, &BmmBackward0::self_, &BmmBackward0::mat2_);
  if (saved.empty()) saved = saved_by(node, &MvBackward0::self_, &MvBackward0::vec_);
  if (saved.empty()) saved = saved_by(node, &DotBackward0::self_, &DotBackward0::tensor_);
  return saved;
}

// Returns what the product saves that a result comes from; only views lie between.
std::vector<at::Tensor> saved_for(const at::Tensor& result) {
  std::vector<at::Tensor> saved;
  for (auto node = result.grad_fn(); node && saved.empty(); node = node->next_edge(0).function) {
    saved = saved_by(node.get());
    if (node->num_outputs() == 0) break;
  }
  return saved;
}

std::int64_t bytes_of(const tensor::DryRunTensor& tensor) {
  auto bytes = static_cast<std::int64_t>(c10::elementSize(tensor.dtype));
  for (const std::int64_t size : tensor.sizes) bytes *= size;
  return bytes;
}

c10::OperatorName parse(const std::string& name) {
  const std::size_t dot = name.find('.');
  if (dot == std::string::npos) return {name, ""};
  return {name.substr(0, dot), name.substr(dot + 1)};
}

}  // namespace

std::int64_t Workspaces::bytes(const tensor::DryRunCall& backward) {
  if (backward.name != "aten::mkldnn_rnn_layer_backward") return 0;
  Sizes sizes;
  at::ScalarType dtype = at::kFloat;
  for (const std::string_view argument : kArguments) {
    const auto found =
        std::ranges::find(backward.inputs, argument, &tensor::DryRunTensor::argument);
    if (found == backward.inputs.end()) return 0;
    sizes.push_back(found->sizes);
    dtype = found->dtype;
  }
  const auto [known, is_new] = known_.try_emplace({dtype, sizes}, 0);
  if (is_new) known->second = bytes_of_layer(dtype, sizes);
  return known->second;
}

std::optional<SavedFactors> saved_factors(const tensor::DryRunCall& backward) {
  const bool is_linear = backward.name == "aten::linear_backward";
  if (!is_linear && backward.name != "aten::matmul_backward") return std::nullopt;
  const auto input = [&](std::string_view name) {
    return std::ranges::find(backward.inputs, name, &tensor::DryRunTensor::argument);
  };
  const auto first = input("self");
  const auto second = input(is_linear ? "weight" : "other");
  if (first == backward.inputs.end() || second == backward.inputs.end()) return std::nullopt;

  // The usual dispatch keys: with autograd, and outside the dry run and recorder.
  const c10::impl::ForceDispatchKeyGuard plain(c10::default_included_set,
                                               c10::default_excluded_set);
  const at::AutoGradMode with_graph(true);
  const at::Tensor left = without_memory(*first);
  const at::Tensor right = without_memory(*second);
  SavedFactors kept;
  for (const at::Tensor& saved : saved_for(at::matmul(left, is_linear ? right.t() : right))) {
    if (!saved.defined()) continue;
    const c10::Storage& memory = saved.storage();
    const bool is_first = memory.is_alias_of(left.storage());
    const bool is_second = memory.is_alias_of(right.storage());
    kept.has_first = kept.has_first || is_first;
    kept.has_second = kept.has_second || is_second;
    if (!is_first && !is_second) kept.copied_bytes += static_cast<std::int64_t>(memory.nbytes());
  }
  return kept;
}

const Costs::Known& Costs::known(const std::string& name) {
  const auto [found, is_new] = operators_.try_emplace(name);
  if (!is_new) return found->second;
  const auto op = c10::Dispatcher::singleton().findSchema(parse(name));
  if (!op) return found->second;
  const auto& returns = op->schema().returns();
  const auto* alias = returns.empty() ? nullptr : returns[0].alias_info();
  found->second = {.is_random = op->hasTag(at::Tag::nondeterministic_seeded),
                   .is_view = alias != nullptr && !alias->isWrite()};
  return found->second;
}

void Costs::begin_backward() {
  is_backward_ = true;
  for (std::size_t i = 0; i < graph_->values.size(); ++i) {
    const auto id = static_cast<ValueId>(i);
    const int call = recorder_->call_of(id);
    if (call < 0) continue;
    values_[call].push_back(id);
    std::vector<ValueId>& memories = memories_[root_of(call)];
    const ValueId memory = graph_->values[i].memory;
    if (std::ranges::find(memories, memory) == memories.end()) memories.push_back(memory);
  }
  for (const auto* ids : {&graph_->inputs, &graph_->parameters, &graph_->buffers}) {
    for (const ValueId id : *ids) named_.emplace(graph_->value(id).name, id);
  }
}

void Costs::add(const tensor::DryRunCall& call) {
  if (is_backward_) {
    add_backward(call);
    return;
  }
  const Known& facts = known(call.name);
  recorder_->add_flops(call.flops);
  if (facts.is_random) recorder_->notice_random();
  Made made = {.node = recorder_->current_node(), .is_view = facts.is_view};
  if (facts.is_view && !call.inputs.empty()) {
    made.viewed = call.inputs[0].made_by;
    made.name = call.inputs[0].name;
  }
  for (const tensor::DryRunTensor& output : call.outputs) made.bytes.push_back(bytes_of(output));
  forward_.push_back(std::move(made));
}

void Costs::add_backward(const tensor::DryRunCall& call) {
  const auto running = torch::autograd::get_current_node();
  const int node = running ? recorder_->node_of_sequence(running->sequence_nr()) : -1;
  if (node >= 0) {
    Node& this_node = graph_->nodes[static_cast<std::size_t>(node)];
    this_node.backward_flops += call.flops;
    this_node.saved_bytes += workspaces_.bytes(call);
  }
  read_.clear();
  const std::optional<SavedFactors> factors = saved_factors(call);
  if (factors && node >= 0) {
    graph_->nodes[static_cast<std::size_t>(node)].saved_bytes += factors->copied_bytes;
  }
  for (const tensor::DryRunTensor& input : call.inputs) {
    const bool is_first = input.argument == "self";
    const bool is_second = input.argument == "other" || input.argument == "weight";
    if (factors && ((is_first && !factors->has_first) || (is_second && !factors->has_second))) {
      continue;
    }
    save(input, node);
  }
}

// Returns the call that allocated the memory of which another call returns a view.
int Costs::root_of(int call) const {
  while (forward_[static_cast<std::size_t>(call)].is_view) {
    const int viewed = forward_[static_cast<std::size_t>(call)].viewed;
    if (viewed < 0) break;
    call = viewed;
  }
  return call;
}

// Returns the bytes that a view keeps alive: all of the call's result if it has one.
std::int64_t Costs::bytes_of_root(int call, const tensor::DryRunTensor& view) const {
  const Made& made = forward_[static_cast<std::size_t>(call)];
  return made.bytes.size() == 1 ? made.bytes.front() : bytes_of(view);
}

// Notes that backward reads a result of a call. Values in its memory come first; they are told
// apart from other results by their bytes.
void Costs::save_result(int call, std::int64_t bytes, int reader) {
  const Made& made = forward_[static_cast<std::size_t>(call)];
  int count = ++read_[{call, bytes}];
  if (const auto found = memories_.find(call); found != memories_.end()) {
    for (const ValueId memory : found->second) {
      if (made.bytes.size() > 1 && graph_->value(memory).bytes() != bytes) continue;
      if (--count > 0) continue;
      note(memory, reader);
      return;
    }
  }
  int& saved = saved_[{call, bytes}];
  if (made.node >= graph_->num_nodes() || count <= saved) return;
  if (count > std::max<std::ptrdiff_t>(1, std::ranges::count(made.bytes, bytes))) return;
  ++saved;
  graph_->nodes[static_cast<std::size_t>(made.node)].saved_bytes += bytes;
}

void Costs::note(ValueId value, int reader) {
  Value& kept_value = graph_->values[static_cast<std::size_t>(value)];
  kept_value.is_saved =
      kept_value.is_saved || kept_value.node >= 0 || kept_value.kind == ValueKind::kInput;
  if (reader < 0) return;
  std::vector<ValueId>& saved = graph_->nodes[static_cast<std::size_t>(reader)].saved;
  if (std::ranges::find(saved, value) == saved.end()) saved.push_back(value);
}

// Notes a tensor that backward reads: forward made it, or it existed before.
void Costs::save(const tensor::DryRunTensor& tensor, int reader) {
  int call = tensor.made_by;
  if (call >= static_cast<int>(forward_.size())) return;
  std::string name = tensor.name;
  bool is_itself = true;
  while (call >= 0) {
    if (const auto found = values_.find(call); found != values_.end()) {
      for (const ValueId id : found->second) {
        if (is_itself && graph_->value(id).sizes != tensor.sizes) continue;
        note(id, reader);
        return;
      }
    }
    const Made& made = forward_[static_cast<std::size_t>(call)];
    if (!made.is_view) {
      save_result(call, bytes_of_root(call, tensor), reader);
      return;
    }
    name = made.name;
    call = made.viewed;
    is_itself = false;
  }
  save_before(tensor, name, reader);
}

// Notes a tensor that no recorded call made. It has a name, or it has values and is identified by
// its memory.
void Costs::save_before(const tensor::DryRunTensor& tensor, const std::string& name, int reader) {
  if (const auto found = named_.find(name); found != named_.end()) {
    note(found->second, reader);
    return;
  }
  if (!tensor.is_plain) return;
  const ValueId memory = recorder_->value_of_memory(tensor.memory);
  if (memory != kNoValue) note(memory, reader);
}

}  // namespace trireme::graph::detail
