// SPDX-License-Identifier: Apache-2.0
// Group: the ranks that take part in a collective, and the engine that carries it.
#pragma once

#include <trireme/comm/adapter/engine_context.h>

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace c10d {
class Backend;
}

namespace trireme {
struct InitOptions;
struct World;
World init(const InitOptions& options);
}  // namespace trireme

namespace trireme::shm {
class Communicator;
}

namespace trireme::comm {

class EngineConnection;
class FlightRecorder;
struct FailureReport;

/// Ranks that communicate, as a cheap value: copies share one connection. A group of one needs no
/// engine, and every collective works on it. Thread-safety: const methods may be called
/// concurrently; collectives on one group must be started in the same order on every rank, so from
/// one thread at a time.
class [[nodiscard]] Group {
 public:
  /// An empty group, to be assigned later: collectives and models throw UsageError for it.
  [[nodiscard]] Group();

  /// Returns the group of this process alone, in which every collective is a copy.
  static Group self();

  /// @param backend the connection that `engine` made from `context`; `connect` (engine.h) does
  /// both.
  [[nodiscard]] Group(c10::intrusive_ptr<c10d::Backend> backend, const Engine& engine,
                      const EngineContext& context);

  /// Returns whether this group was default-constructed and never assigned.
  bool is_empty() const noexcept;

  /// Rank in this group; -1 where this process does not belong to it.
  int rank() const noexcept;
  int size() const noexcept;
  const std::string& name() const noexcept;

  /// Name of the engine, such as `gloo`; `none` for a group of one.
  std::string engine() const;

  /// For a group of two every engine that adds each pair once gives rank order: IEEE addition
  /// commutes.
  SummationOrder summation_order() const noexcept;

  std::chrono::milliseconds timeout() const noexcept;

  /// Makes a group of some ranks of this one, given as ranks of this group; the new ranks follow
  /// their order. Collective over all ranks of this group, members or not: each must call it with
  /// the same list. On a rank outside the list the result has rank -1, and collectives on it throw
  /// UsageError. Throws UsageError for a rank that is twice in the list or not in this group.
  Group subgroup(std::span<const int> ranks) const;

  /// The c10d backend, for code that speaks c10d; null for a group of one. Held directly because
  /// calling it through c10d::ProcessGroup costs 1 us more per collective.
  const c10::intrusive_ptr<c10d::Backend>& backend() const noexcept;

  /// The engine's connection, where the engine is Trireme's own; null for those of LibTorch (Gloo,
  /// NCCL) and for a group of one.
  EngineConnection* connection() const noexcept;

  /// Ends the group, now and for good: a call that waits, or comes later, throws CommError, with
  /// `reason` where the engine reaches the other ranks. Not collective; the first reason counts.
  void abort(const std::string& reason) const;

  /// The shared-memory engine, where it carries this group: its blocking calls take plain pointers
  /// and need no c10d. Null elsewhere.
  shm::Communicator* shared_memory() const noexcept;

  /// Returns whether the other ranks' processes can be looked at when an operation takes long.
  bool is_watched() const noexcept;

  /// Of the operations that c10d engines carry; the shared-memory engine has its own.
  FlightRecorder& recorder() const noexcept;

  /// Writes what this rank did over a c10d engine, and `error`, where the environment asks for a
  /// dump (TRIREME_DUMP). Never throws.
  void dump(const std::string& error) const;

  /// For the moment when an operation of an engine other than shared memory has failed: dumps, asks
  /// the other ranks what they did and finds the one that held up this one. Never throws.
  /// @param number of the collective; 0 for a message.
  FailureReport report_failure(const std::string& error, std::uint64_t number) const;

  /// Counts the collectives started on this group; error messages name one by this number, equal on
  /// all ranks.
  std::uint64_t next_sequence_number() const noexcept;
  /// Counts the sends and receives of this rank.
  std::uint64_t next_message_number() const noexcept;

 private:
  friend World trireme::init(const InitOptions& options);  // which gives the same group again
  struct State;
  static void dump(const State& state, const std::string& error);
  static void dump_all();
  std::shared_ptr<State> state_;
};

/// Throws UsageError where `group` is empty; `user` is what was given it, such as `DataParallel`.
void check_given(const Group& group, std::string_view user);

}  // namespace trireme::comm
