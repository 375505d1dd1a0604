// SPDX-License-Identifier: Apache-2.0
#include <trireme/comm/differentiable.h>

#include <trireme/base/error.h>
#include <trireme/comm/collective_checks.h>

#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cstdint>
#include <numeric>
#include <vector>

namespace trireme::comm::functional {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

struct Held : torch::CustomClassHolder {
  Held(const Group& its_group, ReduceOp its_op) : group(its_group), op(its_op) {}
  const Group group;
  const ReduceOp op;
};

void hold(AutogradContext& context, const Group& group, ReduceOp op) {
  context.saved_data["held"] = c10::IValue::make_capsule(c10::make_intrusive<Held>(group, op));
}

const Held& held_by(const AutogradContext& context) {
  return static_cast<const Held&>(*context.saved_data.at("held").toCapsule());
}

void check_op(ReduceOp op, const char* operation) {
  if (op == ReduceOp::kSum || op == ReduceOp::kAverage) return;
  throw UsageError(join_message("a differentiable ", operation,
                                " was given a reduction that is "
                                "neither a sum nor an average"),
                   "take ReduceOp::kSum or ReduceOp::kAverage");
}

// An average is computed from a sum, which may be too large for fp16 even if the average is not.
at::Tensor wide_enough(const at::Tensor& input, ReduceOp op) {
  const bool is_short = op == ReduceOp::kAverage && input.scalar_type() == at::kHalf;
  return is_short ? input.to(at::kFloat) : input;
}

at::Tensor average(at::Tensor sum, const Group& group, at::ScalarType type) {
  return sum.div_(group.size()).to(type);
}

// Returns an empty tensor like `like` with `rows` rows.
at::Tensor empty_rows(const at::Tensor& like, std::int64_t rows) {
  std::vector<std::int64_t> sizes = like.sizes().vec();
  sizes.front() = rows;
  return at::empty(sizes, like.options());
}

void check_has_rows(const at::Tensor& input, const char* operation) {
  if (input.defined() && input.dim() > 0) return;
  refuse(input, operation, "one with a first dimension, whose rows are exchanged");
}

void check_is_cut_evenly(const at::Tensor& input, const Group& group, const char* operation) {
  check_has_rows(input, operation);
  if (input.size(0) % group.size() == 0) return;
  throw UsageError(join_message(operation, " over ", group.size(), " ranks was given ",
                                input.size(0), " rows, ", input.sizes()),
                   "give a multiple of the number of ranks");
}

// The backward functions call the differentiable forms, so that gradients are differentiable in
// turn.
struct AllGather : torch::autograd::Function<AllGather> {
  static Variable forward(AutogradContext* context, const Variable& input, const Group& group) {
    hold(*context, group, ReduceOp::kSum);
    const at::Tensor own = input.contiguous();
    at::Tensor output = empty_rows(own, own.size(0) * group.size());
    comm::all_gather(output, own, group, "functional::all_gather");
    return output;
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const Held& held = held_by(*context);
    return {functional::reduce_scatter(gradients.front(), held.group), Variable()};
  }
};

struct ReduceScatter : torch::autograd::Function<ReduceScatter> {
  static Variable forward(AutogradContext* context, const Variable& input, const Group& group,
                          ReduceOp op) {
    hold(*context, group, op);
    const at::Tensor all = wide_enough(input, op).contiguous();
    at::Tensor output = empty_rows(all, all.size(0) / group.size());
    comm::reduce_scatter(output, all, group, ReduceOp::kSum, "functional::reduce_scatter");
    return op == ReduceOp::kAverage ? average(output, group, input.scalar_type()) : output;
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const Held& held = held_by(*context);
    const at::Tensor gathered = functional::all_gather(gradients.front(), held.group);
    return {held.op == ReduceOp::kAverage ? gathered.div(held.group.size()) : gathered, Variable(),
            Variable()};
  }
};

struct AllReduce : torch::autograd::Function<AllReduce> {
  static Variable forward(AutogradContext* context, const Variable& input, const Group& group,
                          ReduceOp op) {
    hold(*context, group, op);
    at::Tensor output = wide_enough(input, op).clone(at::MemoryFormat::Contiguous);
    comm::all_reduce(output, group, ReduceOp::kSum, "functional::all_reduce");
    return op == ReduceOp::kAverage ? average(output, group, input.scalar_type()) : output;
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const Held& held = held_by(*context);
    return {functional::all_reduce(gradients.front(), held.group, held.op), Variable(), Variable()};
  }
};

struct AllToAll : torch::autograd::Function<AllToAll> {
  static Variable forward(AutogradContext* context, const Variable& input, const Group& group) {
    hold(*context, group, ReduceOp::kSum);
    const at::Tensor own = input.contiguous();
    at::Tensor output = at::empty_like(own);
    comm::all_to_all(output, own, group, "functional::all_to_all");
    return output;
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    return {functional::all_to_all(gradients.front(), held_by(*context).group), Variable()};
  }
};

// The message of one pair of ranks is told apart from others by this.
constexpr int kRowsTag = 0x726f;

// Sends the rows of each rank as messages of their own. Returns those that arrive.
at::Tensor exchange_rows(const at::Tensor& rows, const std::vector<std::int64_t>& rows_to,
                         const std::vector<std::int64_t>& rows_from, const Group& group) {
  const at::Tensor result =
      empty_rows(rows, std::accumulate(rows_from.begin(), rows_from.end(), std::int64_t{0}));
  const auto part_of = [](const at::Tensor& all, const std::vector<std::int64_t>& counts,
                          int rank) {
    const auto own = counts.begin() + rank;
    return all.narrow(0, std::accumulate(counts.begin(), own, std::int64_t{0}), *own);
  };
  std::vector<Work> works;
  for (int distance = 1; distance < group.size(); ++distance) {
    const int from = (group.rank() + group.size() - distance) % group.size();
    const int to = (group.rank() + distance) % group.size();
    const at::Tensor received = part_of(result, rows_from, from);
    if (received.numel() > 0) works.push_back(receive_async(received, from, group, kRowsTag));
    const at::Tensor sent = part_of(rows, rows_to, to);
    if (sent.numel() > 0) works.push_back(send_async(sent, to, group, kRowsTag));
  }
  part_of(result, rows_from, group.rank()).copy_(part_of(rows, rows_to, group.rank()));
  for (Work& work : works) work.wait();
  return result;
}

struct RowsToAll : torch::autograd::Function<RowsToAll> {
  static Variable forward(AutogradContext* context, const Variable& input,
                          const std::vector<std::int64_t>& rows_to,
                          const std::vector<std::int64_t>& rows_from, const Group& group) {
    hold(*context, group, ReduceOp::kSum);
    context->saved_data["rows_to"] = rows_to;
    context->saved_data["rows_from"] = rows_from;
    return exchange_rows(input.contiguous(), rows_to, rows_from, group);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto rows = [&](const char* name) { return context->saved_data.at(name).toIntVector(); };
    return {functional::all_to_all(gradients.front(), rows("rows_from"), rows("rows_to"),
                                   held_by(*context).group),
            Variable(), Variable(), Variable()};
  }
};

}  // namespace

