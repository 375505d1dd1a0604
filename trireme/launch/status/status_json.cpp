// SPDX-License-Identifier: Apache-2.0
#include <trireme/base/error.h>
#include <trireme/base/json_depth.h>
#include <trireme/base/text.h>
#include <trireme/launch/status/run_status.h>
#include <trireme/version.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>
#include <type_traits>
#include <utility>

namespace trireme::launch {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kFormat = 1;
constexpr std::array kStates{RunState::kForming, RunState::kRunning, RunState::kEnding,
                             RunState::kEnded};

// The members of each struct stand in one place, for Writer and Members. `known` leaves a member
// out while its value is 0, empty or missing.
template <typename Visitor, typename Rank>
void visit_rank(Visitor& members, Rank& rank) {
  members.always("rank", rank.rank);
  members.always("host", rank.host);
  members.always("state", rank.state);
  members.known("process", rank.process);
  members.known("epoch", rank.epoch);
  members.always("step", rank.step);
  members.known("of_steps", rank.of_steps);
  members.known("steps_per_second", rank.steps_per_second);
  members.known("samples_per_second", rank.samples_per_second);
  members.known("tokens_per_second", rank.tokens_per_second);
  members.known("own_seconds_per_step", rank.own_seconds_per_step);
  members.known("seconds_since_step", rank.seconds_since_step);
  members.known("memory_bytes", rank.memory_bytes);
  members.always("is_slow", rank.is_slow);
}

template <typename Visitor, typename Worker>
void visit_worker(Visitor& members, Worker& worker) {
  members.always("host", worker.host);
  members.known("address", worker.address);
  members.always("process", worker.process);
  members.known("node_id", worker.node_id);
  members.always("first_rank", worker.first_rank);
  members.always("ranks", worker.ranks);
}

template <typename Visitor, typename Failure>
void visit_failure(Visitor& members, Failure& failure) {
  members.always("time", failure.time);
  members.always("attempt", failure.attempt);
  members.known("rank", failure.rank);
  members.known("host", failure.host);
  members.always("code", failure.code);
  members.always("cause", failure.cause);
}

template <typename Visitor, typename Status>
void visit_status(Visitor& members, Status& status) {
  members.known("run", status.run);
  members.known("program", status.program);
  members.state("state", status.state);
  members.always("began", status.began);
  members.always("time", status.now);
  members.always("world_size", status.world_size);
  members.always("came", status.came);
  members.always("spares", status.spares);
  members.always("restarts", status.restarts);
  members.always("restarts_allowed", status.restarts_allowed);
  members.known("epoch", status.epoch);
  members.always("step", status.step);
  members.known("of_steps", status.of_steps);
  members.known("steps_per_second", status.steps_per_second);
  members.known("samples_per_second", status.samples_per_second);
  members.known("tokens_per_second", status.tokens_per_second);
  members.known("memory_bytes", status.memory_bytes);
  members.known("expected_end", status.expected_end);
  members.known("code", status.code);
  members.list("workers", status.workers, [](auto& each, auto& one) { visit_worker(each, one); });
  members.list("ranks", status.ranks, [](auto& each, auto& one) { visit_rank(each, one); });
  members.always("failure_count", status.failure_count);
  members.list("failures", status.failures,
               [](auto& each, auto& one) { visit_failure(each, one); });
  members.always("host_failures", status.host_failures);
  members.always("excluded_hosts", status.excluded_hosts);
  members.always("answered", status.answered);
  members.always("refused", status.refused);
}

// Writes members into an object.
class Writer {
 public:
  explicit Writer(Json& json) : json_(json) {}

  template <typename Value>
  void always(const char* name, const Value& value) {
    json_[name] = value;
  }
  template <typename Value>
  void known(const char* name, const Value& value) {
    if (value != Value{}) json_[name] = value;
  }
  template <typename Value>
  void known(const char* name, const std::optional<Value>& value) {
    if (value) json_[name] = *value;
  }
  void state(const char* name, RunState state) { json_[name] = text_of(state); }
  template <typename Value, typename Visit>
  void list(const char* name, const std::vector<Value>& values, const Visit& visit) {
    Json& list = json_[name] = Json::array();
    for (const Value& value : values) {
      Writer writer(list.emplace_back());
      visit(writer, value);
    }
  }

