// SPDX-License-Identifier: Apache-2.0
// What is known about a run from outside, as plain values, and the forms in which it is shown: a
// page, JSON, metrics of Prometheus and a table. docs/formats/status.md gives the meaning of each
// value.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace trireme::launch {

/// The state of a run.
enum class RunState {
  kForming,  ///< waits for ranks
  kRunning,  ///< all ranks have been started
  kEnding,   ///< the ranks are being ended
  kEnded,    ///< no rank is left
};

/// Returns a state as one word, such as `running`.
const char* text_of(RunState state);

/// One rank.
struct RankStatus {
  int rank = 0;                                  ///< the rank in the world
  std::string host{};                            ///< the name of its host
  std::int64_t process = 0;                      ///< its process id; 0 if it is unknown
  std::string state = "running";                 ///< `running`, or how it has ended
  std::int64_t epoch = 0;                        ///< the epoch; 0 if there are none
  std::int64_t step = 0;                         ///< the last step; 0 if none was reported
  std::int64_t of_steps = 0;                     ///< the number of the last step, if known
  std::optional<double> steps_per_second{};      ///< over the last seconds
  std::optional<double> samples_per_second{};    ///< of all ranks, as this rank counts them
  std::optional<double> tokens_per_second{};     ///< of all ranks, as this rank counts them
  std::optional<double> own_seconds_per_step{};  ///< without waiting for other ranks
  std::optional<double> seconds_since_step{};    ///< the time since it has finished a step
  std::int64_t memory_bytes = 0;                 ///< resident memory; 0 if it is unknown
  bool is_slow = false;                          ///< slower than others by --slow-factor
};

/// One worker: a `trireme worker` with its ranks, or a rank that connects itself.
struct WorkerStatus {
  std::string host{};        ///< the name of its host
  std::string address{};     ///< the address from which it came; empty for `trireme run`
  std::int64_t process = 0;  ///< its process id
  std::string node_id{};     ///< its name; empty if it has none
  int first_rank = 0;        ///< its first rank
  int ranks = 1;             ///< the number of its ranks
};

/// One failure.
struct FailureStatus {
  double time = 0;            ///< seconds since 1970
  int attempt = 0;            ///< the number of restarts before it
  std::optional<int> rank{};  ///< the rank, if one has failed first
  std::string host{};         ///< its host; empty if it is unknown
  int code = 1;               ///< the exit code
  std::string cause{};        ///< in words; may have several lines
};

/// A run.
struct RunStatus {
  std::string run{};                    ///< the name of the run; empty before the world is complete
  std::string program{};                ///< the path of the program; empty if it is unknown
  RunState state = RunState::kForming;  ///< the state
  double began = 0;                     ///< when the run began, in seconds since 1970
  double now = 0;                       ///< the time of this status
  int world_size = 0;                   ///< the number of ranks; wanted ones while the world forms
  int came = 0;                         ///< the ranks that have come
  int spares = 0;                       ///< the workers that are kept as spares
  int restarts = 0;                     ///< the number of restarts so far
  int restarts_allowed = 0;             ///< the number of restarts that are allowed
  std::vector<WorkerStatus> workers{};  ///< by rank
  std::vector<RankStatus> ranks{};      ///< by rank
  std::map<std::string, int> host_failures{};      ///< the failures of hosts that have failed
  std::vector<std::string> excluded_hosts{};       ///< the hosts that may not take part any more
  std::vector<FailureStatus> failures{};           ///< the last ones, the newest last
  std::int64_t failure_count = 0;                  ///< all of them
  std::optional<int> code{};                       ///< the result, if the run has ended
  std::map<std::string, std::int64_t> answered{};  ///< requests for the status, by what was asked
  std::map<std::string, std::int64_t> refused{};   ///< connections for the status, by the cause

  // Of all ranks together:
  std::int64_t epoch = 0;                      ///< the lowest of all ranks
  std::int64_t step = 0;                       ///< the lowest of all ranks
  std::int64_t of_steps = 0;                   ///< the number of the last step; 0 if it is unknown
  std::optional<double> steps_per_second{};    ///< the median of the ranks
  std::optional<double> samples_per_second{};  ///< the median of what the ranks count
  std::optional<double> tokens_per_second{};   ///< the median of what the ranks count
  std::int64_t memory_bytes = 0;               ///< of all ranks
  std::optional<double> expected_end{};        ///< in seconds since 1970
};

/// Returns the status as JSON.
std::string status_json(const RunStatus& status);
/// Returns the status in the text format of Prometheus, version 0.0.4.
std::string status_metrics(const RunStatus& status);
/// Returns the status as one HTML page that needs no other file.
std::string status_page(const RunStatus& status);
/// Returns the status as a table for a terminal.
std::string status_table(const RunStatus& status);

/// Parses what status_json() returns. Throws CommError that says what is wrong.
/// @param json the text.
/// @param source where it came from, for errors.
RunStatus parse_status(const std::string& json, const std::string& source);

}  // namespace trireme::launch
