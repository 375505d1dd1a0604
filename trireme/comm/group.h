// SPDX-License-Identifier: Apache-2.0
// Group: the ranks that take part in a collective, and the engine that carries it.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

namespace c10d {
class Backend;
}

namespace trireme {
struct InitOptions;
struct World;
World init(const InitOptions& options);
}  // namespace trireme

namespace trireme::comm {

/// In which order an engine adds the contributions of the ranks, element by element. The numerics
/// contract (docs/design/numerics.md) gives the bits of one process where it is kRank.
enum class SummationOrder {
  kRank,         ///< left fold in rank order, the same bits on every rank and in every run
  kHostNested,   ///< rank order inside each host, then host order
  kUnspecified,  ///< the engine makes no promise beyond equal bits on all ranks
};

/// Ranks that communicate, as a cheap value: copies share one connection. A group of one (the
/// default) needs no engine, and every collective works on it. Thread-safety: const methods may be
/// called concurrently; collectives on one group must be started in the same order on every rank,
/// so from one thread at a time.
class Group {
 public:
  /// A group of one.
  Group();

  /// @param backend the engine's connection, of any c10d kind; its rank and size become the
  /// group's.
  /// @param name appears in error messages, such as `world`.
  /// @param timeout deadline of each collective.
  Group(c10::intrusive_ptr<c10d::Backend> backend, std::string name, SummationOrder order,
        std::chrono::milliseconds timeout);

  int rank() const noexcept;
  int size() const noexcept;
  const std::string& name() const noexcept;

  /// Name of the engine, such as `gloo`; `none` for a group of one.
  std::string engine() const;

  /// For a group of two every engine that adds each pair once gives rank order: IEEE addition
  /// commutes.
  SummationOrder summation_order() const noexcept;

  std::chrono::milliseconds timeout() const noexcept;

  /// The c10d backend, for code that speaks c10d; null for a group of one. Held directly because
  /// calling it through c10d::ProcessGroup costs 1 us more per collective.
  const c10::intrusive_ptr<c10d::Backend>& backend() const noexcept;

  /// Counts the collectives started on this group; error messages name one by this number, equal on
  /// all ranks.
  std::uint64_t next_sequence_number() const noexcept;

 private:
  friend World trireme::init(const InitOptions& options);  // which gives the same group again
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace trireme::comm
