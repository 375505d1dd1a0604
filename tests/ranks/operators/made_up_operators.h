// SPDX-License-Identifier: Apache-2.0
// Operators of the tests' own with right rules: what the test of the checker then spoils.
#pragma once

#include <trireme/tensor/rules/across.h>
#include <trireme/tensor/rules/rule_table.h>
#include <trireme/tensor/rules/sizes.h>

#include <torch/library.h>
#include <torch/torch.h>

#include <cstdint>
#include <limits>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace trireme::test::made_up {

using tensor::AxisCall;
using tensor::Call;
using tensor::LocalCall;
using tensor::Rule;
using tensor::Strategy;
using Strategies = std::vector<Strategy>;
using Shapes = std::vector<at::Tensor>;

// What the operators do on plain tensors.

inline at::Tensor row_sums(const at::Tensor& x) { return x.sum(1); }
inline at::Tensor row_means(const at::Tensor& x) { return x.mean(1); }
inline at::Tensor row_maxima(const at::Tensor& x) { return x.amax(1); }
inline std::tuple<at::Tensor, at::Tensor> row_extremes(const at::Tensor& x) {
  return {x.amax(1), x.amin(1)};
}
inline at::Tensor swapped(const at::Tensor& x) { return x.t().clone(); }
inline at::Tensor upside_down(const at::Tensor& x) { return x.flip(0); }
inline at::Tensor scaled(const at::Tensor& x, const at::Tensor& y) { return x * y.abs(); }
inline at::Tensor reshaped(const at::Tensor& x, at::IntArrayRef sizes) {
  return x.reshape(sizes).clone();
}
inline at::Tensor length(const at::Tensor& x) { return x.square().sum().sqrt(); }
inline at::Tensor numbered(const at::Tensor& x) {
  return x + torch::arange(x.size(0), x.options()).unsqueeze(1);
}
inline at::Tensor sum_of_powers(const at::Tensor& x, double p) { return x.pow(p).sum(); }
inline at::Tensor& square_in_place(at::Tensor& x) { return x.mul_(x.clone()); }
inline at::Tensor cubes(const at::Tensor& x) { return x * x * x; }
inline at::Tensor cubes_backward(const at::Tensor& grad, const at::Tensor& x) {
  return grad * x * x * 3;
}

template <typename Signature>
auto& typed(const char* name) {
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow(name, "").template typed<Signature>();
  return op;
}

// With a gradient.
struct Cubes : torch::autograd::Function<Cubes> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x) {
    context->save_for_backward({x});
    const at::AutoDispatchBelowADInplaceOrView below;
    return typed<at::Tensor(const at::Tensor&)>("made_up::cubes").call(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& grads) {
    const at::Tensor x = context->get_saved_variables()[0];
    return {typed<at::Tensor(const at::Tensor&, const at::Tensor&)>("made_up::cubes_backward")
                .call(grads[0], x)};
  }
};

// NOLINTBEGIN(cert-err58-cpp, misc-use-internal-linkage): LibTorch's macros
TORCH_LIBRARY(made_up, library) {
  library.def("row_sums(Tensor x) -> Tensor");
  library.def("row_means(Tensor x) -> Tensor");
  library.def("row_maxima(Tensor x) -> Tensor");
  library.def("row_extremes(Tensor x) -> (Tensor, Tensor)");
  library.def("swapped(Tensor x) -> Tensor");
  library.def("upside_down(Tensor x) -> Tensor");
  library.def("scaled(Tensor x, Tensor y) -> Tensor");
  library.def("reshaped(Tensor x, int[] sizes) -> Tensor");
  library.def("length(Tensor x) -> Tensor");
  library.def("numbered(Tensor x) -> Tensor");
  library.def("sum_of_powers(Tensor x, float p) -> Tensor");
  library.def("forgetful_sum_of_powers(Tensor x, float p) -> Tensor");
  library.def("square_(Tensor(a!) x) -> Tensor(a!)");
  library.def("cubes(Tensor x) -> Tensor");
  library.def("cubes_backward(Tensor grad, Tensor x) -> Tensor");
}

TORCH_LIBRARY_IMPL(made_up, CPU, library) {
  library.impl("row_sums", &row_sums);
  library.impl("row_means", &row_means);
  library.impl("row_maxima", &row_maxima);
  library.impl("row_extremes", &row_extremes);
  library.impl("swapped", &swapped);
  library.impl("upside_down", &upside_down);
  library.impl("scaled", &scaled);
  library.impl("reshaped", &reshaped);
  library.impl("length", &length);
  library.impl("numbered", &numbered);
  library.impl("sum_of_powers", &sum_of_powers);
  library.impl("forgetful_sum_of_powers", &sum_of_powers);
  library.impl("square_", &square_in_place);
  library.impl("cubes", &cubes);
  library.impl("cubes_backward", &cubes_backward);
}

TORCH_LIBRARY_IMPL(made_up, Autograd, library) {
  library.impl("cubes", [](const at::Tensor& x) { return Cubes::apply(x); });
}
// NOLINTEND(cert-err58-cpp, misc-use-internal-linkage)

// Pieces of rules.

inline Strategy strategy(std::initializer_list<Placement> inputs,
                         std::initializer_list<Placement> outputs,
                         tensor::LocalKernel kernel = nullptr) {
  return {.inputs = inputs, .outputs = outputs, .kernel = kernel};
}

inline Rule rule(Strategies strategies, std::function<Shapes(const Call&)> shapes) {
  return {.strategies = [list = std::move(strategies)](
                            const AxisCall&,
                            Strategies& all) { all.insert(all.end(), list.begin(), list.end()); },
          .shapes = std::move(shapes)};
}