at::Tensor all_gather(const at::Tensor& input, const Group& group) {
  check_has_rows(input, "all-gather");
  is_needed(group, "all-gather");
  return AllGather::apply(input, group);
}

at::Tensor reduce_scatter(const at::Tensor& input, const Group& group, ReduceOp op) {
  check_op(op, "reduce-scatter");
  is_needed(group, "reduce-scatter");
  check_is_cut_evenly(input, group, "reduce-scatter");
  return ReduceScatter::apply(input, group, op);
}

at::Tensor all_reduce(const at::Tensor& input, const Group& group, ReduceOp op) {
  check_op(op, "all-reduce");
  is_needed(group, "all-reduce");
  return AllReduce::apply(input, group, op);
}

at::Tensor all_to_all(const at::Tensor& input, const Group& group) {
  is_needed(group, "all-to-all");
  check_is_cut_evenly(input, group, "all-to-all");
  return AllToAll::apply(input, group);
}

at::Tensor all_to_all(const at::Tensor& input, const std::vector<std::int64_t>& rows_to,
                      const std::vector<std::int64_t>& rows_from, const Group& group) {
  is_needed(group, "all-to-all");
  check_has_rows(input, "all-to-all");
  const auto ranks = static_cast<std::size_t>(group.size());
  const auto rank = static_cast<std::size_t>(group.rank());
  const auto sent = std::accumulate(rows_to.begin(), rows_to.end(), std::int64_t{0});
  if (rows_to.size() != ranks || rows_from.size() != ranks || sent != input.size(0) ||
      rows_to[rank] != rows_from[rank]) {
    throw UsageError(
        join_message("all-to-all of ", input.sizes(), " over ", ranks, " ranks was told to send ",
                     c10::IntArrayRef(rows_to), " rows and to receive ",
                     c10::IntArrayRef(rows_from), ", as rank ", rank),
        "give a number of rows for each rank; those sent are all rows of the tensor, and a rank "
        "sends itself what it receives of itself");
  }
  return RowsToAll::apply(input, rows_to, rows_from, group);
}

}  // namespace trireme::comm::functional
