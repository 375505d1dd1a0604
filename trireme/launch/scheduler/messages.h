// SPDX-License-Identifier: Apache-2.0
// The messages between a scheduler and its workers, as JSON objects (docs/formats/scheduler.md).
// Everything that a peer sends is checked when it is decoded: types, ranges and lengths.
#pragma once

#include <trireme/launch/status/progress_board.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace trireme::launch {

/// The version of the protocol. Scheduler and workers must have the same one.
inline constexpr int kSchedulerProtocol = 4;

/// The largest number of ranks that one worker may stand for.
inline constexpr int kMostRanksOfWorker = 4096;

/// The largest number of ranks in one message about progress.
inline constexpr std::size_t kMostRanksOfProgress = 256;

/// The first message of a scheduler on each connection.
struct Challenge {
  int protocol = kSchedulerProtocol;  ///< the version of the protocol
  std::string version{};              ///< the version of Trireme
  std::string nonce{};                ///< a random text, new for each connection
  bool needs_secret = false;          ///< true if the scheduler has a secret
};

/// The program of a worker.
struct Program {
  std::string path{};      ///< the path of the executable on its host
  std::int64_t bytes = 0;  ///< the size of the file
  std::string checksum{};  ///< a checksum of the file (program_file.h)
  bool operator==(const Program&) const = default;
};

/// The introduction of a worker.
struct Hello {
  int protocol = kSchedulerProtocol;  ///< the version of the protocol
  std::string version{};              ///< the version of Trireme
  std::string nonce{};                ///< a random text, new for each connection
  std::string host{};                 ///< the host name
  std::string machine{};              ///< a text that is equal for processes of one host only
  int process = 0;                    ///< the process id
  std::string node_id{};              ///< the name that the user gave the worker; may be empty
  int ranks = 1;                      ///< the number of ranks that the worker stands for
  std::optional<int> workers{};       ///< the number of ranks that the worker expects in the world
  std::string run{};                  ///< the run in which it had a place; empty if it is new
  Program program;                    ///< the program of the ranks
};

/// The answer to a worker that takes part once the world is complete.
struct Accepted {
  std::int64_t wait_ms = 0;  ///< the time in milliseconds that is left until the deadline
  bool returns = false;      ///< true if the scheduler is started again should it die
};

/// The place of a worker in the world.
struct Assignment {
  int first_rank = 0;        ///< the rank of the worker, or of the first of its ranks
  int world_size = 1;        ///< the number of ranks in the world
  int first_local_rank = 0;  ///< the same, among the ranks of the worker's host
  int local_world_size = 1;  ///< the number of ranks on the worker's host
  int node_rank = 0;         ///< the number of the worker's host
  int nodes = 1;             ///< the number of hosts
  int store_port = 0;        ///< the port of the store, on the scheduler's host
  std::string run_id{};      ///< the name of the run
  std::string secret{};      ///< the secret of the store; only sent encrypted, otherwise empty
  int restart = 0;           ///< the number of times that the ranks have been started again
  int restarts = 0;          ///< the number of times that they may be
  bool returns = false;      ///< true if the scheduler is started again should it die
};

/// The answer to a worker that does not take part.
struct Refused {
  std::string reason{};      ///< why, with the values concerned
  std::string hint{};        ///< what to do; may be empty
  std::string cause = {};    ///< why in a few words, to count refusals; not sent
  bool is_for_room = false;  ///< true if the worker would fit if there were fewer; not sent
};

/// A worker's message that one of its ranks has ended.
struct RankEnded {
  int rank = 0;            ///< the rank in the world
  int process = 0;         ///< its process id
  int code = 0;            ///< its exit code, or 128 plus the signal that killed it
  std::string how{};       ///< the same in words, such as `exited with code 3`
  std::string log{};       ///< the path of its log on its host; may be empty
  FailureReport report{};  ///< what it has reported of its failure
};

/// What ranks of a worker have reported.
struct Progress {
  std::vector<RankProgress> ranks{};  ///< at most kMostRanksOfProgress
};

/// The request of a scheduler to end all ranks of a worker.
struct EndRequest {
  std::string reason{};       ///< why
  int code = 1;               ///< the exit code of the run
  std::int64_t grace_ms = 0;  ///< the time in milliseconds between SIGTERM and SIGKILL
  bool restarts = false;      ///< true if the worker is to connect again afterwards
};

/// Any message.
using Message =
    std::variant<Challenge, Hello, Accepted, Assignment, Refused, RankEnded, Progress, EndRequest>;

/// Returns a message as JSON. Long texts are shortened.
std::string encode(const Message& message);

/// Parses a message. Throws CommError that says what is wrong with it. Control characters in texts
/// become question marks.
Message decode(std::string_view json);

}  // namespace trireme::launch
