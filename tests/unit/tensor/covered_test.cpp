// SPDX-License-Identifier: Apache-2.0
// The page of covered operators, which is generated here: TRIREME_WRITE_PAGES=1 writes it anew.
#include <trireme/base/text.h>
#include <trireme/tensor/dispatch/composites.h>
#include <trireme/tensor/rules/rule_table.h>

#include <ATen/core/dispatch/Dispatcher.h>
#include <gtest/gtest.h>
#include <torch/version.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

namespace trireme::tensor {
namespace {

// Overloads of the operators in the library aten that take tensors.
struct Coverage {
  std::map<std::string, std::vector<std::string>> covered;  // names with overload, by family
  std::vector<std::string> missing;  // overloads without a rule: on replicated tensors only
  int num_composite = 0;  // overloads that LibTorch decomposes; their parts have the rules

  int num_covered() const {
    std::size_t count = 0;
    for (const auto& [family, names] : covered) count += names.size();
    return static_cast<int>(count);
  }
};

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

// Returns the coverage of the operators that are registered with LibTorch's dispatcher now.
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

// Returns the coverage as a page of documentation in Markdown.
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

TEST(Covered, SixHundredOverloadsHaveRules) { EXPECT_GE(coverage().num_covered(), 600); }

TEST(Covered, ThePageIsUpToDate) {
  const char* source = std::getenv("TRIREME_SOURCE");
  ASSERT_NE(source, nullptr) << "run by ctest, or set TRIREME_SOURCE to the checkout";
  const std::filesystem::path page = std::filesystem::path(source) / "docs" / "operators.md";
  const std::string generated = to_markdown(coverage());
  if (std::getenv("TRIREME_WRITE_PAGES") != nullptr) std::ofstream(page) << generated;
  std::ifstream file(page);
  const std::string written(std::istreambuf_iterator<char>(file), {});
  if (written.find(TORCH_VERSION) == std::string::npos) {
    // Made with another LibTorch, whose operators are others.
    EXPECT_FALSE(written.empty());
    return;
  }
  EXPECT_EQ(written, generated) << "docs/operators.md is out of date; TRIREME_WRITE_PAGES=1 "
                                   "unit_tensor_covered writes it anew";
}

}  // namespace
}  // namespace trireme::tensor
