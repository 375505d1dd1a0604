// SPDX-License-Identifier: Apache-2.0
#include <trireme/tensor/rules/families.h>

namespace trireme::tensor {

void FamilyRules::add(std::string_view name, Rule rule) {
  if (*rule.family == '\0') rule.family = family_;
  rules_.emplace_back("aten::" + std::string(name), std::move(rule));
}

NamedRules own_rules() {
  NamedRules rules;
  add_pointwise_rules(rules);
  add_factory_rules(rules);
  add_reduction_rules(rules);
  add_matmul_rules(rules);
  add_linear_rules(rules);
  add_bilinear_rules(rules);
  add_view_rules(rules);
  add_strided_rules(rules);
  add_random_rules(rules);
  add_softmax_rules(rules);
  add_normalisation_rules(rules);
  add_batch_norm_rules(rules);
  add_loss_rules(rules);
  add_embedding_rules(rules);
  add_attention_rules(rules);
  add_convolution_rules(rules);
  add_pooling_rules(rules);
  add_gated_rules(rules);
  add_joining_rules(rules);
  add_indexing_rules(rules);
  add_gathering_rules(rules);
  add_sorting_rules(rules);
  add_scan_rules(rules);
  add_statistics_rules(rules);
  add_norm_rules(rules);
  add_linear_algebra_rules(rules);
  add_recurrent_rules(rules);
  return rules;
}

}  // namespace trireme::tensor
