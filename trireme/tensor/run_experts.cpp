// SPDX-License-Identifier: Apache-2.0
#include <trireme/tensor/run_experts.h>

#include <trireme/base/error.h>
#include <trireme/comm/collectives.h>
#include <trireme/comm/differentiable.h>
#include <trireme/tensor/distributed_tensor.h>
#include <trireme/tensor/dry_run/dry_run.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bincount.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace trireme {
namespace {

constexpr auto kLayoutHint =
    "the layouts of expert_layouts() shard dim 0 of all parameters of experts along one axis";

std::int64_t sum_of(const std::vector<std::int64_t>& numbers, const Extent& range) {
  const auto begin = numbers.begin() + range.offset;
  return std::accumulate(begin, begin + range.size, std::int64_t{0});
}

// Returns all sizes but the last.
c10::IntArrayRef leading_sizes(const at::Tensor& tensor) {
  return tensor.sizes().slice(0, static_cast<std::size_t>(tensor.dim() - 1));
}

void check_arguments(const at::Tensor& features, const at::Tensor& chosen,
                     const std::vector<at::Tensor>& parameters) {
  if (chosen.scalar_type() != at::kLong || chosen.dim() < 2 || features.dim() != chosen.dim() ||
      leading_sizes(features) != leading_sizes(chosen)) {
    throw UsageError(
        join_message("run_experts was given features ", features.sizes(), " and chosen experts ",
                     chosen.sizes(), " of ", chosen.scalar_type()),
        "give [rows, …, features] and int64 [rows, …, experts of a token]");
  }
  if (parameters.empty()) {
    throw UsageError("run_experts was given no parameters",
                     "give the stacked parameters of the experts, each [experts, …]");
  }
  for (const at::Tensor& parameter : parameters) {
    const at::Tensor& first = parameters.front();
    const bool is_alike = parameter.dim() > 0 && parameter.size(0) == first.size(0) &&
                          has_layout(parameter) == has_layout(first);
    if (is_alike) continue;
    throw UsageError(join_message("run_experts was given parameters of experts that do not fit: ",
                                  trireme::describe(first), " and ", trireme::describe(parameter)),
                     "give all of them [experts, …], with the same number of experts, and either "
                     "all or none of them distributed");
  }
}

void check_has_values(const at::Tensor& chosen) {
  const auto* const dry_run = tensor::DryRun::of_thread();
  const bool is_dry = dry_run != nullptr && dry_run->mode() == tensor::DryRun::Mode::kInstead;
  if (!is_dry && !chosen.is_meta() && (has_layout(chosen) || chosen.has_storage())) return;
  throw UsageError(
      join_message("run_experts was given chosen experts ", chosen.sizes(),
                   " without values: how many tokens go where follows from them, and a dry run, a "
                   "prediction or a recorded step has none"),
      "give experts a capacity there (MixtureOptions::is_dropless false, and a capacity_factor of "
      "experts / experts_per_token to drop nothing); parallelize() and a Model whose plan has no "
      "axis pipe need no record");
}

// The choices of this rank's tokens, sorted by expert and then by token.
struct SortedChoices {
  at::Tensor order;                  // [choices]: of each place, the number of the choice
  std::vector<std::int64_t> counts;  // of each expert
  std::int64_t lowest = 0;           // the lowest and highest number of an expert
  std::int64_t highest = 0;

