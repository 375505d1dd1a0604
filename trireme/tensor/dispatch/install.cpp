// SPDX-License-Identifier: Apache-2.0
// Registers the kernels of distributed tensors with LibTorch's dispatcher.
#include <trireme/tensor/dispatch/composites.h>
#include <trireme/tensor/dispatch/direct/direct_operators.h>
#include <trireme/tensor/dispatch/kernel.h>
#include <trireme/tensor/rules/products/double_backward.h>
#include <trireme/tensor/rules/rule_table.h>

#include <ATen/core/Tensor.h>
#include <ATen/ops/_scaled_dot_product_attention_math.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention.h>
#include <ATen/ops/max_pool1d_with_indices.h>
#include <ATen/ops/scaled_dot_product_attention_native.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_set>
#include <utility>
#include <vector>

namespace trireme::tensor {
namespace {

// What the memory-efficient kernel of CUDA takes: [batch, heads, sequence, features], whose rows of
// features begin at addresses that are multiples of 16 bytes.
bool fits_efficient_kernel(const std::array<const at::Tensor*, 3>& inputs) {
  return std::ranges::all_of(inputs, [&](const at::Tensor* input) {
    const at::ScalarType type = input->scalar_type();
    const bool is_known = type == at::kFloat || type == at::kHalf || type == at::kBFloat16;
    constexpr std::int64_t kAlignment = 16;
    return is_known && type == inputs[0]->scalar_type() && input->dim() == 4 &&
           input->size(1) == inputs[0]->size(1) && input->numel() > 0 &&
           input->size(3) * static_cast<std::int64_t>(input->itemsize()) % kAlignment == 0;
  });
}

// Computes attention of distributed tensors, in place of LibTorch's composite operator, with its
// arguments. On the CPU LibTorch chooses. On CUDA it would choose among kernels of which some
// return sizes on the host, which distributed tensors do not support. There, attention without a
// mask and without dropout takes the memory-efficient kernel, all else products and a softmax.
at::Tensor attention_of_distributed(const at::Tensor& query, const at::Tensor& key,
                                    const at::Tensor& value, const std::optional<at::Tensor>& mask,
                                    double dropout, bool is_causal, std::optional<double> scale,
                                    bool enable_gqa) {
  if (!query.device().is_cuda()) {
    return at::native::scaled_dot_product_attention(query, key, value, mask, dropout, is_causal,
                                                    scale, enable_gqa);
  }
  const bool has_mask = mask && mask->defined();
  if (has_mask || dropout != 0 || !fits_efficient_kernel({&query, &key, &value})) {
    return std::get<0>(at::_scaled_dot_product_attention_math(
        query, key, value, mask, dropout, is_causal, std::nullopt, scale, enable_gqa));
  }
  const bool has_backward = c10::GradMode::is_enabled() &&
                            (query.requires_grad() || key.requires_grad() || value.requires_grad());
  return std::get<0>(at::_scaled_dot_product_efficient_attention(
      query, key, value, /*attn_bias=*/std::nullopt, /*compute_log_sumexp=*/has_backward,
      /*dropout_p=*/0, is_causal, scale));
}

using c10::DispatchKey;

// All registrations; they live as long as the process.
struct Registrations {
  std::mutex mutex;
  std::map<std::string, torch::Library> libraries;
  std::unordered_set<std::string> done;
  std::vector<std::pair<c10::OperatorName, OperatorFacts*>> facts;  // of the kernels

  torch::Library& library(const std::string& name_space, DispatchKey key) {
    const std::string name = name_space + toString(key);
    const auto found = libraries.find(name);
    if (found != libraries.end()) return found->second;
    return libraries
        .emplace(name, torch::Library(torch::Library::IMPL, name_space, key, __FILE__, __LINE__))
        .first->second;
  }
};

Registrations& registrations() {
  // Never destroyed: LibTorch's dispatcher may be destroyed first.
  static auto& all = *new Registrations;
  return all;
}

// Libraries whose operators never take distributed tensors. Some of them reject registrations.
bool is_foreign(std::string_view name_space) {
  for (const std::string_view other :
       {"prim", "prims", "profiler", "inductor", "onednn", "quantized", "_quantized", "mkldnn",
        "mkldnn_prepacked", "xnnpack", "c10d", "_c10d_functional", "symm_mem", "rngprims",
        "static_runtime"}) {
    if (name_space == other) return true;
  }
  return false;
}

// Composite operators without a kernel here are decomposed by LibTorch.
bool is_taken_apart(const c10::OperatorHandle& op, const std::string& name) {
  return op.hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd) && !is_kept_whole(name);
}

int install_operators(Registrations& all) {
  int count = 0;
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto op = c10::Dispatcher::singleton().findOp(name);
    if (!op || !op->hasSchema() || is_taken_apart(*op, name.name)) continue;
    const std::size_t colons = name.name.find("::");
    const std::string name_space = name.name.substr(0, colons);
    if (is_foreign(name_space) || !all.done.insert(toString(name)).second) continue;
    const std::string local_name =
        name.name.substr(colons + 2) + (name.overload_name.empty() ? "" : "." + name.overload_name);
    OperatorFacts facts(op->schema());
    facts.follow(find_rule(name.name, name.overload_name));
    auto kernel = std::make_unique<DistributedKernel>(std::move(facts));
    all.facts.emplace_back(name, &kernel->facts());
    all.library(name_space, DispatchKey::PrivateUse2)
        .impl(local_name.c_str(), kernel_function(*op, std::move(kernel)));
    ++count;
  }
  return count;
}

// LibTorch's own body reads the memory of tensors that do not require a gradient.
at::Tensor max_pool1d(const at::Tensor& input, at::IntArrayRef kernel_size, at::IntArrayRef stride,
                      at::IntArrayRef padding, at::IntArrayRef dilation, bool ceil_mode) {
  return std::get<0>(
      at::max_pool1d_with_indices(input, kernel_size, stride, padding, dilation, ceil_mode));
}

void install_replacements(Registrations& all) {
  for (const DispatchKey key : {DispatchKey::PrivateUse2, DispatchKey::AutogradPrivateUse2}) {
    all.library("aten", key).impl("max_pool1d", &max_pool1d);
    all.library("aten", key).impl("scaled_dot_product_attention", &attention_of_distributed);
  }
  torch::Library& above = all.library("aten", DispatchKey::AutogradPrivateUse2);
  above.impl("linear_backward", &linear_backward_recorded);
  above.impl("matmul_backward", &matmul_backward_recorded);
}

// Applies a rule that was added or replaced after the operator's kernel was registered.
void follow_rule(std::string_view rule_name) {
  Registrations& all = registrations();
  const std::scoped_lock lock(all.mutex);
  const std::string_view base = rule_name.substr(0, rule_name.find('.'));
  for (auto& [name, facts] : all.facts) {
    if (!std::string_view(name.name).starts_with(base)) continue;
    facts->follow(find_rule(name.name, name.overload_name));
  }
}

}  // namespace

int install() {
  Registrations& all = registrations();
  const std::scoped_lock lock(all.mutex);
  if (all.libraries.empty()) {
    // LibTorch registers no autograd fallback for this key, and without one an operator without an
    // Autograd kernel throws.
    all.library("_", DispatchKey::AutogradPrivateUse2)
        .fallback(torch::autograd::autogradNotImplementedFallback());
    install_replacements(all);
    on_change_of_rules(follow_rule);
  }
  return install_operators(all);
}

}  // namespace trireme::tensor
