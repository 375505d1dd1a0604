// SPDX-License-Identifier: Apache-2.0
#include <trireme/tensor/rules/covered.h>

#include <trireme/base/text.h>
#include <trireme/tensor/dispatch/composites.h>
#include <trireme/tensor/rules/rule_table.h>

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/version.h>

#include <algorithm>
#include <set>

namespace trireme::tensor {
namespace {

bool takes_tensors(const c10::FunctionSchema& schema) {
  return std::ranges::any_of(schema.arguments(), [](const c10::Argument& argument) {
    return argument.type()->str().find("Tensor") != std::string::npos;
  });
}

// Returns `add.Tensor` for the overload Tensor of `aten::add`.
std::string short_name(const c10::OperatorName& name) {
  const std::string base = name.name.substr(name.name.find("::") + 2);
  return name.overload_name.empty() ? base : base + "." + name.overload_name;
}

// Writes names without overloads, with the number of overloads where there are several.
void list(TextWriter& text, const std::vector<std::string>& names) {
  std::map<std::string, int> overloads;
  for (const std::string& name : names) ++overloads[name.substr(0, name.find('.'))];
  const char* separator = "";
  for (const auto& [name, count] : overloads) {
    text << separator << "`" << name << "`";
    if (count > 1) text << " (" << count << ")";
    separator = ", ";
  }
  text << ".\n";
}

}  // namespace

int Coverage::num_covered() const {
  std::size_t count = 0;
  for (const auto& [family, names] : covered) count += names.size();
  return static_cast<int>(count);
}

Coverage coverage() {
  Coverage all;
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (!name.name.starts_with("aten::")) continue;
    const auto op = c10::Dispatcher::singleton().findOp(name);
    if (!op || !op->hasSchema() || !takes_tensors(op->schema())) continue;
    const bool is_composite =
        op->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
    const Rule* rule = find_rule(name.name, name.overload_name);
    if (is_composite && !is_kept_whole(name.name)) {
      ++all.num_composite;
    } else if (rule != nullptr) {
      all.covered[rule->family].push_back(short_name(name));
    } else {
      all.missing.push_back(short_name(name));
    }
  }
  for (auto& [family, names] : all.covered) std::ranges::sort(names);
  std::ranges::sort(all.missing);
  return all;
}

std::string to_markdown(const Coverage& coverage) {
  TextWriter text;
  text << "# Operators on distributed tensors\n\n"
       << "This page is generated from the table of rules and LibTorch " << TORCH_VERSION
       << ". The test `unit_tensor_covered` fails if it is out of date,\n"
       << "and writes it anew with `TRIREME_WRITE_PAGES=1` in the environment.\n\n"
       << coverage.num_covered() << " overloads have a rule. " << coverage.num_composite
       << " more are composed of other operators and need none. " << coverage.missing.size()
       << " have none: they run on replicated\n"
       << "tensors only, or after `tensor::allow_replication`. A number in parentheses counts "
          "overloads.\n";
  for (const auto& [family, names] : coverage.covered) {
    std::string title = family.empty() ? std::string("other") : family;
    if (title[0] >= 'a' && title[0] <= 'z') title[0] = static_cast<char>(title[0] - 'a' + 'A');
    text << "\n## " << title << "\n\n";
    list(text, names);
  }
  text << "\n## Without a rule\n\n";
  list(text, coverage.missing);
  return text.str();
}

}  // namespace trireme::tensor
