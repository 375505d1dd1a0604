// SPDX-License-Identifier: Apache-2.0
// The shared-memory engine: collectives between the processes, or threads, of one host.
//
//     auto group = shm::Communicator::connect(rank, size, store, {.name = "world"});
//     group->all_reduce(data, data, 1000, shm::DataType::kFloat32);
//
// It does not depend on LibTorch. shm_connection.h makes an engine of it.
#pragma once

#include <trireme/comm/engines/shm/allocation.h>
#include <trireme/comm/engines/shm/in_place.h>
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
/// All ranks must call every collective, in the same order and with the same arguments unless noted
/// otherwise. A call blocks until this rank's part is done. `label` says what the operation is for,
/// such as a parameter or a bucket. Messages and the recorder show it. Buffers are ordinary memory,
/// aligned for the type. They may have 0 elements. `output` may be equal to `input` if both have
/// the same length, and may be this rank's piece of it. Other overlaps are not allowed.
///
/// Reductions add in rank order. The result has the same bits on all ranks and in every run.
///
/// Wrong arguments throw UsageError before anything is sent. CommError is thrown if another rank
/// dies, leaves, makes another call or does not come before the deadline. The group cannot be used
/// afterwards, on any rank.
///
/// Thread-safety: safe. Collectives of several threads run one after the other, concurrently with
/// sends and receives. All ranks must start collectives in the same order.
class Communicator {
 public:
  /// Connects the ranks of a group. Collective and blocking. Throws ConfigError if memory cannot be
  /// shared, and CommError that names the ranks that did not come.
  /// @param pages memory of this process that collectives may use in place, or null. They do if all
  /// ranks of the group have such memory.
  static std::shared_ptr<Communicator> connect(int rank, int size, RendezvousStore& store,
                                               Options options,
                                               std::shared_ptr<SharedPages> pages = nullptr);
  /// Finishes collectives and sends first. Receives that nobody waits for are given up. If an
  /// exception unwinds the scope, ends the group for all ranks instead.
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const noexcept { return member_.rank(); }
  int size() const noexcept { return member_.size(); }
  Member& member() noexcept { return member_; }

  /// Reduces `input` element by element over all ranks into `output`.
  void all_reduce(const void* input, void* output, std::size_t count, DataType type,
                  Reduction reduction = {}, std::string_view label = {});
  /// Starts an all-reduce. Calls `then` when it has ended, with the exception that it threw or
  /// null.
  /// A short all-reduce needs no other thread if nothing else is running. It is shown to the other
  /// ranks at once, and reduced by the thread that waits for the job in collectives().
  std::shared_ptr<Job> start_all_reduce(const void* input, void* output, std::size_t count,
                                        DataType type, Reduction reduction, std::string_view label,
                                        std::function<void(std::exception_ptr)> then);
  /// Reduces `input` over all ranks into `output` of rank `root`.
  void reduce(const void* input, void* output, std::size_t count, DataType type,
              Reduction reduction, int root, std::string_view label = {});
  /// Copies `data` of rank `root` to all ranks. `type` is compared between the ranks only, here and
  /// in the following calls except reduce_scatter: these move bytes.
  void broadcast(void* data, std::size_t bytes, int root, std::string_view label = {},
                 DataType type = DataType::kUInt8);
  /// Copies the `input` of each rank r, `bytes[r]` long, to `outputs[r]` of all ranks.
  void all_gather(const void* input, std::span<void* const> outputs,
                  std::span<const std::size_t> bytes, std::string_view label = {},
                  DataType type = DataType::kUInt8);
  /// Copies the inputs like all_gather, but to rank `root` only. The other ranks ignore `outputs`.
  void gather(const void* input, std::span<void* const> outputs, std::span<const std::size_t> bytes,
              int root, std::string_view label = {}, DataType type = DataType::kUInt8);
  /// Copies `inputs[r]` of rank `root` to `output` of rank r. The other ranks ignore `inputs`.
  void scatter(std::span<const void* const> inputs, void* output, std::size_t bytes, int root,
               std::string_view label = {}, DataType type = DataType::kUInt8);
  /// Reduces `input` over all ranks and gives each rank its piece in `output`. `input` holds the
  /// pieces of all ranks one after the other, `counts[r]` elements for rank r.
  void reduce_scatter(const void* input, void* output, std::span<const std::size_t> counts,
                      DataType type, Reduction reduction = {}, std::string_view label = {});
  /// Copies `inputs[r]` to rank r, and receives `outputs[r]` from it. Lengths are in bytes, by
  /// rank. If sender and receiver give different lengths, throws CommError.
  void all_to_all(std::span<const void* const> inputs, std::span<const std::size_t> input_bytes,
                  std::span<void* const> outputs, std::span<const std::size_t> output_bytes,
                  std::string_view label = {}, DataType type = DataType::kUInt8);
  /// Blocks until all ranks have called it.
  void barrier(std::string_view label = {});

  /// Returns the object that starts sends and receives and waits for them. They make progress only
  /// within calls of this class, unless a job of `transfers()` waits for them.
  PointToPoint& point_to_point() noexcept { return point_to_point_; }

  /// Makes registered memory, a block of `bytes` on every rank. All-reduce in place and
  /// reduce-scatter of it copy nothing. That includes a part of it, if all ranks pass the same
  /// part. Collective and blocking. Throws ConfigError on all ranks if there is not enough memory,
  /// and CommError if the ranks ask for different lengths.
  std::shared_ptr<Allocation> allocate(std::size_t bytes);

  /// Returns the queue for asynchronous collectives: `collectives().submit([…] { all_reduce(…);
  /// })`.
  Queue& collectives() noexcept { return collectives_; }
  /// Returns the queue for jobs that wait for sends and receives.
  Queue& transfers() noexcept { return transfers_; }

 private:
  Communicator(Segment segment, const Layout& layout, int rank, Options options,
               std::shared_ptr<SharedPages> pages);

  // Runs one collective. `operation` still lacks its sequence number, which this sets. `arguments`
  // is a digest of the other arguments that must be equal on all ranks.
  template <typename Body>
  void run(Operation operation, std::string_view label, const Body& body,
           std::uint64_t arguments = 0);
  // Returns whether to ask all ranks if their buffers are registered. All ranks come to the same
  // answer.
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
  InPlace in_place_;  // used by the thread that runs in collectives_
  const int num_exceptions_ = std::uncaught_exceptions();
  PointToPoint point_to_point_;
  Queue transfers_{[this](const std::string& reason) { member_.interrupt(reason); }};
  // Runs between the ends of the two queues. From then on this rank starts no collective and
  // receives nothing, and ranks that wait for that are told.
  struct EndOfCollectives {
    Communicator& owner;
    ~EndOfCollectives();
  } end_of_collectives_;
  // Last, because its jobs use the other members.
  Queue collectives_{[this](const std::string& reason) { member_.interrupt(reason); }};
};

}  // namespace trireme::shm
