// SPDX-License-Identifier: Apache-2.0
// Trireme's own rules: one function for each family of operators, in a file of its own.
#pragma once

#include <trireme/tensor/rules/rule.h>

#include <string>
#include <utility>
#include <vector>

namespace trireme::tensor {

using NamedRules = std::vector<std::pair<std::string, Rule>>;

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

/// Returns the rules of all families.
NamedRules own_rules();

}  // namespace trireme::tensor
