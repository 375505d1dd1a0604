// SPDX-License-Identifier: Apache-2.0
#include <trireme/comm/adapter/engine_context.h>

#include <trireme/base/error.h>

#include <algorithm>

namespace trireme::comm {
namespace {

std::string unsuitable_because(const Engine& engine, bool one_host) {
  if (engine.scope == Scope::kOneHost && !one_host) return "the ranks are on several hosts";
  if (engine.scope == Scope::kSeveralHosts && one_host) return "all ranks are on one host";
  return engine.unavailable_because();
}

}  // namespace

bool EngineContext::is_one_host() const {
  return std::all_of(machines.begin(), machines.end(),
                     [&](const std::string& machine) { return machine == machines.front(); });
}

int EngineContext::world_rank_of(int group_rank) const {
  return world_ranks.empty() ? group_rank : world_ranks[static_cast<std::size_t>(group_rank)];
}

const Engine& choose_engine(std::string_view name, bool one_host) {
  std::string reasons;
  for (const Engine& engine : engines()) {
    if (name != "auto" && name != engine.name) {
      reasons += join_message("\n    ", engine.name);
      continue;
    }
    const std::string reason = unsuitable_because(engine, one_host);
    if (reason.empty()) return engine;
    reasons += join_message("\n    ", engine.name, ": ", reason);
  }
  throw ConfigError(
      join_message("no communication engine '", name, "'; this build knows:", reasons),
      "choose one of them by TRIREME_ENGINE or InitOptions::engine; `trireme doctor` shows which "
      "work here");
}

void check_engine_name(std::string_view name) {
  std::string names = "auto";
  for (const Engine& known : engines()) {
    if (name == known.name) return;
    names += join_message(", ", known.name);
  }
  if (name == "auto") return;
  throw ConfigError(
      join_message("no communication engine '", name, "', expected one of ", names),
      "correct TRIREME_ENGINE, TRIREME_ENGINE_ACROSS or InitOptions::engine, or leave "
      "it out");
}

}  // namespace trireme::comm
