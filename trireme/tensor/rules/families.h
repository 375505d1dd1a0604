// SPDX-License-Identifier: Apache-2.0
// Trireme's own rules: one function for each family of operators, in a file of its own.
#pragma once

#include <trireme/tensor/rules/rule.h>

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trireme::tensor {

using NamedRules = std::vector<std::pair<std::string, Rule>>;

/// Appends the rules of one family of operators.
class FamilyRules {
 public:
  FamilyRules(NamedRules& rules, const char* family) : rules_(rules), family_(family) {}

  /// Appends the rule of an operator in the namespace aten. It gets this family if it has none.
  void add(std::string_view name, Rule rule);
  /// Appends the same rule for several operators.
  void add(std::initializer_list<const char*> names, const Rule& rule) {
    for (const char* name : names) add(name, rule);
  }

 private:
  NamedRules& rules_;
  const char* family_;
};

/// Returns a rule without strategies: its inputs are replicated.
inline Rule whole_rule() { return {.strategies = nullptr}; }

/// Returns a rule of operators with replicated inputs whose results have shapes that depend on
/// values, or are no tensors.
inline Rule local_shape_rule() { return {.strategies = nullptr, .shape_from_local = true}; }

// Each of these functions appends the rules of one family.
void add_pointwise_rules(NamedRules& rules);
void add_factory_rules(NamedRules& rules);
void add_reduction_rules(NamedRules& rules);
void add_matmul_rules(NamedRules& rules);
void add_linear_rules(NamedRules& rules);
void add_bilinear_rules(NamedRules& rules);
void add_view_rules(NamedRules& rules);
void add_strided_rules(NamedRules& rules);
void add_random_rules(NamedRules& rules);
void add_softmax_rules(NamedRules& rules);
void add_normalisation_rules(NamedRules& rules);
void add_batch_norm_rules(NamedRules& rules);
void add_loss_rules(NamedRules& rules);
void add_embedding_rules(NamedRules& rules);
void add_attention_rules(NamedRules& rules);
void add_convolution_rules(NamedRules& rules);
void add_pooling_rules(NamedRules& rules);
void add_gated_rules(NamedRules& rules);
void add_joining_rules(NamedRules& rules);
void add_indexing_rules(NamedRules& rules);
void add_gathering_rules(NamedRules& rules);
void add_sorting_rules(NamedRules& rules);
void add_scan_rules(NamedRules& rules);
void add_statistics_rules(NamedRules& rules);
void add_norm_rules(NamedRules& rules);
void add_linear_algebra_rules(NamedRules& rules);
void add_recurrent_rules(NamedRules& rules);

NamedRules own_rules();

}  // namespace trireme::tensor
