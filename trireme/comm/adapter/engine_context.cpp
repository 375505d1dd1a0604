// SPDX-License-Identifier: Apache-2.0
#include <trireme/comm/adapter/engine_context.h>

#include <trireme/base/error.h>

#include <c10/core/Device.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <functional>
#include <map>
#include <ranges>
#include <set>

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

std::optional<std::pair<int, int>> EngineContext::ranks_on_one_device() const {
  std::map<std::pair<std::string, std::string>, int> owners;
  for (std::size_t each = 0; each < devices.size(); ++each) {
    if (devices[each].empty()) continue;
    const std::string machine = machines.empty() ? std::string() : machines[each];
    const auto [owner, is_first] = owners.try_emplace({machine, devices[each]}, each);
    if (!is_first) return std::pair(owner->second, static_cast<int>(each));
  }
  return std::nullopt;
}

namespace {

// Returns the first engine that `fits`. Throws ConfigError with all engines of that kind if there
// is none.
template <typename Fits, typename Reason>
const Engine& find_engine(std::string_view name, const Fits& is_of_kind, const Reason& reason_of) {
  std::string reasons;
  for (const Engine& engine : engines()) {
    if (!is_of_kind(engine)) continue;
    if (name != "auto" && name != engine.name) {
      reasons += join_message("\n    ", engine.name);
      continue;
    }
    const std::string reason = reason_of(engine);
    if (reason.empty()) return engine;
    if (name == engine.name) {
      throw ConfigError(join_message("engine '", name, "' cannot be used here: ", reason),
                        "`trireme doctor` shows which engines work; without TRIREME_ENGINE and "
                        "InitOptions::engine one of them is chosen");
    }
    reasons += join_message("\n    ", engine.name, ": ", reason);
  }
  throw ConfigError(
      join_message("no communication engine '", name, "'; this build knows:", reasons),
      "choose one of them by TRIREME_ENGINE or InitOptions::engine; `trireme doctor` shows which "
      "work here");
}

bool is_for_cpu(const Engine& engine) { return engine.device == at::kCPU; }

// Returns the engine with that name, or null.
const Engine* find_named(std::string_view name) {
  const auto all = engines();
  const auto found = std::ranges::find(all, name, &Engine::name);
  return found == all.end() ? nullptr : &*found;
}

std::string known_names() {
  std::string names = "auto, staged";
  for (const Engine& known : engines()) names += join_message(", ", known.name);
  return names;
}

constexpr const char* kHowToName =
    "correct TRIREME_ENGINE, TRIREME_ENGINE_ACROSS or InitOptions::engine, or leave it out; "
    "`cpu:gloo,cuda:nccl` names an engine for each type of device";

// Sets the engine of one type of device, which may be empty: then the engine decides.
void set_name(EngineNames& names, std::string_view type, std::string_view name) {
  const Engine* const engine = find_named(name);
  if (engine == nullptr && name != "auto" && name != "staged") {
    throw ConfigError(
        join_message("no communication engine '", name, "', expected one of ", known_names()),
        kHowToName);
  }
  const bool is_device_engine = name == "staged" || (engine != nullptr && !is_for_cpu(*engine));
  if (type.empty()) {
    (is_device_engine ? names.device : names.cpu) = name;
    return;
  }
  const bool is_cpu = type == "cpu";
  if (name != "auto" && is_cpu == is_device_engine) {
    throw ConfigError(join_message("engine ", name, " carries no tensors on ", type, " devices"),
                      kHowToName);
  }
  (is_cpu ? names.cpu : names.device) = name;
}

bool is_device_type(std::string_view type) {
  try {
    static_cast<void>(at::Device(std::string(type)));
    return type.find(':') == std::string_view::npos;
  } catch (const c10::Error&) {
    return false;
  }
}

}  // namespace

const Engine& choose_engine(std::string_view name, bool one_host) {
  return find_engine(name, is_for_cpu,
                     [&](const Engine& engine) { return unsuitable_because(engine, one_host); });
}

const Engine* choose_device_engine(std::string_view name, const EngineContext& context) {
  if (name == "staged") return nullptr;
  if (name != "auto") {
    return &find_engine(name, std::not_fn(is_for_cpu),
                        [](const Engine& engine) { return engine.unavailable_because(); });
  }
  if (context.devices.empty() || context.ranks_on_one_device()) return nullptr;
  for (const Engine& engine : engines()) {
    if (!is_for_cpu(engine) && engine.unavailable_because().empty()) return &engine;
  }
  return nullptr;
}

EngineNames EngineNames::parse(std::string_view text) {
  EngineNames names;
  if (text.empty()) set_name(names, "", text);  // throws
  std::set<std::string_view> types;
  for (const auto part : std::views::split(text, ',')) {
    const std::string_view entry(part.begin(), part.end());
    const std::size_t colon = entry.find(':');
    if (colon == std::string_view::npos) {
      if (entry.size() != text.size()) {
        throw ConfigError(
            join_message("engines '", text, "': '", entry, "' names no type of device"),
            kHowToName);
      }
      set_name(names, "", entry);
      continue;
    }
    const std::string_view type = entry.substr(0, colon);
    if (!is_device_type(type)) {
      throw ConfigError(join_message("engines '", text, "': no type of device '", type,
                                     "', expected such as cpu or cuda"),
                        kHowToName);
    }
    if (!types.insert(type).second) {
      throw ConfigError(join_message("engines '", text, "' name ", type, " twice"), kHowToName);
    }
    set_name(names, type, entry.substr(colon + 1));
  }
  return names;
}

}  // namespace trireme::comm
