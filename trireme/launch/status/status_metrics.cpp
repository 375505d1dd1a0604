// SPDX-License-Identifier: Apache-2.0
// The status in the text format of Prometheus, version 0.0.4
// (prometheus.io/docs/instrumenting/exposition_formats).
#include <trireme/base/text.h>
#include <trireme/launch/status/run_status.h>
#include <trireme/version.h>

#include <nlohmann/json.hpp>

#include <array>
#include <functional>
#include <string>
#include <utility>

namespace trireme::launch {
namespace {

// Returns the text with what is no UTF-8 replaced, since one such byte makes Prometheus refuse all.
std::string valid_utf8(const std::string& text) {
  const std::string quoted =
      Json(text).dump(/*indent=*/-1, /*indent_char=*/' ',
                      /*ensure_ascii=*/false, nlohmann::json::error_handler_t::replace);
  return nlohmann::json::parse(quoted).get<std::string>();
}

// Returns the value of a label in quotation marks.
std::string label_value(const std::string& text) {
  std::string all = "\"";
  for (const char letter : valid_utf8(text)) {
    if (letter == '\\' || letter == '"') all += '\\';
    if (letter == '\n') {
      all += "\\n";
    } else {
      all += letter;
    }
  }
  return all + '"';
}

using Labels = std::vector<std::pair<const char*, std::string>>;

// Writes one metric after the other, each with its help and type.
class Metrics {
 public:
  void begin(const char* name, const char* type, const char* help) {
    name_ = name;
    text_ += std::string("# HELP ") + name + ' ' + help + "\n# TYPE " + name + ' ' + type + '\n';
  }
  void add(double value, const Labels& labels = {}) {
    text_ += name_;
    for (std::size_t i = 0; i < labels.size(); ++i)
      text_ +=
          (i == 0 ? "{" : ",") + std::string(labels[i].first) + '=' + label_value(labels[i].second);
    if (!labels.empty()) text_ += '}';
    text_ += ' ' + shortest_text(value) + '\n';
  }
  // Writes a metric without labels, if its value is known.
  void add_one(const char* name, const char* type, const char* help, std::optional<double> value) {
    if (!value) return;
    begin(name, type, help);
    add(*value);
  }
  std::string take() { return std::move(text_); }

 private:
  std::string name_;
  std::string text_;
};

void add_ranks(Metrics& metrics, const RunStatus& status, const char* name, const char* help,
               const std::function<std::optional<double>(const RankStatus&)>& value_of) {
  metrics.begin(name, "gauge", help);
  for (const RankStatus& rank : status.ranks) {
    if (const auto value = value_of(rank))
      metrics.add(*value, {{"rank", std::to_string(rank.rank)}, {"host", rank.host}});
  }
}

void add_run(Metrics& metrics, const RunStatus& status) {
  metrics.begin("trireme_info", "gauge", "The run, with the value 1.");
  metrics.add(1, {{"run", status.run}, {"program", status.program}, {"version", TRIREME_VERSION}});
  metrics.begin("trireme_state", "gauge", "1 for the state that the run is in, 0 for the others.");
  for (const RunState state :
       std::array{RunState::kForming, RunState::kRunning, RunState::kEnding, RunState::kEnded})
    metrics.add(state == status.state ? 1 : 0, {{"state", text_of(state)}});
  const auto count = [](auto number) { return static_cast<double>(number); };
  metrics.add_one("trireme_start_time_seconds", "gauge", "When the run began, since 1970.",
                  status.began);
  metrics.add_one("trireme_world_size", "gauge", "The number of ranks.", count(status.world_size));
  metrics.add_one("trireme_workers", "gauge", "The number of workers that take part.",
                  count(status.workers.size()));
  metrics.add_one("trireme_spare_workers", "gauge", "The number of workers that wait for a place.",
                  count(status.spares));
  metrics.add_one("trireme_step", "gauge", "The last step that all ranks have finished.",
                  count(status.step));
  if (status.of_steps > 0)
    metrics.add_one("trireme_last_step", "gauge", "The step after which the training ends.",
                    count(status.of_steps));
  metrics.add_one("trireme_steps_per_second", "gauge", "Steps in a second.",
                  status.steps_per_second);
  metrics.add_one("trireme_samples_per_second", "gauge", "Samples of all ranks in a second.",
                  status.samples_per_second);
  metrics.add_one("trireme_tokens_per_second", "gauge", "Tokens of all ranks in a second.",
                  status.tokens_per_second);
  metrics.add_one("trireme_expected_end_time_seconds", "gauge",
                  "When the training is expected to end, since 1970.", status.expected_end);
  metrics.add_one("trireme_restarts_total", "counter", "Restarts so far.", count(status.restarts));
  metrics.add_one("trireme_allowed_restarts", "gauge", "Restarts that are allowed.",
                  count(status.restarts_allowed));
  metrics.add_one("trireme_failures_total", "counter", "Failures of ranks and workers so far.",
                  count(status.failure_count));
}

void add_counts(Metrics& metrics, const char* name, const char* help, const char* label,
                const std::map<std::string, std::int64_t>& counts) {
  metrics.begin(name, "counter", help);
  for (const auto& [what, number] : counts)
    metrics.add(static_cast<double>(number), {{label, what}});
}

}  // namespace

std::string status_metrics(const RunStatus& status) {
  Metrics metrics;
  add_run(metrics, status);
  add_ranks(metrics, status, "trireme_rank_up", "1 if the rank runs, 0 if it has ended.",
            [](const RankStatus& rank) { return rank.state == "running" ? 1.0 : 0.0; });
  add_ranks(metrics, status, "trireme_rank_step", "The last step that the rank has finished.",
            [](const RankStatus& rank) { return static_cast<double>(rank.step); });
  add_ranks(metrics, status, "trireme_rank_own_seconds",
            "The time of a step without waiting for other ranks.",
            [](const RankStatus& rank) { return rank.own_seconds_per_step; });
  add_ranks(metrics, status, "trireme_rank_since_step_seconds",
            "The time since the rank has finished a step.",
            [](const RankStatus& rank) { return rank.seconds_since_step; });
  add_ranks(metrics, status, "trireme_rank_memory_bytes", "Resident memory of the rank.",
            [](const RankStatus& rank) -> std::optional<double> {
              if (rank.memory_bytes == 0) return std::nullopt;
              return static_cast<double>(rank.memory_bytes);
            });
  add_ranks(metrics, status, "trireme_rank_slow", "1 if the rank is slower than the others.",
            [](const RankStatus& rank) { return rank.is_slow ? 1.0 : 0.0; });
  metrics.begin("trireme_host_failures_total", "counter", "Failures of ranks of a host so far.");
  for (const auto& [host, count] : status.host_failures) metrics.add(count, {{"host", host}});
  add_counts(metrics, "trireme_status_requests_total", "Requests that were answered.", "path",
             status.answered);
  add_counts(metrics, "trireme_status_refused_total",
             "Connections and requests that were refused or dropped.", "cause", status.refused);
  return metrics.take();
}

}  // namespace trireme::launch
