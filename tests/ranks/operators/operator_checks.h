// SPDX-License-Identifier: Apache-2.0
// Runs functions of tensors with every placement of every input and compares values and gradients
// with one process. A run by ctest's label `fast` gives a dozen combinations of the placements of
// all inputs; with TRIREME_THOROUGH set (label `thorough`) every placement of each input comes in
// some combination with those of the others; with TRIREME_EXHAUSTIVE set (label `slow`), in
// hundreds.
#pragma once

#include <trireme/base/environment.h>
#include <trireme/base/error.h>
#include <trireme/tensor/distributed_tensor.h>

#include <gtest/gtest.h>
#include <tests/ranks/operators/operator_cases.h>
#include <tests/ranks/thread_ranks.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <exception>
#include <stdexcept>
#include <string>
#include <vector>

namespace trireme::test {

/// What a run goes through.
struct Reach {
  std::vector<std::vector<MeshAxis>> meshes;
  std::size_t combinations;  ///< of the placements of a case's inputs on one mesh, about
  bool has_every_partial;    ///< averages, maxima, minima and products beside sums
};

inline Reach fast_reach() {
  return {.meshes = {{{"tensor", 3}}, {{"data", 2}, {"tensor", 2}}},
          .combinations = 12,
          .has_every_partial = false};
}

inline Reach thorough_reach() {
  Reach reach = fast_reach();
  reach.combinations = 40;
  return reach;
}

/// The mesh of seven leaves ranks without elements in most cases. That of two has no placement that
/// one of two axes has not.
inline Reach exhaustive_reach() {
  Reach reach = fast_reach();
  reach.meshes.push_back({{"tensor", 2}});
  reach.meshes.push_back({{"tensor", 7}});
  reach.combinations = 300;
  reach.has_every_partial = true;
  return reach;
}

inline bool is_exhaustive() {
  static const bool is_set = Environment::of_process().has("TRIREME_EXHAUSTIVE");
  return is_set;
}

/// Exhaustive runs are thorough too.
inline bool is_thorough() {
  static const bool is_set = Environment::of_process().has("TRIREME_THOROUGH");
  return is_set || is_exhaustive();
}

inline Reach reach_of_run() {
  if (is_exhaustive()) return exhaustive_reach();
  return is_thorough() ? thorough_reach() : fast_reach();
}

/// This rank's part of a partial result along one axis that makes `value`: parts of all ranks
/// differ, and no part is the value itself where the operation allows.
inline torch::Tensor part_of_partial(const torch::Tensor& value, PartialOp op, std::int64_t ranks,
                                     std::int64_t rank) {
  const bool is_last = rank + 1 == ranks;
  const auto own = static_cast<double>(rank + 1);
  const double of_others = static_cast<double>(ranks * (ranks - 1)) / 2;
  switch (op) {
    case PartialOp::kSum:
      return is_last ? value - of_others : torch::full_like(value, own);
    case PartialOp::kAverage:
      return is_last ? value - of_others : value + own;
    case PartialOp::kMaximum:
      return is_last ? value.clone() : value - own;
    case PartialOp::kMinimum:
      return is_last ? value.clone() : value + own;
    case PartialOp::kProduct:
      return is_last ? value / std::exp2(static_cast<double>(ranks - 1))
                     : torch::full_like(value, 2);
  }
  throw std::invalid_argument("no such PartialOp");
}

/// Distributes like trireme::distribute, but partial results are spread over all ranks.
inline torch::Tensor spread(const torch::Tensor& plain, const Layout& layout) {
  Layout whole = layout;
  for (int axis = 0; axis < layout.mesh().num_axes(); ++axis) {
    if (layout[axis].is_partial()) whole = whole.with(axis, Replicate{});
  }
  const auto tensor = distribute(plain, whole);
  auto local = to_local(tensor).clone();
  for (int axis = 0; axis < layout.mesh().num_axes(); ++axis) {
    if (!layout[axis].is_partial()) continue;
    local = part_of_partial(local, layout[axis].op(), layout.mesh().size(axis),
                            layout.mesh().coordinate(axis));
  }
  return from_local(local, layout, plain.sizes());
}

/// All ways to choose one of `single` for every axis.
inline std::vector<std::vector<Placement>> on_all_axes(const std::vector<Placement>& single,
                                                       int num_axes) {
  std::vector<std::vector<Placement>> all = {{}};
  for (int axis = 0; axis < num_axes; ++axis) {
    std::vector<std::vector<Placement>> longer;
    for (const auto& prefix : all) {
      for (const Placement& placement : single) {
        longer.push_back(prefix);
        longer.back().push_back(placement);
      }
    }
    all = std::move(longer);
  }
  return all;
}

/// All placements of a tensor on a mesh. Partial results of two kinds are not mixed.
inline std::vector<std::vector<Placement>> all_placements(const torch::Tensor& tensor, int num_axes,
                                                          const std::vector<PartialOp>& partials) {
  std::vector<Placement> single = {Replicate{}};
  for (int dim = 0; dim < static_cast<int>(tensor.dim()); ++dim) single.emplace_back(Shard{dim});
  std::vector<std::vector<Placement>> all = on_all_axes(single, num_axes);
  if (!tensor.is_floating_point()) return all;
  for (const PartialOp op : partials) {
    std::vector<Placement> with_partial = single;
    with_partial.emplace_back(Partial{op});
    for (auto& placements : on_all_axes(with_partial, num_axes)) {
      const bool has_partial =
          std::ranges::any_of(placements, [](const Placement& p) { return p.is_partial(); });
      if (has_partial) all.push_back(std::move(placements));
    }
  }
  return all;
}

/// The values of one process, and the gradients where each of them is given a fixed one.
struct Expected {
  Tensors values;
  Tensors gradients;  ///< undefined where there is none
};

/// The gradient given to a result.
inline torch::Tensor weights_of(const torch::Tensor& value) {
  return sample(value.sizes(), value.scalar_type());
}

inline torch::Tensor weighted_sum(const Tensors& values) {
  torch::Tensor total;
  for (const torch::Tensor& value : values) {
    if (!value.defined() || !value.requires_grad()) continue;
    const auto term = (value * weights_of(value)).sum();
    total = total.defined() ? total + term : term;
  }
  return total;
}

/// @param weigh gives the gradient of the result of that index.
inline Expected run_case(const OperatorCase& one_case, const Tensors& inputs,
                         const std::function<torch::Tensor(std::size_t)>& weigh) {
  Expected result;
  result.values = one_case.function(inputs);
  result.gradients.resize(inputs.size());
  Tensors roots;
  Tensors weights;
  for (std::size_t i = 0; i < result.values.size(); ++i) {
    const torch::Tensor& value = result.values[i];
    if (!one_case.has_gradient || !value.defined() || !value.requires_grad()) continue;
    roots.push_back(value);
    weights.push_back(weigh(i));
  }
  if (!roots.empty()) torch::autograd::backward(roots, weights);
  for (std::size_t i = 0; i < inputs.size(); ++i) result.gradients[i] = inputs[i].grad();
  return result;
}

inline Expected run_plain(const OperatorCase& one_case, const Tensors& inputs) {
  // What the results are says what gradients fit them.
  const Tensors values = one_case.function(inputs);
  return run_case(one_case, inputs, [&](std::size_t i) { return weights_of(values[i]); });
}

/// What is wrong with a result; empty where nothing is. Collective.
inline std::string difference(const torch::Tensor& got, const torch::Tensor& expected,
                              double bound) {
  if (got.defined() != expected.defined()) {
    return got.defined() ? "is defined, and should not be" : "is not defined, and should be";
  }
  if (!got.defined()) return "";
  const auto whole = full(got);
  if (whole.sizes() != expected.sizes() || got.sizes() != expected.sizes()) {
    return join_message("has the sizes ", got.sizes(), " and makes ", whole.sizes(), " instead of ",
                        expected.sizes());
  }
  if (whole.scalar_type() != expected.scalar_type()) {
    return join_message("is of ", whole.scalar_type(), " instead of ", expected.scalar_type());
  }
  const bool is_equal = expected.is_floating_point() && bound > 0
                            ? torch::allclose(whole, expected, bound, bound, /*equal_nan=*/true)
                            : torch::equal(whole, expected);
  if (is_equal) return "";
  return join_message("is\n", whole, "\ninstead of\n", expected);
}

inline void expect_close(const torch::Tensor& got, const torch::Tensor& expected, double bound,
                         const std::string& what) {
  EXPECT_EQ(difference(got, expected, bound), "") << what;
}

/// A step through the combinations that tries about as many as asked for: odd and no multiple of 3,
/// 5 or 7, so that what is checked goes through the placements of every input.
inline std::size_t step_through(std::size_t num_combinations, std::size_t wanted) {
  std::size_t step = std::max<std::size_t>(num_combinations / wanted, 1);
  while (step > 1 && (step % 2 == 0 || step % 3 == 0 || step % 5 == 0 || step % 7 == 0)) ++step;
  return step;
}

/// Throws for what differs, naming which result it is.
inline void compare(const Expected& got, const Expected& expected, double bound) {
  if (got.values.size() != expected.values.size()) {
    throw std::runtime_error(
        join_message("gave ", got.values.size(), " results instead of ", expected.values.size()));
  }
  const auto refuse = [](const char* what, std::size_t index, const std::string& text) {
    if (!text.empty()) throw std::runtime_error(join_message(what, index, " ", text));
  };
  for (std::size_t i = 0; i < got.values.size(); ++i) {
    refuse("result ", i, difference(got.values[i].detach(), expected.values[i].detach(), bound));
  }
  for (std::size_t i = 0; i < got.gradients.size(); ++i) {
    refuse("gradient of input ", i, difference(got.gradients[i], expected.gradients[i], bound));
  }
}

/// Placements of the inputs of a case and of the gradients of its results.
struct Choices {
  std::vector<std::vector<std::vector<Placement>>> of_tensors;
  std::size_t num_combinations = 1;