 private:
  Json& json_;
};

// Returns true for an integer that a type can hold: the library would convert any number.
template <typename Value>
bool is_within(const Json& json) {
  if (json.is_number_unsigned()) return std::in_range<Value>(json.get<std::uint64_t>());
  return json.is_number_integer() && std::in_range<Value>(json.get<std::int64_t>());
}

// Reads members of an object, and refuses those of another type.
class Members {
 public:
  Members(const Json& json, const std::string& source) : json_(json), source_(source) {}

  template <typename Value>
  void always(const char* name, Value& value) const {
    get(name, value);
  }
  template <typename Value>
  void known(const char* name, Value& value) const {
    get(name, value);
  }
  void state(const char* name, RunState& value) const {
    std::string state;
    get(name, state);
    const auto found =
        std::ranges::find_if(kStates, [&](const RunState one) { return state == text_of(one); });
    if (found == kStates.end()) refuse(join_message("the unknown state '", state, "'"));
    value = *found;
  }
  template <typename Value, typename Visit>
  void list(const char* name, std::vector<Value>& values, const Visit& visit) const {
    const auto found = json_.find(name);
    if (found == json_.end()) return;
    if (!found->is_array()) refuse(join_message("'", name, "', which is no list"));
    for (const Json& one : *found) {
      if (!one.is_object()) refuse(join_message("'", name, "' with an element that is no object"));
      const Members members(one, source_);
      visit(members, values.emplace_back());
    }
  }
  template <typename Value>
  void get(const char* name, Value& value) const {
    const auto found = json_.find(name);
    if (found == json_.end()) return;
    if constexpr (std::is_integral_v<Value> && !std::is_same_v<Value, bool>) {
      if (found->is_number() && !is_within<Value>(*found))
        refuse(join_message("'", name, "', which is no integer of the range that is expected"));
    }
    try {
      value = found->get<Value>();
    } catch (const Json::exception&) {
      refuse(join_message("'", name, "' of another type than expected"));
    }
  }
  template <typename Value>
  void get(const char* name, std::optional<Value>& value) const {
    if (json_.contains(name)) get(name, value.emplace());
  }
  void get(const char* name, std::string& value) const {
    get<std::string>(name, value);
    value = printable(value);
  }
  void get(const char* name, std::vector<std::string>& values) const {
    get<std::vector<std::string>>(name, values);
    for (std::string& value : values) value = printable(value);
  }
  [[noreturn]] void refuse(const std::string& what) const {
    throw CommError(join_message(source_, " answered a status with ", what),
                    "give the address of the status of a run, and the same version of Trireme");
  }

 private:
  const Json& json_;
  const std::string& source_;
};

}  // namespace

const char* text_of(RunState state) {
  switch (state) {
    case RunState::kForming:
      return "forming";
    case RunState::kRunning:
      return "running";
    case RunState::kEnding:
      return "ending";
    case RunState::kEnded:
      break;
  }
  return "ended";
}

std::string status_json(const RunStatus& status) {
  Json json{{"format", kFormat}, {"trireme", TRIREME_VERSION}};
  Writer writer(json);
  visit_status(writer, status);
  return json.dump(/*indent=*/-1, /*indent_char=*/' ', /*ensure_ascii=*/false,
                   Json::error_handler_t::replace) +
         "\n";
}

RunStatus parse_status(const std::string& json, const std::string& source) {
  constexpr std::size_t kDeepest = 8;
  const Json parsed = json_depth(json) > kDeepest
                          ? Json()
                          : Json::parse(json, /*cb=*/nullptr, /*allow_exceptions=*/false);
  const Members members(parsed, source);
  if (!parsed.is_object()) members.refuse("text that is no JSON object");
  int format = 0;
  members.get("format", format);
  if (format != kFormat) members.refuse(join_message("format ", format, ", expected ", kFormat));
  RunStatus status;
  visit_status(members, status);
  return status;
}

}  // namespace trireme::launch
