// SPDX-License-Identifier: Apache-2.0
// Convolutions and their backward. at::conv1d, conv2d, conv3d and the transposed ones call
// `convolution` before autograd. They can be sharded along the batch, output channels, input
// channels (Partial results) and, if there are several, groups. Dims of the image are never
// sharded.
#include <trireme/tensor/rules/einsum_rule.h>
#include <trireme/tensor/rules/families.h>
#include <trireme/tensor/rules/sizes.h>

#include <ATen/TensorOperators.h>

#include <algorithm>
#include <string>

namespace trireme::tensor {
namespace {

// Appends `.` for the dims of image and kernel, which are never sharded.
std::string with_space(const std::string& letters, const at::Tensor& tensor) {
  return letters +
         std::string(static_cast<std::size_t>(std::max<std::int64_t>(tensor.dim() - 2, 0)), '.');
}

// The call of a convolution or its backward, with its terms.
struct Convolution {
  const Call& call;
  bool is_backward;

  const at::Tensor& input() const { return call.input(is_backward ? 1 : 0); }
  const at::Tensor& weight() const { return call.input(is_backward ? 2 : 1); }
  bool has_bias() const { return !is_backward && call.num_inputs() > 2; }
  bool is_transposed() const {
    const int position = call.position("transposed");
    return position >= 0 && call.boolean(position);
  }
  std::int64_t groups() const { return call.integer(call.position("groups")); }

  // Returns the letters of an image. With groups, channels cannot be sharded alone and the batch is
  // left.
  std::string image(const char* letters) const {
    return with_space(groups() == 1 ? letters : "n.", input());
  }
  std::string kernel() const {
    return with_space(groups() != 1 ? ".." : is_transposed() ? "co" : "oc", weight());
  }

