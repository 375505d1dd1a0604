// SPDX-License-Identifier: Apache-2.0
#include <trireme/graph/record/products.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/matmul.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/generated/Functions.h>

#include <algorithm>
#include <string_view>
#include <vector>

namespace trireme::graph::detail {
namespace {

using torch::autograd::Node;
using torch::autograd::SavedVariable;

at::Tensor without_memory(const tensor::DryRunTensor& like) {
  at::Tensor made = at::empty_strided(like.sizes, like.strides,
                                      at::TensorOptions().dtype(like.dtype).device(at::kMeta));
  return made.requires_grad_(like.requires_grad);
}

template <typename Product>
std::vector<at::Tensor> saved_by(Node* node, SavedVariable Product::* first,
                                 SavedVariable Product::* second) {
  auto* const product = dynamic_cast<Product*>(node);
  if (product == nullptr) return {};
  return {(product->*first).unpack(), (product->*second).unpack()};
}

std::vector<at::Tensor> saved_by(Node* node) {
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

}  // namespace

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

}  // namespace trireme::graph::detail
