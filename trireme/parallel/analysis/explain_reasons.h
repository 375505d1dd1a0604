// SPDX-License-Identifier: Apache-2.0
// Why a recorded call communicates.
#pragma once

#include <trireme/parallel/explain.h>

#include <string>
#include <vector>

namespace trireme::detail {

/// `all-reduce` and so on.
const char* name_of(Collective collective);

/// `add` for `aten::add.Tensor`; other libraries keep their name.
std::string short_name(const std::string& name);

/// Reads calls from the one that communicates back to what made the layouts that it found.
class Reasons {
 public:
  /// Both must outlive it.
  Reasons(const std::vector<tensor::DryRunCall>& calls, const Plan& plan)
      : calls_(calls), plan_(plan) {}

  /// What a call communicates, in its order.
  std::vector<ExplainedCommunication> of_call(int call) const;

  /// What brings the gradient of a parameter to the parameter's layout.
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

}  // namespace trireme::detail
