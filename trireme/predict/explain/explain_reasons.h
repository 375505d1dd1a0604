// SPDX-License-Identifier: Apache-2.0
// Finds the reason why a recorded call communicates.
#pragma once

#include <trireme/predict/explain.h>

#include <string>
#include <vector>

namespace trireme::predict {

/// Returns the name of a collective, such as `all-reduce`.
std::string name_of(Collective collective);

/// Returns the short name of an operator, such as `add` for `aten::add.Tensor`. Operators of other
/// libraries keep their prefix.
std::string short_name(const std::string& name);

/// Explains communication by following recorded calls back to those that made the layouts.
class Reasons {
 public:
  /// @param calls all recorded calls; must outlive this object, as must `plan`.
  Reasons(const std::vector<tensor::DryRunCall>& calls, const Plan& plan)
      : calls_(calls), plan_(plan) {}

  /// Returns the communication of one call, in the order in which it happens.
  std::vector<ExplainedCommunication> of_call(int call) const;

  /// Returns the communication that brings a parameter's gradient to the parameter's layout.
  std::vector<ExplainedCommunication> of_gradient(const tensor::DryRunTensor& gradient,
                                                  const Layout& layout) const;

 private:
  std::string of_input(const tensor::DryRunCall& call, std::size_t input, int axis) const;
  std::string of_sum(const tensor::DryRunTensor& partial, int axis) const;
  std::string of_cut(const tensor::DryRunTensor& cut, int axis) const;
  std::string of_layout(const tensor::DryRunTensor& tensor, int axis) const;
  std::string of_pattern(const std::string& name) const;
  std::string of_parameter(const std::string& name) const;

  const std::vector<tensor::DryRunCall>& calls_;
  const Plan& plan_;
};

}  // namespace trireme::predict