  Contraction terms() const {
    const std::string bias = groups() == 1 ? "o" : ".";
    if (is_backward) {
      return {.inputs = {{image("no")}, {image("nc")}, {kernel()}},
              .outputs = {{image("nc"), {0, 2}}, {kernel(), {0, 1}}, {bias, {0}}},
              .linear = {0}};
    }
    Contraction terms = {
        .inputs = {{image("nc")}, {kernel()}}, .outputs = {{image("no")}}, .linear = {0, 1}};
    if (has_bias()) {
      terms.inputs.push_back({bias});
      terms.added = {2};
    }
    return terms;
  }
};

// Returns the strategy that gives whole groups to every rank: it shards the channels of both images
// and the first dim of the weight.
Strategy cut_groups(const Convolution& it) {
  Strategy strategy;
  if (it.is_backward) {
    strategy.inputs = {Shard{1}, Shard{1}, Shard{0}};
    strategy.outputs = {Shard{1}, Shard{0}, Shard{0}};
    return strategy;
  }
  strategy.inputs = {Shard{1}, Shard{0}};
  if (it.has_bias()) strategy.inputs.push_back(Shard{0});
  strategy.outputs = {Shard{1}};
  return strategy;
}

// Sets the argument `groups` to the number of groups in this rank's part.
void set_local_groups(LocalCall& call, bool is_backward) {
  const int position = call.call().position("groups");
  const std::int64_t groups = call.argument(position).toInt();
  if (groups == 1) return;
  const int input = is_backward ? 1 : 0;
  const std::int64_t channels = call.input_sizes(input)[1];
  call.argument(position) = groups * call.tensor(input).size(1) / channels;
}

void convolve(LocalCall& call) {
  if (!has_empty_part(call)) {
    set_local_groups(call, /*is_backward=*/false);
    call.call_operator();
    return;
  }
  // Without input channels the result is zero, but a Partial bias is still added.
  at::Tensor result = output_of_empty_part(call, 0);
  if (call.has_tensor(2) && result.numel() > 0) {
    std::vector<std::int64_t> sizes(static_cast<std::size_t>(result.dim()), 1);
    sizes[1] = -1;
    result.add_(call.tensor(2).view(sizes));
  }
  call.give({result});
}

void convolve_backward(LocalCall& call) {
  const int sizes = call.call().position("bias_sizes");
  const at::Tensor grad = call.tensor(0);
  if (!has_empty_part(call)) {
    set_local_groups(call, /*is_backward=*/true);
    if (sizes >= 0 && !call.argument(sizes).isNone()) {
      call.argument(sizes) = as_list({grad.size(1)});
    }
    call.call_operator();
    return;
  }
  at::Tensor grad_bias = output_of_empty_part(call, 2);
  // The gradient of the bias does not depend on input channels.
  if (grad_bias.defined() && grad.numel() > 0) {
    grad_bias = grad.transpose(0, 1).flatten(1).sum(1);
  }
  call.give({output_of_empty_part(call, 0), output_of_empty_part(call, 1), grad_bias});
}

template <bool IsBackward>
void strategies(const AxisCall& axis, std::vector<Strategy>& all) {
  const Convolution it = {axis.call, IsBackward};
  // The operator itself refuses images without a batch dim and other unusual shapes.
  if (it.input().dim() < 3 || it.weight().dim() != it.input().dim()) return;
  const std::size_t first = all.size();
  add_strategies(axis.call, it.terms(), all);
  const std::int64_t groups = it.groups();
  if (groups > 1 && groups % axis.parts(IsBackward ? 1 : 0, 1) == 0) {
    all.push_back(cut_groups(it));
  }
  for (std::size_t i = first; i < all.size(); ++i) {
    all[i].kernel = IsBackward ? convolve_backward : convolve;
  }
}

// Returns the result as channels last if the image or the weight are, as LibTorch does.
at::Tensor in_format_of(const at::Tensor& image, const at::Tensor& weight,
                        const at::Tensor& result) {
  const at::MemoryFormat format = image.suggest_memory_format();
  const bool is_plain = format == at::MemoryFormat::Contiguous;
  return result.contiguous(is_plain ? weight.suggest_memory_format() : format);
}

std::vector<at::Tensor> result_shape(const Call& call) {
  const Convolution it = {call, false};
  const auto at = [&](const char* name, std::size_t index, std::int64_t otherwise) {
    const int position = call.position(name);
    if (position < 0) return otherwise;
    const std::vector<std::int64_t> list = call.integers(position);
    return list.empty() ? otherwise : list[std::min(index, list.size() - 1)];
  };
  const at::Tensor& input = it.input();
  const at::Tensor& weight = it.weight();
  std::vector<std::int64_t> sizes = {
      input.size(0), it.is_transposed() ? weight.size(1) * it.groups() : weight.size(0)};
  for (std::int64_t dim = 2; dim < input.dim(); ++dim) {
    const auto i = static_cast<std::size_t>(dim - 2);
    const std::int64_t reach = at("dilation", i, 1) * (weight.size(dim) - 1);
    const std::int64_t stride = at("stride", i, 1);
    const std::int64_t padding = at("padding", i, 0);
    sizes.push_back(it.is_transposed() ? (input.size(dim) - 1) * stride - 2 * padding + reach +
                                             at("output_padding", i, 0) + 1
                                       : (input.size(dim) + 2 * padding - reach - 1) / stride + 1);
  }
  return {in_format_of(input, weight, input.new_empty(sizes))};
}

std::vector<at::Tensor> backward_shapes(const Call& call) {
  const Convolution it = {call, true};
  const auto mask = call.argument(call.position("output_mask")).toBoolList();
  return {mask.get(0) ? it.input() : at::Tensor(), mask.get(1) ? it.weight() : at::Tensor(),
          mask.get(2) ? it.weight().new_empty({call.input(0).size(1)}) : at::Tensor()};
}

// Each element of the image that the weight's first dim belongs to is multiplied with every other
// element of the weight: a product and a sum each.
double products(const at::Tensor& image, const at::Tensor& weight) {
  const double per_channel = static_cast<double>(weight.numel()) /
                             static_cast<double>(std::max<std::int64_t>(weight.size(0), 1));
  return 2 * static_cast<double>(image.numel()) * per_channel;
}

double flops(const Call& call) {
  const Convolution it = {call, false};
  return products(it.is_transposed() ? it.input() : call.output(0), it.weight());
}

double backward_flops(const Call& call) {
  const Convolution it = {call, true};
  return 2 * products(it.is_transposed() ? it.input() : call.input(0), it.weight());
}

Rule forward_rule() {
  return {.strategies = strategies<false>, .shapes = result_shape, .flops = flops};
}

Rule backward_rule() {
  return {.strategies = strategies<true>, .shapes = backward_shapes, .flops = backward_flops};
}

// conv_tbc has the dims time, batch, channels.
Indices conv_tbc_indices(const Call&) {
  return {.terms = {.inputs = {{".nc"}, {".co"}, {"o"}},
                    .outputs = {{".no"}},
                    .added = {2},
                    .linear = {0, 1}}};
}

Indices conv_tbc_backward_indices(const Call&) {
  return {.terms = {.inputs = {{".no"}, {".nc"}, {".co"}, {"o"}},
                    .outputs = {{".nc", {0, 2}}, {".co", {0, 1}}, {"o", {0}}},
                    .linear = {0}},
          .shape_only = {3}};
}

void conv_tbc(LocalCall& call) {
  if (!has_empty_part(call)) {
    call.call_operator();
    return;
  }
  at::Tensor result = output_of_empty_part(call, 0);
  if (result.numel() > 0) result.add_(call.tensor(2));
  call.give({result});
}

void conv_tbc_backward(LocalCall& call) {
  if (!has_empty_part(call)) {
    call.call_operator();
    return;
  }
  const at::Tensor grad = call.tensor(0);
  at::Tensor grad_bias = output_of_empty_part(call, 2);
  if (grad.numel() > 0) grad_bias = grad.flatten(0, 1).sum(0);
  call.give({output_of_empty_part(call, 0), output_of_empty_part(call, 1), grad_bias});
}

}  // namespace

void add_convolution_rules(NamedRules& rules) {
  FamilyRules family(rules, "convolutions");
  family.add({"convolution", "_convolution", "convolution_overrideable", "mkldnn_convolution"},
             forward_rule());
  family.add({"convolution_backward", "convolution_backward_overrideable"}, backward_rule());
  family.add("conv_tbc", einsum_rule(conv_tbc_indices, conv_tbc));
  family.add("conv_tbc_backward",
             with_shapes(einsum_rule(conv_tbc_backward_indices, conv_tbc_backward),
                         [](const Call& call) -> std::vector<at::Tensor> {
                           return {call.input(1), call.input(2), call.input(3)};
                         }));
}

}  // namespace trireme::tensor
