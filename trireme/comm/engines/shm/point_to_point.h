// SPDX-License-Identifier: Apache-2.0
// Send and receive. Each pair of ranks has a ring of bytes per direction, through which messages
// flow in the order in which they were sent. A short message has left the sender as soon as it is
// in the ring. A long one flows as the receiver empties the ring. A message without a posted
// receive waits in the ring. It is set aside when a message behind it is asked for.
#pragma once

#include <trireme/comm/engines/shm/member.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::shm {

/// A running send or receive. Its buffer must stay valid until it is done.
class Transfer {
 public:
  /// Returns whether it has ended, with or without success. Safe from any thread.
  bool is_done() const noexcept { return is_done_.load(std::memory_order_acquire); }
  /// Returns the rank that the message came from. Valid when a receive is done.
  int source() const noexcept { return peer_; }
  /// Returns the failure, or null. Valid when it is done.
  std::exception_ptr error() const noexcept { return error_; }

 private:
  friend class PointToPoint;
  Call call_;
  int peer_ = -1;  // -1 for any rank
  std::int64_t tag_ = 0;
  std::byte* data_ = nullptr;  // only read for a send
  std::size_t bytes_ = 0;
  std::size_t num_moved_ = 0;
  bool has_header_ = false;
  std::atomic<bool> is_done_ = false;
  std::exception_ptr error_;
  std::list<std::function<void()>> then_;  // at most one
};

/// The sends and receives of one rank. Thread-safety: safe.
class PointToPoint {
 public:
  /// A source that stands for any rank.
  static constexpr int kAny = -1;

  explicit PointToPoint(Member& member);

  /// Starts a send, and moves at once what fits into the ring. Throws UsageError unless `peer` is
  /// another rank of the group.
  std::shared_ptr<Transfer> send(const void* data, std::size_t bytes, int peer, std::int64_t tag,
                                 std::string_view label = {});

  /// Starts to receive the first message with that tag from `peer` or kAny. Messages of one sender
  /// are received in the order in which they were sent. The message must have `bytes` bytes, else
  /// the group fails.
  std::shared_ptr<Transfer> receive(void* data, std::size_t bytes, int peer, std::int64_t tag,
                                    std::string_view label = {});

  /// Blocks until the transfer is done, and moves everything meanwhile that can be moved. Other
  /// transfers need not be done first. The deadline counts from this call. Throws CommError.
  void wait(Transfer& transfer);

  /// Calls `then` when the transfer is done. If it is done already, calls it at once, else on the
  /// thread that moves its last byte. May be called once per transfer. `then` must not throw.
  void when_done(Transfer& transfer, std::function<void()> then);

  /// Moves what can be moved without blocking. Returns whether transfers are left.
  bool progress();

  /// Returns whether transfers are left.
  bool is_busy();

  /// Ends the remaining receives with a CommError and takes no more messages from others. Messages
  /// that were sent still flow. For a rank that leaves its group.
  void stop_receiving();

 private:
  struct Header {
    std::int64_t tag;
    std::uint64_t bytes;
    std::uint64_t unused[2];
  };
  // A message that is being received, or that was set aside. It is an element of a list, which
  // moves to another list without memory: so that a message that has left the ring is never lost.
  struct Incoming {
    Header header = {};
    std::shared_ptr<Transfer> transfer;  // null if it is set aside
    std::vector<std::byte> aside;
    std::size_t num_moved = 0;
  };
  struct Peer {
    std::deque<std::shared_ptr<Transfer>> sends;
    std::list<Incoming> incoming;  // at most one
    std::list<Incoming> set_aside;
  };

  // Holds the lock. When it ends, it releases the lock and then calls the functions that have
  // become due.
  class Turn;

  std::shared_ptr<Transfer> start(Kind kind, void* data, std::size_t bytes, int peer,
                                  std::int64_t tag, std::string_view label);
  bool progress_locked();
  bool push(int peer);
  bool pull(int peer);
  bool begin_incoming(int peer, const Header& header);
  void finish_incoming(int peer);
  std::deque<std::shared_ptr<Transfer>>::iterator find_receive(int peer, const Header& header);
  void deliver(const Incoming& message, int peer, Transfer& transfer);
  void check_length(const Transfer& transfer, int peer, std::size_t bytes);
  void finish(Transfer& transfer) noexcept;
  void end(Transfer& transfer) noexcept;
  std::uint64_t peers_with_work() const;
  void copy_in(int peer, std::uint64_t at, const void* from, std::size_t bytes);
  void copy_out(int peer, std::uint64_t at, void* to, std::size_t bytes);
  void break_all(const std::exception_ptr& error);
  void break_receives(const std::exception_ptr& error);
  [[noreturn]] void refuse(int peer, Kind kind, const std::string& why);

  Member& member_;
  const std::size_t capacity_;
  std::mutex mutex_;  // guards everything below
  std::vector<Peer> peers_;
  std::deque<std::shared_ptr<Transfer>> receives_;  // in the order they were posted
  // The error that has ended all transfers. A message may have been sent or received in part then,
  // so that nothing that follows in a ring can be told apart any more.
  std::exception_ptr failure_;
  std::uint32_t sequence_ = 0;
  bool receives_nothing_ = false;
  std::list<std::function<void()>> due_;
};

}  // namespace trireme::shm
