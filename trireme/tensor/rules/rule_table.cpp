// SPDX-License-Identifier: Apache-2.0
#include <trireme/tensor/rules/rule_table.h>

#include <trireme/tensor/rules/families.h>

#include <atomic>
#include <map>
#include <mutex>
#include <utility>

namespace trireme::tensor {
namespace {

struct Table {
  std::mutex mutex;
  std::map<std::string, std::unique_ptr<Rule>, std::less<>> rules;
  bool has_own = false;
  std::vector<std::function<void(std::string_view)>> followers;
};

Table& table() {
  static Table the_table;
  return the_table;
}

std::atomic<std::uint64_t> version = 0;

void put(Table& all, std::string_view name, Rule rule) {
  // Kernels hold pointers to rules, so a rule that is replaced keeps its address.
  const auto found = all.rules.find(name);
  if (found != all.rules.end()) {
    *found->second = std::move(rule);
  } else {
    all.rules.emplace(std::string(name), std::make_unique<Rule>(std::move(rule)));
  }
}

// Adds Trireme's own rules before any other, so that a user's rule replaces them.
void add_own(Table& all) {
  if (std::exchange(all.has_own, true)) return;
  for (auto& [name, rule] : own_rules()) put(all, name, std::move(rule));
}

const Rule* find(const Table& all, std::string_view name) {
  const auto found = all.rules.find(name);
  return found == all.rules.end() ? nullptr : found->second.get();
}

}  // namespace

void add_rule(std::string_view operator_name, Rule rule) {
  Table& all = table();
  std::vector<std::function<void(std::string_view)>> followers;
  {
    const std::scoped_lock lock(all.mutex);
    add_own(all);
    put(all, operator_name, std::move(rule));
    followers = all.followers;
  }
  for (const auto& follow : followers) follow(operator_name);
  // Threads that see the new version make new decisions. No operator runs until then, as add_rule
  // requires.
  version.fetch_add(1, std::memory_order_release);
}

std::uint64_t rules_version() noexcept { return version.load(std::memory_order_acquire); }

void on_change_of_rules(std::function<void(std::string_view)> follow) {
  Table& all = table();
  const std::scoped_lock lock(all.mutex);
  all.followers.push_back(std::move(follow));
}

const Rule* find_rule(std::string_view name, std::string_view overload) {
  Table& all = table();
  const std::scoped_lock lock(all.mutex);
  add_own(all);
  const std::string base(name.ends_with('_') ? name.substr(0, name.size() - 1) : name);
  const std::string suffix = overload.empty() ? "" : "." + std::string(overload);
  for (const std::string& candidate :
       {std::string(name) + suffix, std::string(name), base + suffix, base}) {
    if (const Rule* rule = find(all, candidate)) return rule;
  }
  return nullptr;
}

void allow_replication(std::string_view operator_name) {
  add_rule(operator_name,
           {.strategies = {}, .shape_from_local = true, .family = "replicated on request"});
}

std::vector<std::string> names_of_rules() {
  Table& all = table();
  const std::scoped_lock lock(all.mutex);
  add_own(all);
  std::vector<std::string> names;
  names.reserve(all.rules.size());
  for (const auto& [name, rule] : all.rules) names.push_back(name);
  return names;
}

}  // namespace trireme::tensor
