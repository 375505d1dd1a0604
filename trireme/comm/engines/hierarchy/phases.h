// SPDX-License-Identifier: Apache-2.0
// Phases: the phases of one collective, on the thread that runs them: inside the host, across hosts
// and inside again. Each phase blocks until it is done. A failure names the phase.
//
//   host 0: ranks 0 1        host 1: ranks 2 3        all-reduce of [a b], two leaders
//   inside    0 <- a0+a1     2 <- a2+a3               leader 0 of each host holds slice a,
//             1 <- b0+b1     3 <- b2+b3               leader 1 slice b
//   across    0 <-> 2: (a0+a1)+(a2+a3)                1 <-> 3: (b0+b1)+(b2+b3)
//   inside    0 -> 1: a, 1 -> 0: b                    2 -> 3: a, 3 -> 2: b
//
// A large message goes through these phases in parts, several of them at the same time.
#pragma once

#include <trireme/base/error.h>
#include <trireme/comm/adapter/pending_operation.h>
#include <trireme/comm/engines/hierarchy/host_map.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <array>
#include <atomic>
#include <functional>
#include <span>
#include <string>
#include <utility>

namespace trireme::comm {

/// The place of a collective: in the queue, inside the host, between hosts, or over all ranks.
enum class Phase : std::uint8_t { kQueue, kInside, kAcross, kFlat };

/// A collective that runs in phases. Operation::timeout is the deadline of all phases together,
/// counted from the first. Thread-safety: safe.
class PhasedOperation final : public PendingOperation {
 public:
  /// @param describe_phase returns a text that says where a phase takes place.
  PhasedOperation(Operation operation, int rank, std::function<std::string(Phase)> describe_phase)
      : PendingOperation(std::move(operation), rank), describe_phase_(std::move(describe_phase)) {}

  /// Returns a text such as `all-reduce (number 7)`.
  std::string name() const {
    return join_message(name_of(operation().kind), " (number ", operation().number, ")");
  }
  /// Records that a phase begins.
  void enter(Phase phase) noexcept { phase_.store(phase, std::memory_order_relaxed); }
  std::string describe(Phase phase) const { return describe_phase_(phase); }

 protected:
  std::string place() const override { return describe(phase_.load(std::memory_order_relaxed)); }

 private:
  const std::function<std::string(Phase)> describe_phase_;
  std::atomic<Phase> phase_ = Phase::kQueue;  // relaxed: only a message reads it
};

/// The backends that a hierarchy is composed of.
struct HierarchyConnections {
  /// Connects the ranks of this host in rank order. Null if this rank is alone on its host.
  c10::intrusive_ptr<c10d::Backend> inside;
  /// Connects the leaders with this rank's number, in host order. Null if this rank does not lead,
  /// or if there is one host.
  c10::intrusive_ptr<c10d::Backend> across;
  /// Connects all ranks, for data that goes from one rank to another. Null if there is one host.
  c10::intrusive_ptr<c10d::Backend> flat;
};

/// Memory between phases, which is kept from one collective to the next. Not thread-safe.
class Scratch {
 public:
  enum Slot {
    kSlice,
    kParts,
    kPiece,
    kOwn,
    kBlock,
    kPacked,
    kUnpacked,
    kFlatPacked,
    kFlatUnpacked,
    kNumSlots
  };

  /// Returns `elements` elements of the slot with unspecified content. Invalidates what the slot
  /// has returned before for the same part.
  at::Tensor take(Slot slot, at::ScalarType dtype, std::int64_t elements, std::size_t part = 0);

 private:
  std::array<std::vector<at::Tensor>, kNumSlots> slots_;  // by part
};

/// The phases of one collective. One function is called, once. Tensors are flat, contiguous and on
/// the CPU; those of exchanges are bytes. Lengths must agree on all ranks, as for every collective.
class Phases {
 public:
  /// @param one_leader_below messages with fewer bytes are carried by one leader.
  Phases(const HostMap& hosts, int rank, HierarchyConnections connections,
         std::int64_t one_leader_below, Scratch& scratch, PhasedOperation& work);