  SortedChoices(const at::Tensor& chosen, std::int64_t experts)
      : counts(static_cast<std::size_t>(experts)) {
    const at::Tensor choices = chosen.flatten();
    if (choices.numel() > 0) {
      lowest = choices.min().item<std::int64_t>();
      highest = choices.max().item<std::int64_t>();
    }
    order = choices.argsort(/*stable=*/true, /*dim=*/0, /*descending=*/false);
    if (lowest < 0 || highest >= experts) return;
    const at::Tensor counted = choices.bincount({}, experts).to(at::kCPU);
    std::copy_n(counted.const_data_ptr<std::int64_t>(), experts, counts.begin());
  }
};

void check_numbers(std::int64_t lowest, std::int64_t highest, std::int64_t experts) {
  if (lowest >= 0 && highest < experts) return;
  throw UsageError(join_message("run_experts was given the chosen expert ",
                                lowest < 0 ? lowest : highest, " of ", experts, " experts"),
                   "give numbers from 0 to below the first size of the parameters");
}

// Returns rows[order[i]] at place i.
at::Tensor by_expert(const at::Tensor& rows, const at::Tensor& order) {
  return rows.index_select(0, order);
}

// Undoes by_expert().
at::Tensor as_chosen(const at::Tensor& rows, const at::Tensor& order) {
  const at::Tensor places = at::arange(order.numel(), order.options());
  return rows.index_select(0, at::empty_like(order).scatter_(0, order, places));
}

at::Tensor tokens_of(const at::Tensor& features, const at::Tensor& chosen,
                     const SortedChoices& sorted) {
  const std::int64_t per_token = chosen.size(-1);
  return by_expert(features.flatten(0, -2), sorted.order.floor_divide(per_token));
}

at::Tensor checked(at::Tensor results, const at::Tensor& tokens) {
  if (results.dim() == 2 && results.size(0) == tokens.size(0)) return results;
  throw UsageError(join_message("the function of run_experts made ", results.sizes(), " of tokens ",
                                tokens.sizes()),
                   "return one row for each token");
}

std::vector<std::int64_t> sizes_of_result(const at::Tensor& chosen, std::int64_t features) {
  std::vector<std::int64_t> sizes = chosen.sizes().vec();
  sizes.push_back(features);
  return sizes;
}

// Computes all experts here, for tokens that are here.
at::Tensor run_here(const at::Tensor& features, const at::Tensor& chosen,
                    const std::vector<at::Tensor>& parameters, const ExpertFunction& experts) {
  const std::int64_t num_experts = parameters.front().size(0);
  const SortedChoices sorted(chosen, num_experts);
  check_numbers(sorted.lowest, sorted.highest, num_experts);
  const at::Tensor tokens = tokens_of(features, chosen, sorted);
  const at::Tensor results = checked(experts(tokens, sorted.counts, parameters), tokens);
  return as_chosen(results, sorted.order).view(sizes_of_result(chosen, results.size(1)));
}

// How many tokens travel between this rank and each other.
struct Traffic {
  std::vector<std::int64_t> rows_to;
  std::vector<std::int64_t> rows_from;
  std::vector<std::int64_t> counts;  // of this rank's experts
  // [rows that arrive], as they arrive by rank and then by expert: of each place by expert and then
  // by rank, which row comes there.
  std::vector<std::int64_t> order;
};

Extent experts_of(const comm::Group& group, std::int64_t experts, int rank) {
  return part_of(experts, group.size(), rank);
}

// Collective: tells the other ranks how many tokens of this one chose which expert.
Traffic exchange_counts(const SortedChoices& sorted, const comm::Group& group) {
  const auto experts = static_cast<std::int64_t>(sorted.counts.size());
  const at::Tensor own = at::empty({experts + 2}, at::kLong);
  auto* const numbers = own.mutable_data_ptr<std::int64_t>();
  std::ranges::copy(sorted.counts, numbers);
  numbers[experts] = sorted.lowest;
  numbers[experts + 1] = sorted.highest;
  const at::Tensor all = at::empty({group.size() * (experts + 2)}, at::kLong);
  comm::all_gather(all, own, group, "numbers of tokens of experts");
  std::vector<std::vector<std::int64_t>> counts_of;
  for (int rank = 0; rank < group.size(); ++rank) {
    const auto* const of_rank = all.const_data_ptr<std::int64_t>() + rank * (experts + 2);
    check_numbers(of_rank[experts], of_rank[experts + 1], experts);  // throws on all ranks
    counts_of.emplace_back(of_rank, of_rank + experts);
  }
  Traffic traffic;
  const Extent here = experts_of(group, experts, group.rank());
  std::vector<std::int64_t> begins;  // of the rows that each rank sends
  std::int64_t rows = 0;
  for (int rank = 0; rank < group.size(); ++rank) {
    const auto& counts = counts_of[static_cast<std::size_t>(rank)];
    traffic.rows_to.push_back(sum_of(sorted.counts, experts_of(group, experts, rank)));
    traffic.rows_from.push_back(sum_of(counts, here));
    begins.push_back(rows);
    rows += traffic.rows_from.back();
  }
  for (std::int64_t expert = here.offset; expert < here.offset + here.size; ++expert) {
    std::int64_t& count = traffic.counts.emplace_back(0);
    for (std::size_t rank = 0; rank < counts_of.size(); ++rank) {
      const std::int64_t sent = counts_of[rank][static_cast<std::size_t>(expert)];
      for (std::int64_t row = 0; row < sent; ++row) traffic.order.push_back(begins[rank]++);
      count += sent;
    }
  }
  return traffic;
}

// Returns the results of a rank that has no expert: no rows, with the features and the dtype that
// other ranks have. Part of the graph, because backward is collective, and gives the parameters of
// no expert their gradients.
at::Tensor no_results(const at::Tensor& tokens, const std::vector<at::Tensor>& parameters,
                      const at::Tensor& shape) {
  const auto* const numbers = shape.const_data_ptr<std::int64_t>();
  const auto type = static_cast<at::ScalarType>(numbers[1]);
  at::Tensor nothing = tokens.sum().to(type);
  for (const at::Tensor& parameter : parameters) nothing = nothing + parameter.sum().to(type);
  return at::zeros({0, numbers[0]}, tokens.options().dtype(type)) + nothing;
}

// Computes this rank's experts for the tokens that arrive. Where ranks outnumber experts, ranks
// without any are told what the others made.
at::Tensor run_own(const at::Tensor& tokens, const Traffic& traffic,
                   const std::vector<at::Tensor>& parameters, bool all_have_some,
                   const comm::Group& group, const ExpertFunction& experts) {
  at::Tensor results;
  if (!traffic.counts.empty()) {
    results = checked(experts(tokens, traffic.counts, parameters), tokens);
  }
  if (all_have_some) return results;
  const at::Tensor shape = at::zeros({2}, at::kLong);
  if (results.defined()) {
    shape.mutable_data_ptr<std::int64_t>()[0] = results.size(1);
    shape.mutable_data_ptr<std::int64_t>()[1] = static_cast<std::int64_t>(results.scalar_type());
  }
  comm::all_reduce(shape, group, comm::ReduceOp::kMaximum, "results of experts");
  return results.defined() ? results : no_results(tokens, parameters, shape);
}

// Computes the chosen experts of the tokens that are here, on the ranks of `group`.
at::Tensor run_over(const comm::Group& group, const at::Tensor& features, const at::Tensor& chosen,
                    const std::vector<at::Tensor>& parameters, std::int64_t num_experts,
                    const ExpertFunction& experts) {
  const SortedChoices sorted(chosen, num_experts);
  const Traffic traffic = exchange_counts(sorted, group);
  at::Tensor tokens = tokens_of(features, chosen, sorted);
  // Backward is collective, so that it needs the exchange on all ranks or on none.
  const bool is_trained = std::ranges::any_of(
      parameters, [](const at::Tensor& parameter) { return parameter.requires_grad(); });
  if (at::GradMode::is_enabled() && is_trained && !tokens.requires_grad()) {
    tokens = tokens.detach().requires_grad_();
  }
  const at::Tensor arrived =
      comm::functional::all_to_all(tokens, traffic.rows_to, traffic.rows_from, group);
  const at::Tensor order = at::tensor(traffic.order, at::kLong).to(arrived.device());
  const at::Tensor results = run_own(by_expert(arrived, order), traffic, parameters,
                                     num_experts >= group.size(), group, experts);
  const at::Tensor returned = comm::functional::all_to_all(
      as_chosen(results, order), traffic.rows_from, traffic.rows_to, group);
  return as_chosen(returned, sorted.order).view(sizes_of_result(chosen, returned.size(1)));
}

// Returns the axis along which the first dim of all parameters is sharded; -1 if none shards it.
int axis_of_experts(const std::vector<at::Tensor>& parameters) {
  const auto axis_of = [](const at::Tensor& parameter) {
    const Layout layout = layout_of(parameter);
    const auto axes = layout.axes_of(0);
    if (axes.size() < 2 && !layout.has_flat_shard() && !layout.has_partial()) {
      return axes.empty() ? -1 : axes[0];
    }
    throw UsageError(
        join_message("run_experts was given a parameter of experts ", trireme::describe(parameter)),
        kLayoutHint);
  };
  const int axis = axis_of(parameters.front());
  for (const at::Tensor& parameter : parameters) {
    const bool is_alike = axis_of(parameter) == axis &&
                          layout_of(parameter).mesh() == layout_of(parameters.front()).mesh();
    if (is_alike) continue;
    throw UsageError(
        join_message("run_experts was given parameters of experts that are "
                     "distributed differently: ",
                     trireme::describe(parameters.front()), " and ", trireme::describe(parameter)),
        kLayoutHint);
  }
  return axis;
}

at::Tensor in_layout(const at::Tensor& tensor, const Layout& layout) {
  const at::Tensor distributed =
      has_layout(tensor) ? tensor : distribute(tensor, Layout::replicated(layout.mesh()));
  return to_local(redistribute(distributed, layout));
}

}  // namespace