/// The rule with strategies that come before its own, so that they win where both cost nothing.
inline Rule preferring(Rule right, const Strategies& wrong) {
  right.strategies = [wrong, own = right.strategies](const AxisCall& axis, Strategies& all) {
    all.insert(all.end(), wrong.begin(), wrong.end());
    own(axis, all);
  };
  return right;
}

inline Shapes like_input(const Call& call) { return {call.input(0)}; }
inline Shapes one_a_row(const Call& call) {
  return {call.input(0).new_empty({call.input(0).size(0)})};
}
inline Shapes two_a_row(const Call& call) { return {one_a_row(call)[0], one_a_row(call)[0]}; }
inline Shapes number(const Call& call) { return {call.input(0).new_empty({})}; }

// Kernels.

/// Of nothing the largest is minus infinity.
inline void row_maxima_of_part(LocalCall& call) {
  const at::Tensor part = call.tensor(0);
  call.give({part.size(1) > 0 ? part.amax(1)
                              : at::full({part.size(0)}, -std::numeric_limits<double>::infinity(),
                                         part.options())});
}

inline void length_across(LocalCall& call) {
  const Layout& layout = call.input_layout(0);
  const at::Tensor own = call.tensor(0).square().sum();
  call.give(
      {tensor::reduced_across(own, layout.mesh(), tensor::axes_that_cut(layout, {0, 1})).sqrt()});
}

/// Rows are numbered from `offset` on.
inline void give_numbered(LocalCall& call, std::int64_t offset) {
  const at::Tensor part = call.tensor(0);
  const auto numbers = torch::arange(offset, offset + part.size(0), part.options());
  call.give({part + numbers.unsqueeze(1)});
}

inline std::int64_t first_row(LocalCall& call) {
  const Layout& layout = call.input_layout(0);
  return local_extents(call.input_sizes(0), layout, layout.mesh().coordinate())[0].offset;
}

inline void numbered_from_offset(LocalCall& call) { give_numbered(call, first_row(call)); }

inline void sizes_of_part(const Call& call, c10::ArrayRef<Layout> outputs,
                          c10::IntArrayRef coordinate,
                          std::vector<std::pair<int, c10::IValue>>& replaced) {
  const auto sizes = local_sizes(call.output(0).sizes(), outputs[0], coordinate);
  replaced.emplace_back(1, tensor::as_list(sizes));
}

// Right rules.

inline Rule right_rule(const std::string& name) {
  const Placement rows = Shard{0};
  const Placement columns = Shard{1};
  const Placement whole = Replicate{};
  const Placement sum = Partial{};
  if (name == "row_sums") {
    return rule({strategy({rows}, {rows}), strategy({columns}, {sum}), strategy({sum}, {sum})},
                one_a_row);
  }
  if (name == "row_means")
    return rule({strategy({rows}, {rows}), strategy({sum}, {sum})}, one_a_row);
  if (name == "row_maxima") {
    return rule({strategy({rows}, {rows}),
                 strategy({columns}, {Partial{PartialOp::kMaximum}}, row_maxima_of_part)},
                one_a_row);
  }
  if (name == "row_extremes") {
    return rule({strategy({rows}, {rows, rows})}, two_a_row);
  }
  if (name == "swapped") {
    return rule({strategy({rows}, {columns}), strategy({columns}, {rows}), strategy({sum}, {sum})},
                [](const Call& call) { return Shapes{call.input(0).t()}; });
  }
  if (name == "upside_down") {
    return rule({strategy({columns}, {columns}), strategy({sum}, {sum})}, like_input);
  }
  if (name == "scaled") {
    return rule({strategy({rows, rows}, {rows}), strategy({columns, columns}, {columns}),
                 strategy({sum, whole}, {sum})},
                like_input);
  }
  if (name == "reshaped") {
    Rule made = rule({strategy({rows}, {rows}), strategy({sum}, {sum})}, [](const Call& call) {
      return Shapes{call.input(0).new_empty(call.integers(1))};
    });
    made.local_arguments = sizes_of_part;
    return made;
  }
  if (name == "length") {
    return rule(
        {strategy({rows}, {whole}, length_across), strategy({columns}, {whole}, length_across)},
        number);
  }
  if (name == "numbered") {
    return rule({strategy({rows}, {rows}, numbered_from_offset), strategy({columns}, {columns})},
                like_input);
  }
  if (name == "sum_of_powers" || name == "forgetful_sum_of_powers") {
    Rule made = rule({strategy({rows}, {sum}), strategy({columns}, {sum})}, number);
    made.strategies = [sum, own = made.strategies](const AxisCall& axis, Strategies& all) {
      own(axis, all);
      const bool is_linear = axis.call.argument(1).toDouble() == 1;
      if (is_linear) all.push_back(strategy({sum}, {sum}));
    };
    made.scalars_matter = name == "sum_of_powers";
    return made;
  }
  if (name == "cubes_backward") {
    return rule({strategy({rows, rows}, {rows}), strategy({columns, columns}, {columns}),
                 strategy({sum, whole}, {sum})},
                like_input);
  }
  // square_ and cubes: element by element.
  return rule({strategy({rows}, {rows}), strategy({columns}, {columns})}, like_input);
}

inline void give_right_rules() {
  for (const char* name :
       {"row_sums", "row_means", "row_maxima", "row_extremes", "swapped", "upside_down", "scaled",
        "reshaped", "length", "numbered", "sum_of_powers", "forgetful_sum_of_powers", "square_",
        "cubes", "cubes_backward"}) {
    tensor::add_rule("made_up::" + std::string(name), right_rule(name));
  }
}

}  // namespace trireme::test::made_up
