// SPDX-License-Identifier: Apache-2.0
// Send and receive: each pair of ranks has a ring of bytes per direction, through which messages
// flow in the order in which they were sent. A short message is gone from the sender as soon as it
// lies in the ring; a long one flows as the receiver drains it. A message whose receive has not
// been posted waits in the ring, and is set aside when another one behind it is asked for.
#pragma once

#include <trireme/comm/engines/shm/member.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::shm {

/// A send or receive under way. Its buffer must stay until it is done.
class Transfer {
 public:
  /// Whether it has ended, well or badly. Safe from any thread.
  bool is_done() const noexcept { return is_done_.load(std::memory_order_acquire); }
  /// The rank that the message came from; valid when a receive is done.
  int source() const noexcept { return peer_; }
  /// What went wrong; null when it ended well. Valid when it is done.
  std::exception_ptr error() const noexcept { return error_; }

 private:
  friend class PointToPoint;
  Call call_;
  int peer_ = -1;  // -1: any
  std::int64_t tag_ = 0;
  std::byte* data_ = nullptr;  // of a send: only read
  std::size_t bytes_ = 0;
  std::size_t num_moved_ = 0;
  bool has_header_ = false;
  std::atomic<bool> is_done_ = false;
  std::exception_ptr error_;
  std::function<void()> then_;
};

/// Thread-safety: safe.
class PointToPoint {
 public:
  /// From any rank.
  static constexpr int kAny = -1;

  explicit PointToPoint(Member& member);

  /// Starts to send; moves what fits at once. Throws UsageError where `peer` is no other rank of
  /// the group.
  std::shared_ptr<Transfer> send(const void* data, std::size_t bytes, int peer, std::int64_t tag,
                                 std::string_view label = {});

  /// Starts to receive the first message of that tag, from `peer` or kAny; messages of one sender
  /// are received in the order they were sent. Its length must be `bytes`, else the group fails.
  std::shared_ptr<Transfer> receive(void* data, std::size_t bytes, int peer, std::int64_t tag,
                                    std::string_view label = {});

  /// Blocks until the transfer is done, moving everything that can be moved meanwhile; others need
  /// not be done before it. The deadline counts from this call. Throws CommError.
  void wait(Transfer& transfer);

  /// Calls `then` when the transfer is done: at once where it is, else on the thread that moves its
  /// last byte. Once for a transfer; `then` must not throw.
  void when_done(Transfer& transfer, std::function<void()> then);

  /// Moves what can be moved; returns whether transfers are left. Never blocks.
  bool progress();

  /// Whether transfers are left.
  bool is_busy();

  /// Ends the receives that are left with a CommError, and takes nothing from others any more; what
  /// was sent still flows. For a rank that leaves its group.
  void stop_receiving();

 private:
  struct Header {
    std::int64_t tag;
    std::uint64_t bytes;
    std::uint64_t unused[2];
  };
  // A message that is being received, or was set aside.
  struct Incoming {
    Header header = {};
    std::shared_ptr<Transfer> transfer;  // null: set aside
    std::vector<std::byte> aside;
    std::size_t num_moved = 0;
    bool is_active = false;
  };
  struct Peer {
    std::deque<std::shared_ptr<Transfer>> sends;
    Incoming incoming;
    std::deque<Incoming> set_aside;
  };

  // Locks, and when it goes calls what has become due meanwhile, without the lock.
  class Turn;

  std::shared_ptr<Transfer> start(Kind kind, void* data, std::size_t bytes, int peer,
                                  std::int64_t tag, std::string_view label);
  bool progress_locked();
  bool push(int peer);
  bool pull(int peer);
  bool begin_incoming(int peer, const Header& header);
  void finish_incoming(int peer);
  std::shared_ptr<Transfer> take_receive(int peer, const Header& header);
  void deliver(const Incoming& message, int peer, Transfer& transfer);
  void check_length(const Transfer& transfer, int peer, std::size_t bytes);
  void finish(Transfer& transfer);
  void end(Transfer& transfer);
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
  std::uint32_t sequence_ = 0;
  bool receives_nothing_ = false;
  std::vector<std::function<void()>> due_;
};

}  // namespace trireme::shm