at::Tensor run_experts(const at::Tensor& features, const at::Tensor& chosen,
                       const std::vector<at::Tensor>& parameters, const ExpertFunction& experts) {
  check_arguments(features, chosen, parameters);
  check_has_values(chosen);
  if (!has_layout(parameters.front())) {
    if (!has_layout(features) && !has_layout(chosen)) {
      return run_here(features, chosen, parameters, experts);
    }
    throw UsageError(
        join_message("run_experts was given plain parameters of experts beside features ",
                     trireme::describe(features)),
        "distribute the module as a whole: parallelize() does, unless plan.layouts keep it whole");
  }
  const int axis = axis_of_experts(parameters);
  const DeviceMesh mesh = layout_of(parameters.front()).mesh();
  const Layout whole = Layout::replicated(mesh);
  const Layout layout = axis < 0 ? whole : whole.with(axis, Shard{0});
  std::vector<at::Tensor> own;
  for (const at::Tensor& parameter : parameters) own.push_back(in_layout(parameter, layout));
  const at::Tensor rows = in_layout(features, layout);
  const at::Tensor choices = in_layout(chosen, layout);
  const at::Tensor results = axis < 0 ? run_here(rows, choices, own, experts)
                                      : run_over(mesh.group(axis), rows, choices, own,
                                                 parameters.front().size(0), experts);
  return from_local(results, layout, sizes_of_result(chosen, results.size(-1)));
}

}  // namespace trireme
