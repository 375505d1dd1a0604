// SPDX-License-Identifier: Apache-2.0
// The table of rules, by the names of operators.
#pragma once

#include <trireme/tensor/rules/rule.h>
#include <trireme/tensor/run_replicated.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::tensor {

/// Gives an operator its rule, such as `aten::gelu`, or `aten::add.Tensor` for one overload; a name
/// without overload is for every overload that has no rule of its own. In-place and out= overloads
/// of the same base name (`add_`, `add.out`) need rules of their own names; `add_` takes that of
/// `add` where it has none. Replaces a rule that was there, and what was decided by it. Not
/// thread-safe against running operators: give rules before training.
void add_rule(std::string_view operator_name, Rule rule);

/// The rule of an operator: of its overload, its name, or its name without a trailing underscore;
/// null where it has none.
const Rule* find_rule(std::string_view name, std::string_view overload);

/// How often the table has changed: what follows from rules is kept beside it and compared.
std::uint64_t rules_version() noexcept;

/// Calls `follow` with the name given to add_rule after every change from now on, on the thread
/// that makes it.
void on_change_of_rules(std::function<void(std::string_view operator_name)> follow);

/// Names that have rules, sorted.
std::vector<std::string> names_of_rules();

}  // namespace trireme::tensor
