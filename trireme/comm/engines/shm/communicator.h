// SPDX-License-Identifier: Apache-2.0
// The shared-memory engine: collectives between processes, or threads, of one host.
//
//     auto group = shm::Communicator::connect(rank, size, store, {.name = "world"});
//     group->all_reduce(data, data, 1000, shm::DataType::kFloat32);
//
// It knows nothing of LibTorch; shm_connection.h makes an engine of it.
#pragma once

#include <trireme/comm/engines/shm/allocation.h>
#include <trireme/comm/engines/shm/member.h>
#include <trireme/comm/engines/shm/point_to_point.h>
#include <trireme/comm/engines/shm/queue.h>
#include <trireme/comm/engines/shm/shm_collectives.h>
#include <trireme/comm/engines/shm/shm_rendezvous.h>
#include <trireme/comm/engines/shm/steps.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace trireme::shm {

/// One rank of a group that shares memory.
///
/// Every collective must be called by all ranks, in the same order, with the same arguments where
/// not said otherwise; each blocks until this rank's part is done. `label` says what the operation
/// is for (a parameter, a bucket) in messages and in the recorder. Buffers are ordinary memory of
/// an alignment that fits the type; 0 elements are fine. `output` may be `input`, where both have
/// the same length, or this rank's piece of it; other overlaps are not allowed.
///
/// Reductions fold in rank order: the result has the same bits on all ranks and in every run.
///
/// Throws UsageError for arguments that cannot be (nothing has happened then), and CommError when
/// another rank dies, leaves, calls something else or does not come before the deadline; the group
/// is dead then, on all ranks.
///
/// Thread-safety: safe; collectives of several threads run one after the other, beside sends and
/// receives. All ranks must start collectives in the same order.
class Communicator {
 public:
  /// Collective and blocking. Throws ConfigError where memory cannot be shared, and CommError that
  /// names the ranks that did not come.
  static std::shared_ptr<Communicator> connect(int rank, int size, RendezvousStore& store,
                                               Options options);
  /// Ends what was started: collectives and sends are done first, receives that nobody waits for
  /// are given up. While an exception leaves the scope, ends the group for all ranks instead.
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const noexcept { return member_.rank(); }
  int size() const noexcept { return member_.size(); }
  Member& member() noexcept { return member_; }

  void all_reduce(const void* input, void* output, std::size_t count, DataType type,
                  Reduction reduction = {}, std::string_view label = {});
  /// Starts an all-reduce and, when it has ended, calls `then` with what it threw or null. What is
  /// short is shown to the others at once, where nothing else is under way, and folded by whoever
  /// waits for the job in collectives(): it needs no other thread.
  std::shared_ptr<Job> start_all_reduce(const void* input, void* output, std::size_t count,
                                        DataType type, Reduction reduction, std::string_view label,
                                        std::function<void(std::exception_ptr)> then);
  void reduce(const void* input, void* output, std::size_t count, DataType type,
              Reduction reduction, int root, std::string_view label = {});
  /// This and what follows but for reduce_scatter moves bytes; `type` says of what, for all ranks
  /// to agree on.
  void broadcast(void* data, std::size_t bytes, int root, std::string_view label = {},
                 DataType type = DataType::kUInt8);
  /// `outputs[r]` gets the `bytes[r]` bytes that rank r gives as `input`.
  void all_gather(const void* input, std::span<void* const> outputs,
                  std::span<const std::size_t> bytes, std::string_view label = {},
                  DataType type = DataType::kUInt8);
  /// Like all_gather; `outputs` is read on the root only.
  void gather(const void* input, std::span<void* const> outputs, std::span<const std::size_t> bytes,
              int root, std::string_view label = {}, DataType type = DataType::kUInt8);
  /// `inputs` is read on the root only.
  void scatter(std::span<const void* const> inputs, void* output, std::size_t bytes, int root,
               std::string_view label = {}, DataType type = DataType::kUInt8);
  /// `counts[r]` elements for rank r, one piece after the other in `input`.
  void reduce_scatter(const void* input, void* output, std::span<const std::size_t> counts,
                      DataType type, Reduction reduction = {}, std::string_view label = {});
  /// Lengths in bytes, by peer; a mismatch between sender and receiver is a CommError.
  void all_to_all(std::span<const void* const> inputs, std::span<const std::size_t> input_bytes,
                  std::span<void* const> outputs, std::span<const std::size_t> output_bytes,
                  std::string_view label = {}, DataType type = DataType::kUInt8);
  void barrier(std::string_view label = {});

  /// Starts a send or a receive; wait_for ends it. Both make progress only in calls of this class,
  /// unless a job of `transfers()` waits for them.
  PointToPoint& point_to_point() noexcept { return point_to_point_; }

  /// Makes registered memory: a block of that many bytes on every rank. Collective and blocking.
  /// All-reduce in place and reduce-scatter of (parts of) it, the same on all ranks, copy nothing.
  /// Throws ConfigError on all ranks where there is not enough memory, and CommError where the
  /// ranks ask for different lengths.
  std::shared_ptr<Allocation> allocate(std::size_t bytes);

  /// Where collectives are run asynchronously: `collectives().submit([…] { all_reduce(…); })`.
  Queue& collectives() noexcept { return collectives_; }
  /// The same for waiting until sends and receives are done.
  Queue& transfers() noexcept { return transfers_; }

 private:
  Communicator(Segment segment, const Layout& layout, int rank, Options options);

  // Runs one collective: `operation` is completed by a sequence number.
  // `arguments` is a digest of what else must be the same on all ranks.
  template <typename Body>
  void run(Operation operation, std::string_view label, const Body& body,
           std::uint64_t arguments = 0);
  // Whether it is worth asking all ranks; all come to the same answer.
  bool may_be_registered(std::size_t bytes) const noexcept {
    return num_allocations_ > 0 && bytes >= thresholds_.registered_bytes;
  }
  Call begin(Operation operation, std::string_view label, std::uint64_t arguments);
  void check_lengths(Kind kind, std::initializer_list<std::size_t> lengths) const;
  void check_root(Kind kind, int root) const;
  void check_reduction(Kind kind, ReduceOp op, DataType type) const;

  Member member_;
  Steps steps_;                 // used by the thread that runs in collectives_
  std::uint32_t sequence_ = 0;  // likewise
  std::uint64_t history_ = 0;   // likewise
  Thresholds thresholds_;
  Allocations allocations_;
  std::uint64_t num_allocations_ = 0;
  const int num_exceptions_ = std::uncaught_exceptions();
  PointToPoint point_to_point_;
  Queue transfers_;
  // Between the ends of the two queues: from here on, who waits for a collective of this rank, or
  // sends to it, does so in vain.
  struct EndOfCollectives {
    Communicator& owner;
    ~EndOfCollectives();
  } end_of_collectives_;
  Queue collectives_;  // last: their jobs use the rest
};

}  // namespace trireme::shm
