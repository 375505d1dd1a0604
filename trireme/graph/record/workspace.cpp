// SPDX-License-Identifier: Apache-2.0
#include <trireme/graph/record/workspace.h>

#include <trireme/tensor/dry_run/interception.h>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/mkldnn_rnn_layer.h>
#include <ATen/ops/zeros.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <array>
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

}  // namespace trireme::graph::detail
