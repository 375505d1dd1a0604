// SPDX-License-Identifier: Apache-2.0
// Runs a function of tensors with every placement of every input and compares values and gradients
// with one process.
#pragma once

#include <trireme/base/error.h>
#include <trireme/tensor/distributed_tensor.h>

#include <gtest/gtest.h>
#include <tests/ranks/thread_ranks.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

namespace trireme::test {

using Tensors = std::vector<torch::Tensor>;

/// One function to check. `inputs` are double precision where gradients are wanted.
struct OperatorCase {
  std::string name;
  std::function<Tensors(const Tensors&)> function;
  Tensors inputs;
  bool has_gradient = true;   ///< of the floating-point inputs
  bool takes_partial = true;  ///< give inputs as partial sums too
  double bound = 1e-11;       ///< relative and absolute
};

/// A case with one result.
inline OperatorCase one(std::string name,
                        const std::function<torch::Tensor(const Tensors&)>& function,
                        Tensors inputs) {
  return {.name = std::move(name),
          .function = [function](const Tensors& in) { return Tensors{function(in)}; },
          .inputs = std::move(inputs)};
}

/// Values that differ, of both signs, with exact sums in double precision.
inline torch::Tensor sample(torch::IntArrayRef sizes, torch::ScalarType dtype = torch::kDouble) {
  std::int64_t count = 1;
  for (const std::int64_t size : sizes) count *= size;
  const auto numbers = torch::arange(count, torch::kLong);
  return ((numbers * 37 + 11).remainder(64) - 29)
      .to(dtype)
      .div(dtype == torch::kLong ? 1 : 16)
      .to(dtype)
      .reshape(sizes);
}

/// Distributes like trireme::distribute, but partial sums are spread over all ranks.
inline torch::Tensor spread(const torch::Tensor& plain, const Layout& layout) {
  Layout whole = layout;
  for (int axis = 0; axis < layout.mesh().num_axes(); ++axis) {
    if (layout[axis].is_partial(PartialOp::kSum)) whole = whole.with(axis, Replicate{});
  }
  const auto tensor = distribute(plain, whole);
  auto local = to_local(tensor).clone();
  for (int axis = 0; axis < layout.mesh().num_axes(); ++axis) {
    if (!layout[axis].is_partial(PartialOp::kSum)) continue;
    // Rank r but the last adds r + 1, the last takes all of that away.
    const std::int64_t ranks = layout.mesh().size(axis);
    const std::int64_t rank = layout.mesh().coordinate(axis);
    const double added = rank + 1 < ranks ? static_cast<double>(rank + 1)
                                          : -static_cast<double>(ranks * (ranks - 1)) / 2;
    local = rank + 1 < ranks ? torch::full_like(local, added) : local + added;
  }
  return from_local(local, layout, plain.sizes());
}

/// All placements of a tensor on a mesh.
inline std::vector<std::vector<Placement>> all_placements(const torch::Tensor& tensor, int num_axes,
                                                          bool takes_partial) {
  std::vector<Placement> single = {Replicate{}};
  for (int dim = 0; dim < static_cast<int>(tensor.dim()); ++dim) single.emplace_back(Shard{dim});
  if (takes_partial && tensor.is_floating_point()) single.emplace_back(Partial{});
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

/// The values of one process, and the gradients of a weighted sum of them.
struct Expected {
  Tensors values;
  Tensors gradients;  ///< undefined where there is none
};

inline torch::Tensor weighted_sum(const Tensors& values) {
  torch::Tensor total;
  for (const torch::Tensor& value : values) {
    if (!value.defined() || !value.requires_grad()) continue;
    const auto weights = sample(value.sizes(), value.scalar_type());
    const auto term = (value * weights).sum();
    total = total.defined() ? total + term : term;
  }
  return total;
}

inline Expected run_case(const OperatorCase& one_case, const Tensors& inputs) {
  Expected result;
  result.values = one_case.function(inputs);
  result.gradients.resize(inputs.size());
  if (!one_case.has_gradient) return result;
  const auto total = weighted_sum(result.values);
  if (!total.defined()) return result;
  total.backward();
  for (std::size_t i = 0; i < inputs.size(); ++i) result.gradients[i] = inputs[i].grad();
  return result;
}

inline void expect_close(const torch::Tensor& got, const torch::Tensor& expected, double bound,
                         const std::string& what) {
  ASSERT_EQ(got.defined(), expected.defined()) << what;
  if (!got.defined()) return;
  const auto whole = full(got);
  ASSERT_EQ(whole.sizes(), expected.sizes()) << what;
  ASSERT_EQ(whole.scalar_type(), expected.scalar_type()) << what;
  const bool is_equal = expected.is_floating_point()
                            ? torch::allclose(whole, expected, bound, bound, /*equal_nan=*/true)
                            : torch::equal(whole, expected);
  EXPECT_TRUE(is_equal) << what << "\ngot " << whole << "\nexpected " << expected;
}

/// The step that checks some 500 of more combinations: odd and no multiple of 3, 5 or 7, so that
/// what is checked goes through the placements of every input.
inline std::size_t step_through(std::size_t num_combinations) {
  std::size_t step = std::max<std::size_t>(num_combinations / 500, 1);
  while (step > 1 && (step % 2 == 0 || step % 3 == 0 || step % 5 == 0 || step % 7 == 0)) ++step;
  return step;
}

/// Checks every placement of every input on that mesh; each rank calls it.
inline void check_placements(const OperatorCase& one_case, const DeviceMesh& mesh) {
  Tensors plain;
  for (const torch::Tensor& input : one_case.inputs) {
    const bool wants = one_case.has_gradient && input.is_floating_point();
    plain.push_back(input.detach().clone().requires_grad_(wants));
  }
  const Expected expected = run_case(one_case, plain);
  std::vector<std::vector<std::vector<Placement>>> choices;
  std::size_t num_combinations = 1;
  for (const torch::Tensor& input : plain) {
    choices.push_back(all_placements(input, mesh.num_axes(), one_case.takes_partial));
    num_combinations *= choices.back().size();
  }
  const std::size_t step = step_through(num_combinations);
  for (std::size_t number = 0; number < num_combinations; number += step) {
    std::size_t rest = number;
    Tensors inputs;
    std::string what = one_case.name;
    for (std::size_t i = 0; i < plain.size(); ++i) {
      const Layout layout(mesh, choices[i][rest % choices[i].size()]);
      rest /= choices[i].size();
      what = join_message(what, " ", layout.to_string());
      inputs.push_back(spread(plain[i].detach(), layout).requires_grad_(plain[i].requires_grad()));
    }
    Expected got;
    try {
      got = run_case(one_case, inputs);
    } catch (const std::exception& error) {
      throw std::runtime_error(join_message(what, ": ", error.what()));
    }
    ASSERT_EQ(got.values.size(), expected.values.size()) << what;
    for (std::size_t i = 0; i < got.values.size(); ++i) {
      expect_close(got.values[i].detach(), expected.values[i].detach(), one_case.bound, what);
    }
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      expect_close(got.gradients[i], expected.gradients[i], one_case.bound,
                   join_message(what, ", gradient of input ", i));
    }
    if (::testing::Test::HasFailure()) return;
  }
}

/// Checks cases on meshes of 2, 3 and 2x2 ranks.
inline void check_operators(const std::vector<OperatorCase>& cases) {
  for (const int ranks : {2, 3, 4}) {
    testing::run_ranks(ranks, [&](const comm::Group& group) {
      const DeviceMesh mesh = ranks == 4 ? DeviceMesh(group, {{"data", 2}, {"tensor", 2}})
                                         : DeviceMesh(group, {{"tensor", ranks}});
      for (const OperatorCase& one_case : cases) check_placements(one_case, mesh);
    });
  }
}

}  // namespace trireme::test