  // Reductions (hierarchical_reductions.cpp).
  void all_reduce(const at::Tensor& tensor, const c10d::ReduceOp& op);
  void reduce(const at::Tensor& tensor, int root, const c10d::ReduceOp& op);
  /// @param inputs a tensor for each rank.
  /// @param output as long as the input for this rank.
  /// @param op the reduction.
  void reduce_scatter(std::span<const at::Tensor> inputs, const at::Tensor& output,
                      const c10d::ReduceOp& op);

  // Exchanges of bytes (exchanges.cpp).
  void broadcast(const at::Tensor& bytes, int root);
  /// @param input the tensor of this rank.
  /// @param outputs a tensor for each rank, as long as the input of that rank.
  void all_gather(const at::Tensor& input, std::span<const at::Tensor> outputs);
  /// @param input the tensor of this rank.
  /// @param outputs a tensor for each rank, as long as `input`; empty except on the root.
  /// @param root the rank that gathers.
  void gather(const at::Tensor& input, std::span<const at::Tensor> outputs, int root);
  /// @param inputs a tensor for each rank, as long as `output`; empty except on the root.
  /// @param output the tensor of this rank.
  /// @param root the rank that scatters.
  void scatter(std::span<const at::Tensor> inputs, const at::Tensor& output, int root);
  /// @param inputs a tensor for each rank.
  /// @param outputs a tensor for each rank. Lengths may differ, but must be equal on both sides.
  void all_to_all(std::span<const at::Tensor> inputs, std::span<const at::Tensor> outputs);
  void barrier();

 private:
  using Works = std::vector<c10::intrusive_ptr<c10d::Work>>;

  /// Runs operations over the backend of a phase, within the remaining time.
  void run(Phase phase, const Operation& operation) { run(phase, std::span(&operation, 1)); }
  void run(Phase phase, std::span<const Operation> operations);
  Works begin(Phase phase, std::span<const Operation> operations, bool is_async = true);
  Works begin(Phase phase, const Operation& operation) {
    return begin(phase, std::span(&operation, 1));
  }
  void finish(Phase phase, const Works& works);
  [[noreturn]] void fail(Phase phase, const std::exception& cause) const;
  int rank_of(Phase phase, int rank_in_phase) const;
  std::chrono::milliseconds remaining() const;

  int count_leaders(std::int64_t bytes) const;
  bool leads(int count) const noexcept { return local_ < count; }
  /// Returns the leader that carries an operation with a root: the root itself if it leads, else
  /// the first leader.
  int leader_for(int root) const;

  // Parts of several collectives.
  void broadcast_inside(const at::Tensor& bytes, int local_root);
  void share(const at::Tensor& whole, Slices slices, const at::Tensor& piece);
  at::Tensor reduce_to_leaders(const at::Tensor& tensor, Slices slices, const c10d::ReduceOp& op,
                               std::size_t part);

  /// A part of an all-reduce in progress.
  struct Part {
    at::Tensor tensor;
    Slices slices;
    std::size_t index = 0;
    at::Tensor slice = {};     // on leaders, what they carry
    at::Tensor received = {};  // the slices of all hosts, including this one
    at::Tensor gathered = {};  // the slice, from the pieces that each leader reduced
    bool folds_all = false;    // true if each leader reduces the whole slice
    Works works = {};
  };
  void begin_exchange(Part& part);
  void fold_exchanged(Part& part, const c10d::ReduceOp& op);
  void deliver(Part& part);
  Works begin_all_gather_across(const at::Tensor& output, const at::Tensor& input);
  std::int64_t length_of_piece(std::int64_t length, int host) const;

  const HostMap& hosts_;
  const int rank_;
  const int host_;
  const int local_;
  const int local_size_;
  const int num_hosts_;
  const HierarchyConnections connections_;
  const std::int64_t one_leader_below_;
  Scratch& scratch_;
  PhasedOperation& work_;
  const std::chrono::steady_clock::time_point deadline_;
};

/// Returns the memory of a flat, contiguous tensor as bytes.
at::Tensor bytes_of(const at::Tensor& tensor);

/// Copies between flat tensors of equal size that do not overlap. Runs on the calling thread only,
/// while at::copy_ would start a team of OpenMP threads.
void copy_bytes(const at::Tensor& to, const at::Tensor& from);

}  // namespace trireme::comm
