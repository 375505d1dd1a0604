// SPDX-License-Identifier: Apache-2.0
#include <trireme/tensor/rules/network/attention_by_heads.h>

#include <trireme/tensor/axis_links.h>
#include <trireme/tensor/redistribution/redistribution.h>
#include <trireme/tensor/rules/across.h>
#include <trireme/tensor/rules/network/attention_blocks.h>

#include <ATen/TensorOperators.h>

#include <utility>

namespace trireme::tensor {
namespace {

// Returns the layout with heads in place of the sequence along an axis.
Layout by_heads(const Layout& layout, int axis) {
  return layout.with(axis, Shard{static_cast<int>(kHeads)});
}

// The redistributions of several tensors, between shards of the sequence and of heads.
class Moves {
 public:
  explicit Moves(int axis) : axis_(axis) {}

  void add_to_heads(const at::Tensor& tensor, c10::IntArrayRef sizes, const Layout& layout) {
    add(tensor, Redistribution(sizes, tensor.scalar_type(), layout, by_heads(layout, axis_)));
  }
  void add_back(const at::Tensor& tensor, c10::IntArrayRef sizes, const Layout& layout) {
    add(tensor, Redistribution(sizes, tensor.scalar_type(), by_heads(layout, axis_), layout));
  }

  std::vector<at::Tensor> run() const {
    std::vector<const Redistribution*> paths;
    for (const Redistribution& path : paths_) paths.push_back(&path);
    return redistribute_together(paths, tensors_);
  }

 private:
  void add(const at::Tensor& tensor, Redistribution path) {
    tensors_.push_back(tensor);
    paths_.push_back(std::move(path));
  }

  int axis_;
  std::vector<at::Tensor> tensors_;
  std::vector<Redistribution> paths_;
};

// The part of the scores of this rank while it has heads: other axes may shard the queries.
AttentionBlock block_of(c10::IntArrayRef query_sizes, const Layout& query, int axis,
                        std::int64_t num_keys) {
  return {.rows = own_extent(query_sizes, by_heads(query, axis), kSequence),
          .keys = {.offset = 0, .size = num_keys}};
}

// Leaves the heads of this rank in the mask, which has all that the ranks along the axis have.
void cut_mask(AttentionSettings& settings, c10::IntArrayRef query_sizes, const Layout& query,
              int axis) {
  at::Tensor& mask = settings.mask;
  if (!mask.defined() || mask.dim() < 3 || mask.size(-3) == 1) return;
  const Extent own = own_extent(query_sizes, by_heads(query, axis), kHeads);
  const Extent all = own_extent(query_sizes, query, kHeads);
  mask = mask.narrow(-3, own.offset - all.offset, own.size);
}

bool is_backward(const DecidedCall& decided) {
  return decided.kernel == attention_by_heads_backward;
}

}  // namespace

void attention_by_heads(LocalCall& call) {
  AttentionSettings settings = attention_settings(call);
  const int axis = call.input_layout(1).axes_of(kSequence)[0];
  cut_mask(settings, call.input_sizes(0), call.input_layout(0), axis);
  Moves moves(axis);
  for (int i = 0; i < 3; ++i) {
    moves.add_to_heads(call.tensor(i), call.input_sizes(i), call.input_layout(i));
  }
  const std::vector<at::Tensor> inputs = moves.run();
  const AttentionBlock block =
      block_of(call.input_sizes(0), call.input_layout(0), axis, call.input_sizes(1)[kSequence]);
  const BlockResult result = attend(inputs[0], inputs[1], inputs[2], block, settings);
  Moves back(axis);
  back.add_back(result.output, call.output_sizes(0), call.output_layout(0));
  back.add_back(as_saved(result.logsumexp), call.output_sizes(1), call.output_layout(1));
  std::vector<at::Tensor> outputs = back.run();
  call.give({outputs[0], outputs[1]});
}

void attention_by_heads_backward(LocalCall& call) {
  AttentionSettings settings = attention_settings(call);
  const int axis = call.input_layout(2).axes_of(kSequence)[0];
  cut_mask(settings, call.input_sizes(1), call.input_layout(1), axis);
  Moves moves(axis);
  for (int i = 0; i < 6; ++i) {
    moves.add_to_heads(call.tensor(i), call.input_sizes(i), call.input_layout(i));
  }
  const std::vector<at::Tensor> inputs = moves.run();
  const AttentionBlock block =
      block_of(call.input_sizes(1), call.input_layout(1), axis, call.input_sizes(2)[kSequence]);
  const BlockGradients gradients = attend_backward(
      {.grad_output = inputs[0], .query = inputs[1], .output = inputs[4], .logsumexp = inputs[5]},
      inputs[2], inputs[3], block, settings);
  Moves back(axis);
  back.add_back(gradients.query, call.output_sizes(0), call.output_layout(0));
  back.add_back(gradients.key, call.output_sizes(1), call.output_layout(1));
  back.add_back(gradients.value, call.output_sizes(2), call.output_layout(2));
  std::vector<at::Tensor> outputs = back.run();
  call.give({outputs[0], outputs[1], outputs[2]});
}

double heads_seconds(const DeviceMesh& mesh, int axis, double bytes, bool is_backward) {
  const DeviceMesh::State& state = *mesh.state();
  const cluster::LocalCopy copy = copy_along(state, axis, kCopyOfProcessor);
  const auto ranks = static_cast<double>(mesh.size(axis));
  const double tensors = is_backward ? 9 : 5;
  // Each tensor is an all-to-all of its own, with a copy before and after it.
  return seconds_along(state, axis, Collective::kAllToAll, bytes) +
         (tensors - 1) * seconds_along(state, axis, Collective::kAllToAll, 0) +
         2 * tensors * copy.seconds + 2 * bytes / ranks / copy.bytes_per_second;
}

void add_heads_exchanges(const DecidedCall& decided, std::vector<Exchange>& exchanges) {
  const int num_inputs = is_backward(decided) ? 6 : 3;
  const int axis = decided.inputs[is_backward(decided) ? 2 : 1].axes_of(kSequence)[0];
  const std::size_t first = exchanges.size();
  const auto add = [&](const at::Tensor& tensor, const Layout& from, const Layout& to) {
    const Redistribution path(tensor.sizes(), tensor.scalar_type(), from, to);
    for (const RedistributionStep& step : path.steps()) add_step(step, exchanges);
  };
  for (int i = 0; i < num_inputs; ++i) {
    const Layout& layout = decided.inputs[static_cast<std::size_t>(i)];
    add(decided.call.input(i), layout, by_heads(layout, axis));
  }
  for (int i = 0; i < decided.call.num_outputs(); ++i) {
    const Layout& layout = decided.outputs[static_cast<std::size_t>(i)];
    add(decided.call.output(i), by_heads(layout, axis), layout);
  }
  for (std::size_t i = first; i < exchanges.size(); ++i) {
    exchanges[i].reason = "heads in place of the sequence while attention is computed";
  }
}

}  // namespace trireme::tensor
