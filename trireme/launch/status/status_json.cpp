// SPDX-License-Identifier: Apache-2.0
#include <trireme/base/error.h>
#include <trireme/base/json_depth.h>
#include <trireme/base/text.h>
#include <trireme/launch/status/run_status.h>
#include <trireme/version.h>

#include <nlohmann/json.hpp>

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

template <typename Value>
void put(Json& json, const char* name, const std::optional<Value>& value) {
  if (value) json[name] = *value;
}

void put_text(Json& json, const char* name, const std::string& value) {
  if (!value.empty()) json[name] = value;
}

template <typename Number>
void put_known(Json& json, const char* name, Number value) {
  if (value != 0) json[name] = value;
}

Json json_of(const RankStatus& rank) {
  Json json{{"rank", rank.rank}, {"host", rank.host}, {"state", rank.state}};
  put_known(json, "process", rank.process);
  put_known(json, "epoch", rank.epoch);
  json["step"] = rank.step;
  put_known(json, "of_steps", rank.of_steps);
  put(json, "steps_per_second", rank.steps_per_second);
  put(json, "samples_per_second", rank.samples_per_second);
  put(json, "tokens_per_second", rank.tokens_per_second);
  put(json, "own_seconds_per_step", rank.own_seconds_per_step);
  put(json, "seconds_since_step", rank.seconds_since_step);
  put_known(json, "memory_bytes", rank.memory_bytes);
  json["is_slow"] = rank.is_slow;
  return json;
}

Json json_of(const WorkerStatus& worker) {
  Json json{{"host", worker.host}};
  put_text(json, "address", worker.address);
  json["process"] = worker.process;
  put_text(json, "node_id", worker.node_id);
  json["first_rank"] = worker.first_rank;
  json["ranks"] = worker.ranks;
  return json;
}

Json json_of(const FailureStatus& failure) {
  Json json{{"time", failure.time}, {"attempt", failure.attempt}};
  put(json, "rank", failure.rank);
  put_text(json, "host", failure.host);
  json["code"] = failure.code;
  json["cause"] = failure.cause;
  return json;
}

template <typename Value>
Json list_of(const std::vector<Value>& values) {
  Json list = Json::array();
  for (const Value& value : values) list.push_back(json_of(value));
  return list;
}

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
  template <typename Value, typename Parse>
  void get_list(const char* name, std::vector<Value>& values, const Parse& parse) const {
    const auto found = json_.find(name);
    if (found == json_.end()) return;
    if (!found->is_array()) refuse(join_message("'", name, "', which is no list"));
    for (const Json& one : *found) {
      if (!one.is_object()) refuse(join_message("'", name, "' with an element that is no object"));
      values.push_back(parse(Members(one, source_)));
    }
  }
  [[noreturn]] void refuse(const std::string& what) const {
    throw CommError(join_message(source_, " answered a status with ", what),
                    "give the address of the status of a run, and the same version of Trireme");
  }

 private:
  const Json& json_;
  const std::string& source_;
};

RankStatus rank_of(const Members& members) {
  RankStatus rank;
  members.get("rank", rank.rank);
  members.get("host", rank.host);
  members.get("state", rank.state);
  members.get("process", rank.process);
  members.get("epoch", rank.epoch);
  members.get("step", rank.step);
  members.get("of_steps", rank.of_steps);
  members.get("steps_per_second", rank.steps_per_second);
  members.get("samples_per_second", rank.samples_per_second);
  members.get("tokens_per_second", rank.tokens_per_second);
  members.get("own_seconds_per_step", rank.own_seconds_per_step);
  members.get("seconds_since_step", rank.seconds_since_step);
  members.get("memory_bytes", rank.memory_bytes);
  members.get("is_slow", rank.is_slow);
  return rank;
}

WorkerStatus worker_of(const Members& members) {
  WorkerStatus worker;
  members.get("host", worker.host);
  members.get("address", worker.address);
  members.get("process", worker.process);
  members.get("node_id", worker.node_id);
  members.get("first_rank", worker.first_rank);
  members.get("ranks", worker.ranks);
  return worker;
}

FailureStatus failure_of(const Members& members) {
  FailureStatus failure;
  members.get("time", failure.time);
  members.get("attempt", failure.attempt);
  members.get("rank", failure.rank);
  members.get("host", failure.host);
  members.get("code", failure.code);
  members.get("cause", failure.cause);
  return failure;
}

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
  put_text(json, "run", status.run);
  put_text(json, "program", status.program);
  json["state"] = text_of(status.state);
  json["began"] = status.began;
  json["time"] = status.now;
  json["world_size"] = status.world_size;
  json["came"] = status.came;
  json["spares"] = status.spares;
  json["restarts"] = status.restarts;
  json["restarts_allowed"] = status.restarts_allowed;
  put_known(json, "epoch", status.epoch);
  json["step"] = status.step;
  put_known(json, "of_steps", status.of_steps);
  put(json, "steps_per_second", status.steps_per_second);
  put(json, "samples_per_second", status.samples_per_second);
  put(json, "tokens_per_second", status.tokens_per_second);
  put_known(json, "memory_bytes", status.memory_bytes);
  put(json, "expected_end", status.expected_end);
  put(json, "code", status.code);
  json["workers"] = list_of(status.workers);
  json["ranks"] = list_of(status.ranks);
  json["failure_count"] = status.failure_count;
  json["failures"] = list_of(status.failures);
  json["host_failures"] = status.host_failures;
  json["excluded_hosts"] = status.excluded_hosts;
  json["answered"] = status.answered;
  json["refused"] = status.refused;
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
  std::string state;
  members.get("state", state);
  bool is_known = false;
  for (const RunState one : kStates) {
    if (state != text_of(one)) continue;
    status.state = one;
    is_known = true;
  }
  if (!is_known) members.refuse(join_message("the unknown state '", state, "'"));
  members.get("run", status.run);
  members.get("program", status.program);
  members.get("began", status.began);
  members.get("time", status.now);
  members.get("world_size", status.world_size);
  members.get("came", status.came);
  members.get("spares", status.spares);
  members.get("restarts", status.restarts);
  members.get("restarts_allowed", status.restarts_allowed);
  members.get("epoch", status.epoch);
  members.get("step", status.step);
  members.get("of_steps", status.of_steps);
  members.get("steps_per_second", status.steps_per_second);
  members.get("samples_per_second", status.samples_per_second);
  members.get("tokens_per_second", status.tokens_per_second);
  members.get("memory_bytes", status.memory_bytes);
  members.get("expected_end", status.expected_end);
  members.get("code", status.code);
  members.get_list("workers", status.workers, worker_of);
  members.get_list("ranks", status.ranks, rank_of);
  members.get("failure_count", status.failure_count);
  members.get_list("failures", status.failures, failure_of);
  members.get("host_failures", status.host_failures);
  members.get("excluded_hosts", status.excluded_hosts);
  for (std::string& host : status.excluded_hosts) host = printable(host);
  members.get("answered", status.answered);
  members.get("refused", status.refused);
  return status;
}

}  // namespace trireme::launch
