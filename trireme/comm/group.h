// SPDX-License-Identifier: Apache-2.0
// Group: the ranks that take part in a collective, and the connection of the engine that carries
// it.
#pragma once

#include <trireme/comm/adapter/engine_context.h>

#include <c10/core/DeviceType.h>
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

class DeviceMonitor;
class EngineConnection;
class FlightRecorder;
class Starter;
struct FailureReport;

/// The ranks that communicate with each other. A cheap value: copies share one connection. A group
/// of one rank needs no engine, and every collective works on it.
/// Thread-safety: const methods may be called concurrently. Collectives on one group must start in
/// the same order on every rank, so call them from one thread at a time.
class [[nodiscard]] Group {
 public:
  /// Makes an empty group, to be assigned later. Collectives and models throw UsageError for it.
  [[nodiscard]] Group();

  /// Returns the group of this process alone, in which a collective only copies its input.
  static Group self();

  /// Makes a group over a connection that exists. `connect` (engine.h) makes the connection and the
  /// group.
  /// @param backend the connection that `engine` has made from `context`.
  [[nodiscard]] Group(c10::intrusive_ptr<c10d::Backend> backend, const Engine& engine,
                      const EngineContext& context);

  /// Lets `carrier` carry tensors on accelerators. `connect` calls it once, before the group is
  /// used.
  /// @param carrier a group of the same ranks over an engine for accelerators.
  void set_device_carrier(const Group& carrier);

  /// Returns whether this group was default-constructed and never assigned.
  bool is_empty() const noexcept;

  /// Returns the rank of this process in the group; -1 if it does not belong to the group.
  int rank() const noexcept;
  /// Returns the number of ranks.
  int size() const noexcept;
  /// Returns the name that messages give the group, such as `world`.
  const std::string& name() const noexcept;

  /// Returns the name of the engine, such as `gloo`; `none` for a group of one rank.
  std::string engine() const;

  /// Returns the group that carries tensors on devices of that type. It has the same ranks and an
  /// engine of its own. Returns this group if the engine of CPU tensors carries them too, or if
  /// they are copied through the memory of the host (`stages`).
  const Group& carrier(at::DeviceType device) const noexcept;

  /// Returns whether tensors on devices of that type are copied to the memory of the host, carried
  /// by the engine of CPU tensors, and copied back.
  bool stages(at::DeviceType device) const noexcept;

  /// Returns the order in which the engine adds the contributions of the ranks. With two ranks,
  /// every engine that adds each pair once adds in rank order, because IEEE addition commutes.
  SummationOrder summation_order() const noexcept;

  /// Returns the deadline of each operation.
  std::chrono::milliseconds timeout() const noexcept;

  /// Returns a group of some ranks of this one. Collective over all ranks of this group, members or
  /// not: each must pass the same list. A rank that is not in the list gets a group with rank -1,
  /// whose collectives throw UsageError.
  /// @param ranks ranks of this group. The rank in the new group is the place in the list.
  /// @throws UsageError if the list is empty, or if a rank is twice in it or not in this group.
  Group subgroup(std::span<const int> ranks) const;

  /// Returns the c10d backend, for code that uses the interface of c10d; null for a group of one
  /// rank. The group holds the backend itself, because a call through c10d::ProcessGroup costs 1 us
  /// more per collective.
  const c10::intrusive_ptr<c10d::Backend>& backend() const noexcept;

  /// Returns the connection of an engine of Trireme. Null for the engines of LibTorch (Gloo, NCCL)
  /// and for a group of one rank.
  EngineConnection* connection() const noexcept;

  /// Ends the group and its device carrier for good. Operations that wait and later calls throw
  /// CommError. The error contains `reason` on all ranks that the engine reaches. If several ranks
  /// call this, the first reason counts. Not collective.
  void abort(const std::string& reason) const;

  /// Returns the shared-memory engine if it carries this group, else null. Its blocking calls take
  /// plain pointers and do not use c10d.
  shm::Communicator* shared_memory() const noexcept;

  /// Returns whether a watchdog observes the other ranks when an operation takes long. False with
  /// shared memory, which does so itself.
  bool is_watched() const noexcept;

  /// Returns the record of the operations that c10d engines carry. The shared-memory engine keeps
  /// its own.
  FlightRecorder& recorder() const noexcept;

  /// Returns the monitor of operations that the host does not wait for. Null unless the engine of
  /// this very group is one for accelerators.
  DeviceMonitor* device_monitor() const noexcept;

  /// Writes the recorded operations of this rank and `error` to a file if the environment asks for
  /// a dump (TRIREME_DUMP). Never throws.
  void dump(const std::string& error) const;

  /// Explains a failed operation of an engine other than shared memory. Writes a dump, asks the
  /// other ranks what they did, and finds the rank that held up this one. Never throws.
  /// @param number the sequence number of the collective; 0 for a message.
  FailureReport report_failure(const std::string& error, std::uint64_t number) const;

  /// Counts one more collective of this group and returns its number. The number is equal on all
  /// ranks, and error messages show it.
  std::uint64_t next_sequence_number() const noexcept;
  /// Counts one more send or receive of this rank and returns its number.
  std::uint64_t next_message_number() const noexcept;

 private:
  friend World trireme::init(const InitOptions& options);  // which gives the same group again
  friend class Starter;
  struct State;
  /// Returns this group as a value that does not keep the connection open.
  Group unowned() const;
  /// Returns which rank of the group has ended; empty if none has.
  std::string find_ended_rank() const;
  static void dump(const State& state, const std::string& error);
  static void dump_all();
  std::shared_ptr<State> state_;
};

/// Throws UsageError if `group` is empty.
/// @param user the name of what was given the group, such as `DataParallel`.
void check_given(const Group& group, std::string_view user);

}  // namespace trireme::comm