  void add(std::vector<std::vector<Placement>> placements) {
    num_combinations *= placements.size();
    of_tensors.push_back(std::move(placements));
  }

  /// The layouts of combination `number`.
  std::vector<Layout> layouts(const DeviceMesh& mesh, std::size_t number) const {
    std::vector<Layout> chosen;
    for (const auto& choices : of_tensors) {
      chosen.emplace_back(mesh, choices[number % choices.size()]);
      number /= choices.size();
    }
    return chosen;
  }
};

inline std::vector<PartialOp> partials_of(const OperatorCase& one_case, const Reach& reach) {
  if (!one_case.takes_partial) return {};
  if (!reach.has_every_partial) return {PartialOp::kSum};
  return {PartialOp::kSum, PartialOp::kAverage, PartialOp::kMaximum, PartialOp::kMinimum,
          PartialOp::kProduct};
}

/// Checks the placements of every input, and of the gradient of every result, on that mesh; each
/// rank calls it. Throws for the first combination that goes wrong, naming it.
inline void check_placements(const OperatorCase& one_case, const DeviceMesh& mesh,
                             const Reach& reach) {
  const std::vector<PartialOp> partials = partials_of(one_case, reach);
  Tensors plain;
  Choices choices;
  for (const torch::Tensor& input : one_case.inputs) {
    const bool wants = one_case.has_gradient && input.is_floating_point();
    plain.push_back(input.detach().clone().requires_grad_(wants));
    choices.add(all_placements(input, mesh.num_axes(), partials));
  }
  const Expected expected = run_plain(one_case, plain);
  std::vector<std::size_t> layout_of_weights(expected.values.size());
  for (std::size_t i = 0; i < expected.values.size(); ++i) {
    layout_of_weights[i] = choices.of_tensors.size();
    const torch::Tensor& value = expected.values[i];
    if (!value.defined() || !value.requires_grad()) continue;
    choices.add(one_case.cuts_gradients ? all_placements(value, mesh.num_axes(), partials)
                                        : on_all_axes({Replicate{}}, mesh.num_axes()));
  }
  const std::size_t step = step_through(choices.num_combinations, reach.combinations);
  for (std::size_t number = 0; number < choices.num_combinations; number += step) {
    const std::vector<Layout> layouts = choices.layouts(mesh, number);
    Tensors inputs;
    for (std::size_t i = 0; i < plain.size(); ++i) {
      inputs.push_back(
          spread(plain[i].detach(), layouts[i]).requires_grad_(plain[i].requires_grad()));
    }
    try {
      const auto weigh = [&](std::size_t i) {
        return spread(weights_of(expected.values[i].detach()), layouts[layout_of_weights[i]]);
      };
      compare(run_case(one_case, inputs, weigh), expected, one_case.bound);
    } catch (const std::exception& error) {
      std::string what = one_case.name;
      for (std::size_t i = 0; i < layouts.size(); ++i) {
        what += (i == plain.size() ? ", gradients " : " ") + layouts[i].to_string();
      }
      throw std::runtime_error(join_message(what, ": ", error.what()));
    }
  }
}

/// What goes wrong with cases on each of the meshes, by rank; empty where nothing does. A rank that
/// finds something leaves, and the others then fail at their next collective.
inline std::string failures_of(const std::vector<OperatorCase>& cases, const Reach& reach) {
  std::string failures;
  for (const std::vector<MeshAxis>& axes : reach.meshes) {
    std::int64_t ranks = 1;
    for (const MeshAxis& axis : axes) ranks *= axis.size;
    const auto thrown =
        testing::run_ranks_catching(static_cast<int>(ranks), [&](const comm::Group& group) {
          const DeviceMesh mesh(group, axes);
          for (const OperatorCase& one_case : cases) check_placements(one_case, mesh, reach);
        });
    for (std::size_t rank = 0; rank < thrown.size(); ++rank) {
      if (!thrown[rank]) continue;
      failures += join_message("rank ", rank, " of ", ranks, ": ",
                               testing::message_of<std::runtime_error>(thrown[rank]), "\n");
    }
  }
  return failures;
}

/// Checks cases on meshes of 3 and 2x2 ranks, and as far as this run reaches.
inline void check_operators(const std::vector<OperatorCase>& cases) {
  EXPECT_EQ(failures_of(cases, reach_of_run()), "");
}

/// The case in single precision, in which LibTorch has kernels of its own: oneDNN's of recurrent
/// layers and convolutions, vectorised norms.
inline OperatorCase in_single_precision(OperatorCase one_case) {
  one_case.name += " in single precision";
  for (torch::Tensor& input : one_case.inputs) {
    if (input.scalar_type() == torch::kDouble) input = input.to(torch::kFloat);
  }
  one_case.bound = std::max(one_case.bound, 2e-4);
  return one_case;
}

/// check_operators, in double and in single precision.
inline void check_in_both_precisions(const std::vector<OperatorCase>& cases) {
  check_operators(cases);
  std::vector<OperatorCase> single;
  for (const OperatorCase& one_case : cases) single.push_back(in_single_precision(one_case));
  check_operators(single);
}

}  // namespace trireme::test
