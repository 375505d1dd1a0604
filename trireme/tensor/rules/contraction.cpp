// SPDX-License-Identifier: Apache-2.0
#include <trireme/tensor/rules/contraction.h>

#include <trireme/base/error.h>

#include <algorithm>

namespace trireme::tensor {
namespace {

// Returns the dim of `tensor` that has the index; -1 if it has none or is broadcast along it.
int dim_with(const Term& term, const at::Tensor& tensor, char letter, std::int64_t extent) {
  const std::size_t dim = term.letters.find(letter);
  if (dim == std::string::npos || !tensor.defined()) return -1;
  return tensor.size(static_cast<std::int64_t>(dim)) == extent ? static_cast<int>(dim) : -1;
}

// Returns the strategy that shards one index.
Strategy cut(const Call& call, const Contraction& contraction, char letter) {
  const std::int64_t extent = extent_of(call, contraction, letter);
  Strategy strategy;
  std::vector<bool> has_index;
  for (int i = 0; i < call.num_inputs(); ++i) {
    const Term& term = contraction.inputs[static_cast<std::size_t>(i)];
    const int dim = dim_with(term, call.input(i), letter, extent);
    has_index.push_back(dim >= 0);
    strategy.inputs.push_back(dim >= 0 ? Placement(Shard{dim}) : Placement(Replicate{}));
  }
  bool is_summed = false;
  for (int o = 0; o < call.num_outputs(); ++o) {
    const Term& term = contraction.outputs[static_cast<std::size_t>(o)];
    const int dim = dim_with(term, call.output(o), letter, extent);
    bool is_made_of_cut = false;
    for (int i = 0; i < call.num_inputs(); ++i) {
      const bool is_used = term.made_of.empty() || is_one_of(term.made_of, i);
      is_made_of_cut = is_made_of_cut || (is_used && has_index[static_cast<std::size_t>(i)]);
    }
    if (dim >= 0) {
      strategy.outputs.push_back(Shard{dim});
    } else if (is_made_of_cut) {
      strategy.outputs.push_back(Partial{});
      is_summed = true;
    } else {
      strategy.outputs.push_back(Replicate{});
    }
  }
  for (const int added : contraction.added) {
    if (is_summed) strategy.inputs[static_cast<std::size_t>(added)] = Partial{};
  }
  return strategy;
}

// Returns the strategy in which one linear input is Partial.
Strategy partial_in(const Call& call, const Contraction& contraction, int which) {
  Strategy strategy;
  for (int i = 0; i < call.num_inputs(); ++i) {
    const bool is_partial = i == which || is_one_of(contraction.added, i);
    strategy.inputs.push_back(is_partial ? Placement(Partial{}) : Placement(Replicate{}));
  }
  for (int o = 0; o < call.num_outputs(); ++o) {
    const Term& term = contraction.outputs[static_cast<std::size_t>(o)];
    const bool is_used = term.made_of.empty() || is_one_of(term.made_of, which);
    strategy.outputs.push_back(is_used ? Placement(Partial{}) : Placement(Replicate{}));
  }
  return strategy;
}

}  // namespace

bool is_one_of(const std::vector<int>& list, int value) {
  return std::ranges::find(list, value) != list.end();
}

std::int64_t extent_of(const Call& call, const Contraction& contraction, char letter) {
  std::int64_t extent = 1;
  for (int input = 0; input < call.num_inputs(); ++input) {
    const at::Tensor& tensor = call.input(input);
    const std::size_t dim =
        contraction.inputs[static_cast<std::size_t>(input)].letters.find(letter);
    if (!tensor.defined() || dim == std::string::npos) continue;
    extent = std::max(extent, tensor.size(static_cast<std::int64_t>(dim)));
  }
  return extent;
}

void add_strategies(const Call& call, const Contraction& contraction,
                    std::vector<Strategy>& strategies) {
  TRIREME_CHECK_EQ(static_cast<int>(contraction.inputs.size()), call.num_inputs());
  TRIREME_CHECK_EQ(static_cast<int>(contraction.outputs.size()), call.num_outputs());
  std::string letters;
  for (const Term& term : contraction.inputs) {
    for (const char letter : term.letters) {
      if (letter != '.' && letters.find(letter) == std::string::npos) letters.push_back(letter);
    }
  }
  for (const char letter : letters) strategies.push_back(cut(call, contraction, letter));
  for (const int which : contraction.linear) {
    strategies.push_back(partial_in(call, contraction, which));
  }
}

}  // namespace trireme::tensor
