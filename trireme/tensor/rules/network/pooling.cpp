// SPDX-License-Identifier: Apache-2.0
// Rules of pooling, resizing, padding and sampling of images. Batch and channels may be sharded,
// the dims of the image may not.
#include <trireme/tensor/rules/einsum_rule.h>
#include <trireme/tensor/rules/families.h>
#include <trireme/tensor/rules/sizes.h>

#include <algorithm>
#include <string>

namespace trireme::tensor {
namespace {

// Returns letters for all dims but the last `num_space`, for a call whose tensors are all images.
Contraction images(const Call& call, std::int64_t num_space) {
  Contraction terms;
  const auto letters = [num_space](const at::Tensor& tensor) {
    return Term{leading_letters(tensor.dim() - num_space, tensor.dim())};
  };
  for (const at::Tensor& input : call.inputs()) terms.inputs.push_back(letters(input));
  for (const at::Tensor& output : call.outputs()) {
    terms.outputs.push_back(output.defined() ? letters(output) : Term{});
  }
  return terms;
}

// Rules of operators that are linear in their first tensor, and of operators that select elements.
Rule linear_rule(std::int64_t num_space) {
  return einsum_rule([num_space](const Call& call) {
    Indices indices = {.terms = images(call, num_space)};
    indices.terms.linear = {0};
    return indices;
  });
}

Rule choosing_rule(std::int64_t num_space) {
  return einsum_rule([num_space](const Call& call) { return Indices{images(call, num_space)}; });
}

// Rule of a backward that reads only the shape of its second tensor.
Rule linear_backward_rule(std::int64_t num_space) {
  return einsum_rule([num_space](const Call& call) {
    Indices indices = {.terms = images(call, num_space), .shape_only = {1}};
    indices.terms.linear = {0};
    return indices;
  });
}

at::Tensor resized(const at::Tensor& tensor, c10::IntArrayRef last) {
  std::vector<std::int64_t> sizes(tensor.sizes().begin(), tensor.sizes().end());
  std::ranges::copy(last, sizes.end() - static_cast<std::ptrdiff_t>(last.size()));
  return tensor.new_empty(sizes);
}

std::vector<at::Tensor> of_output_size(const Call& call) {
  return {resized(call.input(0), call.integers(call.position("output_size")))};
}

std::int64_t pooled(std::int64_t size, std::int64_t kernel, std::int64_t stride,
                    std::int64_t padding, std::int64_t dilation, bool rounds_up) {
  const std::int64_t span = size + 2 * padding - dilation * (kernel - 1) - 1;
  std::int64_t count = (span + (rounds_up ? stride - 1 : 0)) / stride + 1;
  // A last window that would begin beyond the image is left out.
  if (rounds_up && (count - 1) * stride >= size + padding) --count;
  return count;
}

// max_pool3d_with_indices has no meta kernel.
std::vector<at::Tensor> max_pool3d_shapes(const Call& call) {
  const at::Tensor& input = call.input(0);
  const auto list = [&](const char* name) { return call.integers(call.position(name)); };
  const auto at = [](const std::vector<std::int64_t>& values, std::size_t i) {
    return values.size() == 1 ? values[0] : values[i];
  };
  const std::vector<std::int64_t> kernel = list("kernel_size");
  std::vector<std::int64_t> stride = list("stride");
  if (stride.empty()) stride = kernel;
  std::vector<std::int64_t> last;
  for (std::size_t i = 0; i < 3; ++i) {
    last.push_back(pooled(input.size(input.dim() - 3 + static_cast<std::int64_t>(i)), at(kernel, i),
                          at(stride, i), at(list("padding"), i), at(list("dilation"), i),
                          call.boolean(call.position("ceil_mode"))));
  }
  const at::Tensor values = resized(input, last);
  return {values, values.to(at::kLong)};
}

// The backward of resizing is given the full size of the input, which is local on local tensors.
Rule upsample_backward_rule(std::int64_t num_space) {
  return with_local_sizes(linear_rule(num_space), "input_size");
}

// Returns the dims that are padded. `pad` has two numbers for each dim, beginning with the last.
std::vector<std::int64_t> padded_dims(const Call& call) {
  const std::vector<std::int64_t> pad = call.integers(call.position("pad"));
  std::vector<std::int64_t> dims;
  for (std::size_t i = 0; i + 1 < pad.size(); i += 2) {
    const bool is_padded = pad[i] != 0 || pad[i + 1] != 0;
    if (is_padded) dims.push_back(call.input(0).dim() - 1 - static_cast<std::int64_t>(i / 2));
  }
  return dims;
}

// Padding is not linear, since the value may differ from zero.
Indices constant_pad_indices(const Call& call) {
  return {same_letters(call, letters_except(call.input(0).dim(), padded_dims(call)))};
}

std::vector<at::Tensor> padded_shape(const Call& call) {
  const std::vector<std::int64_t> padding = call.integers(1);
  const at::Tensor& input = call.input(0);
  std::vector<std::int64_t> last;
  for (std::size_t i = padding.size(); i >= 2; i -= 2) {
    const auto dim = input.dim() - static_cast<std::int64_t>(i / 2);
    last.push_back(input.size(dim) + padding[i - 2] + padding[i - 1]);
  }
  return {resized(input, last)};
}

// Adds the strategy that shards a dim of input and result, if both sizes divide evenly. The size of
// one is a multiple of that of the other.
void add_multiple(const AxisCall& axis, std::int64_t dim, std::vector<Strategy>& all) {
  const std::int64_t parts = axis.parts(0, dim);
  const std::int64_t from = axis.call.input(0).size(dim);
  const std::int64_t to = axis.call.output(0).size(dim);
  if (from % parts != 0 || to % parts != 0) return;
  all.push_back(alike(axis.call, Shard{static_cast<int>(dim)}, Shard{static_cast<int>(dim)}));
}

// Rule of operators that move values between the last dims. Batch dims may be sharded, and others
// where parts stay whole multiples.
Rule moving_rule(std::int64_t num_moved, bool cuts_multiples, bool cuts_space) {
  return {.strategies = [num_moved, cuts_multiples, cuts_space](const AxisCall& axis,
                                                                std::vector<Strategy>& all) {
    const std::int64_t num_dims = axis.call.input(0).dim();
    const std::int64_t first = num_dims - num_moved;
    for (std::int64_t dim = 0; dim < first; ++dim) {
      const auto cut = static_cast<int>(dim);
      all.push_back(alike(axis.call, Shard{cut}, Shard{cut}));
      all.back().kernel = run_unless_empty;
    }
    if (cuts_multiples && first >= 0) add_multiple(axis, first, all);
    for (std::int64_t dim = first + 1; cuts_space && dim < num_dims; ++dim) {
      add_multiple(axis, dim, all);
    }
    all.push_back(alike(axis.call, Partial{}, Partial{}));
  }};
}

// Rule of im2col, from [N, C, H, W] to [N, C * kernel, windows], and of col2im back.
Rule columns_rule(std::int64_t num_dims_without_batch) {
  return {.strategies = [num_dims_without_batch](const AxisCall& axis, std::vector<Strategy>& all) {
    const std::int64_t channels = axis.call.input(0).dim() - num_dims_without_batch;
    if (channels == 1) {
      all.push_back(alike(axis.call, Shard{0}, Shard{0}));
      all.back().kernel = run_unless_empty;
    }
    if (channels >= 0) add_multiple(axis, channels, all);
    all.push_back(alike(axis.call, Partial{}, Partial{}));
  }};
}

std::vector<at::Tensor> im2col_shape(const Call& call) {
  const at::Tensor& input = call.input(0);
  const std::vector<std::int64_t> kernel = call.integers(1);
  const std::vector<std::int64_t> dilation = call.integers(2);
  const std::vector<std::int64_t> padding = call.integers(3);
  const std::vector<std::int64_t> stride = call.integers(4);
  std::int64_t windows = 1;
  for (std::size_t i = 0; i < 2; ++i) {
    windows *= pooled(input.size(input.dim() - 2 + static_cast<std::int64_t>(i)), kernel[i],
                      stride[i], padding[i], dilation[i], false);
  }
  std::vector<std::int64_t> sizes(input.sizes().begin(), input.sizes().end() - 2);
  sizes.back() *= kernel[0] * kernel[1];
  sizes.push_back(windows);
  return {input.new_empty(sizes)};
}

std::vector<at::Tensor> col2im_shape(const Call& call) {
  const at::Tensor& input = call.input(0);
  const std::vector<std::int64_t> image = call.integers(1);
  const std::vector<std::int64_t> kernel = call.integers(2);
  std::vector<std::int64_t> sizes(input.sizes().begin(), input.sizes().end() - 1);
  sizes.back() /= kernel[0] * kernel[1];
  sizes.insert(sizes.end(), image.begin(), image.end());
  return {input.new_empty(sizes)};
}

// The input has the letters nc for batch and channels; the grid has n, the space and coordinates.
std::string space(std::int64_t count) { return std::string(static_cast<std::size_t>(count), '.'); }

Rule grid_sampler_rule(std::int64_t num_space) {
  Rule rule = einsum_rule([num_space](const Call&) -> Indices {
    const std::string image = "nc" + space(num_space);
    return {.terms = {.inputs = {{image}, {"n" + space(num_space + 1)}},
                      .outputs = {{image}},
                      .linear = {0}}};
  });
  return with_shapes(std::move(rule), [num_space](const Call& call) -> std::vector<at::Tensor> {
    const c10::IntArrayRef grid = call.input(1).sizes();
    return {resized(call.input(0), grid.slice(1, static_cast<std::size_t>(num_space)))};
  });
}

Rule grid_sampler_backward_rule(std::int64_t num_space) {
  Rule rule = einsum_rule([num_space](const Call&) -> Indices {
    const std::string image = "nc" + space(num_space);
    const std::string grid = "n" + space(num_space + 1);
    return {.terms = {
                .inputs = {{image}, {image}, {grid}}, .outputs = {{image}, {grid}}, .linear = {0}}};
  });
  return with_shapes(std::move(rule), [](const Call& call) -> std::vector<at::Tensor> {
    const auto mask = call.argument(call.position("output_mask")).toBoolList();
    return {mask.get(0) ? call.input(1) : at::Tensor(), mask.get(1) ? call.input(2) : at::Tensor()};
  });
}

// affine_grid_generator maps theta [N, 2, 3] to a grid [N, H, W, 2]; the argument `size` begins
// with N.
Rule affine_grid_rule() {
  Rule rule = einsum_rule([](const Call& call) -> Indices {
    const auto num_dims = [](const at::Tensor& tensor) { return space(tensor.dim() - 1); };
    return {.terms = {.inputs = {{"n" + num_dims(call.input(0))}},
                      .outputs = {{"n" + num_dims(call.output(0))}},
                      .linear = {0}}};
  });
  rule.local_arguments = [](const Call& call, c10::ArrayRef<Layout> outputs,
                            c10::IntArrayRef coordinate,
                            std::vector<std::pair<int, c10::IValue>>& replaced) {
    std::vector<std::int64_t> sizes = call.integers(1);
    sizes[0] = local_sizes(call.output(0).sizes(), outputs[0], coordinate)[0];
    replaced.emplace_back(1, as_list(sizes));
  };
  return rule;
}

std::vector<at::Tensor> affine_grid_shape(const Call& call) {
  const std::vector<std::int64_t> size = call.integers(1);
  std::vector<std::int64_t> grid = {size[0]};
  grid.insert(grid.end(), size.begin() + 2, size.end());
  grid.push_back(static_cast<std::int64_t>(size.size()) - 2);
  return {call.input(0).new_empty(grid)};
}

std::vector<at::Tensor> affine_grid_backward_shape(const Call& call) {
  const at::Tensor& grad = call.input(0);
  const std::int64_t num_space = grad.dim() - 2;
  return {grad.new_empty({grad.size(0), num_space, num_space + 1})};
}

// All dims but the channels may be sharded, since channels change places.
Indices channel_shuffle_indices(const Call& call) {
  Indices indices = {same_letters(call, letters_except(call.input(0).dim(), {1}))};
  indices.terms.linear = {0};
  return indices;
}

// The random samples are [N, C, space].
Indices fractional_pool_indices(const Call& call) {
  Indices indices = {images(call, call.input(0).dim() - 2)};
  indices.terms.inputs[1].letters = "AB.";
  const bool has_batch = call.input(1).dim() == 3 && call.input(0).size(0) == call.input(1).size(0);
  return has_batch ? indices : Indices{};
}

}  // namespace

void add_pooling_rules(NamedRules& rules) {
  FamilyRules family(rules, "pooling");
  family.add({"max_pool2d_with_indices", "adaptive_max_pool2d"}, choosing_rule(2));
  family.add("max_pool3d_with_indices", with_shapes(choosing_rule(3), max_pool3d_shapes));
  family.add("adaptive_max_pool3d", choosing_rule(3));
  family.add("avg_pool2d", linear_rule(2));
  family.add("avg_pool3d", linear_rule(3));
  family.add("avg_pool2d_backward", linear_backward_rule(2));
  family.add("avg_pool3d_backward", linear_backward_rule(3));
  for (const int num_space : {2, 3}) {
    const std::string d = std::to_string(num_space) + "d";
    // Linear in the gradient; of the input only the shape is read.
    family.add("max_pool" + d + "_with_indices_backward",
               with_shapes(linear_backward_rule(num_space), like_second));
    family.add("adaptive_max_pool" + d + "_backward",
               with_shapes(linear_backward_rule(num_space), like_second));
    family.add("_adaptive_avg_pool" + d, with_shapes(linear_rule(num_space), of_output_size));
    family.add("_adaptive_avg_pool" + d + "_backward",
               with_shapes(linear_backward_rule(num_space), like_second));
    family.add("max_unpool" + d, with_shapes(linear_rule(num_space), of_output_size));
    family.add("grid_sampler_" + d, grid_sampler_rule(num_space));
    family.add("grid_sampler_" + d + "_backward", grid_sampler_backward_rule(num_space));
    family.add("fractional_max_pool" + d, einsum_rule(fractional_pool_indices));
    family.add("fractional_max_pool" + d + "_backward",
               with_shapes(linear_backward_rule(num_space), like_second));
  }
  for (const int num_space : {1, 2, 3}) {
    const std::string d = std::to_string(num_space) + "d";
    for (const char* name : {"reflection_pad", "replication_pad"}) {
      family.add(name + d, with_shapes(linear_rule(num_space), padded_shape));
      family.add(name + d + "_backward", with_shapes(linear_backward_rule(num_space), like_second));
    }
    for (const char* name : {"upsample_nearest", "_upsample_nearest_exact"}) {
      family.add(name + d, linear_rule(num_space));
      family.add(name + d + "_backward", upsample_backward_rule(num_space));
    }
  }
  for (const std::string name :
       {"upsample_bilinear2d", "upsample_bicubic2d", "_upsample_bilinear2d_aa",
        "_upsample_bicubic2d_aa", "_upsample_lanczos2d_aa"}) {
    family.add(name, linear_rule(2));
    family.add(name + "_backward", upsample_backward_rule(2));
  }
  family.add("upsample_linear1d", linear_rule(1));
  family.add("upsample_linear1d_backward", upsample_backward_rule(1));
  family.add("upsample_trilinear3d", linear_rule(3));
  family.add("upsample_trilinear3d_backward", upsample_backward_rule(3));
  family.add("constant_pad_nd", einsum_rule(constant_pad_indices));
  family.add({"pixel_shuffle", "pixel_unshuffle"}, moving_rule(3, true, true));
  family.add("im2col", with_shapes(columns_rule(3), im2col_shape));
  family.add("col2im", with_shapes(columns_rule(2), col2im_shape));
  family.add("affine_grid_generator", with_shapes(affine_grid_rule(), affine_grid_shape));
  family.add("affine_grid_generator_backward",
             with_shapes(affine_grid_rule(), affine_grid_backward_shape));
  family.add({"channel_shuffle", "native_channel_shuffle"},
             with_shapes(einsum_rule(channel_shuffle_indices), like_first));
}

}  // namespace trireme::tensor
