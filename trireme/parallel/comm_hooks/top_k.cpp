// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/comm_hooks/top_k.h>

#include <trireme/base/error.h>
#include <trireme/comm/collectives.h>
#include <trireme/parallel/comm_hooks/plain_sum.h>
#include <trireme/parallel/module/agreement.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/topk.h>

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <limits>
#include <utility>

namespace trireme {

// The exchange of one bucket, between start() and finish().
struct TopKCommHook::Round {
  struct Sent {
    std::string name;
    at::Tensor gradient;   // [elements], in memory order, including what was left over before
    at::Tensor positions;  // [k], positions in `gradient`
  };
  std::vector<Sent> sent;
  at::Tensor memory;
  at::Tensor all_positions, all_values;  // [ranks * sum of k], positions in `memory`
  comm::Work positions_work, values_work;
};

TopKCommHook::TopKCommHook(const TopKOptions& options) : options_(options) {
  if (options.fraction > 0 && options.fraction <= 1) return;
  throw UsageError(join_message("top-k of gradients: fraction ", options.fraction,
                                ", expected one above 0 and at most 1"),
                   "the fraction of a gradient's elements that travel, such as 0.01");
}

std::function<void()> TopKCommHook::start(GradientBucket& bucket, const comm::Group& group) {
  const at::NoGradGuard no_grad;
  if (group.size() == 1) return [] {};
  if (!is_agreed_) {
    detail::check_same_text(
        "options of TopKCommHook",
        join_message("gradients travel as top-k, fraction ", std::setprecision(17),
                     options_.fraction, ", error feedback ", options_.error_feedback),
        group);
    is_agreed_ = true;
  }
  const std::string label = "gradients from " + bucket.names.front() + " on";
  const at::Tensor& memory = bucket.memory;
  if (memory.scalar_type() != at::kFloat && memory.scalar_type() != at::kDouble) {
    return detail::start_plain_sum(memory, group, label);
  }
  auto round = std::make_shared<Round>();
  round->memory = memory;
  std::vector<at::Tensor> positions;
  std::vector<at::Tensor> values;
  for (std::size_t i = 0; i < bucket.gradients.size(); ++i) {
    const at::Tensor gradient = bucket.gradients[i].as_strided({bucket.gradients[i].numel()}, {1});
    if (gradient.numel() == 0) continue;
    if (const auto left = left_over_.find(bucket.names[i]); left != left_over_.end()) {
      if (left->second.numel() != gradient.numel()) {
        throw UsageError(join_message("top-k: the gradient of parameter ", bucket.names[i], " has ",
                                      gradient.numel(), " elements, and had ", left->second.numel(),
                                      " in the step before"),
                         "give each module a hook of its own");
      }
      gradient.add_(left->second);
    }
    const auto elements = static_cast<double>(gradient.numel());
    const auto k = std::max<std::int64_t>(1, std::llround(options_.fraction * elements));
    const at::Tensor largest =
        std::get<1>(at::topk(gradient.abs(), k, /*dim=*/0, /*largest=*/true, /*sorted=*/false));
    values.push_back(gradient.index_select(0, largest));
    positions.push_back(largest.add(gradient.storage_offset() - memory.storage_offset()));
    round->sent.push_back({bucket.names[i], gradient, largest});
  }
  if (values.empty()) return [] {};
  const bool is_short = memory.numel() <= std::numeric_limits<std::int32_t>::max();
  const at::Tensor own_positions = at::cat(positions).to(is_short ? at::kInt : at::kLong);
  const at::Tensor own_values = at::cat(values);
  const std::int64_t total = group.size() * own_values.numel();
  round->all_positions = at::empty({total}, own_positions.options());
  round->all_values = at::empty({total}, own_values.options());
  round->positions_work = comm::all_gather_async(round->all_positions, own_positions, group, label);
  round->values_work = comm::all_gather_async(round->all_values, own_values, group, label);
  return [this, round, group] { finish(*round, group); };
}

void TopKCommHook::finish(Round& round, const comm::Group& group) {
  const at::NoGradGuard no_grad;
  round.positions_work.wait();
  round.values_work.wait();
  // All ranks see the same values, so all ranks decide alike.
  if (options_.error_feedback && at::isfinite(round.all_values).all().item<bool>()) {
    for (const Round::Sent& sent : round.sent) {
      at::Tensor& left = left_over_[sent.name];
      if (!left.defined()) left = at::empty_like(sent.gradient);
      left.copy_(sent.gradient).index_fill_(0, sent.positions, 0);
    }
  }
  round.memory.zero_();
  const std::vector<at::Tensor> positions = round.all_positions.chunk(group.size());
  const std::vector<at::Tensor> values = round.all_values.chunk(group.size());
  for (std::size_t rank = 0; rank < values.size(); ++rank) {
    round.memory.index_add_(0, positions[rank], values[rank]);
  }
}

}  // namespace trireme
