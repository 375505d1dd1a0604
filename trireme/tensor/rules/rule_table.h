// SPDX-License-Identifier: Apache-2.0
// The table of rules by operator name.
#pragma once

#include <trireme/tensor/rules/rule.h>
#include <trireme/tensor/run_replicated.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::tensor {

/// Sets the rule of an operator and replaces an earlier one; decisions made with it are forgotten.
///
/// `operator_name` is a name such as `aten::gelu`, or one with an overload such as
/// `aten::add.Tensor`. A name without overload stands for every overload that has no rule of its
/// own. In-place and out= overloads (`add_`, `add.out`) have names of their own; `add_` uses the
/// rule of `add` if it has none.
///
/// Must not be called while operators run on distributed tensors. Call it before training.
void add_rule(std::string_view operator_name, Rule rule);

/// Returns the rule of an operator: that of its overload, of its name, or of its name without a
/// trailing underscore. Null if it has none.
const Rule* find_rule(std::string_view name, std::string_view overload);

/// Returns the number of changes of the table, with which caches notice that rules have changed.
std::uint64_t rules_version() noexcept;

/// Calls `follow` after every further change with the name given to add_rule, on the thread that
/// makes the change.
void on_change_of_rules(std::function<void(std::string_view operator_name)> follow);

/// Returns the names that have rules, sorted.
std::vector<std::string> names_of_rules();

}  // namespace trireme::tensor
