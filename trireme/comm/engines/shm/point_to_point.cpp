// SPDX-License-Identifier: Apache-2.0
#include <trireme/comm/engines/shm/point_to_point.h>

#include <trireme/base/error.h>
#include <trireme/base/machine.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

namespace trireme::shm {
namespace {

// Messages begin at multiples of this, so that a header never wraps around the end of the ring.
constexpr std::uint64_t kUnit = 32;

std::uint64_t padded(std::uint64_t bytes) { return (bytes + kUnit - 1) / kUnit * kUnit; }

}  // namespace

class PointToPoint::Turn {
 public:
  explicit Turn(PointToPoint& owner) : owner_(owner) {
    // In a forked child the lock may never become free.
    owner.member_.check_process("send or receive");
    owner.mutex_.lock();
  }
  ~Turn() {
    // Called without the lock, because these functions may start transfers.
    std::list<std::function<void()>> due;
    due.swap(owner_.due_);
    owner_.mutex_.unlock();
    for (const auto& then : due) then();
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  PointToPoint& owner_;
};

PointToPoint::PointToPoint(Member& member)
    : member_(member),
      capacity_(member.layout().mailbox_bytes),
      peers_(static_cast<std::size_t>(member.size())) {
  static_assert(sizeof(Header) == kUnit);
}

std::shared_ptr<Transfer> PointToPoint::start(Kind kind, void* data, std::size_t bytes, int peer,
                                              std::int64_t tag, std::string_view label) {
  const bool may_be_any = kind == Kind::kReceive && peer == kAny;
  if (!may_be_any && (peer < 0 || peer >= member_.size() || peer == member_.rank())) {
    throw UsageError(join_message(name_of(kind), " between rank ", member_.rank(), " and rank ",
                                  peer, " of group '", member_.options().name,
                                  "', which has ranks 0 to ", member_.size() - 1),
                     "name another rank of the group");
  }
  auto transfer = std::make_shared<Transfer>();
  transfer->call_ = member_.begin({.kind = kind,
                                   .root = static_cast<std::int8_t>(peer),
                                   .sequence = ++sequence_,
                                   .count = bytes},
                                  label);
  if (failure_) std::rethrow_exception(failure_);
  transfer->peer_ = peer;
  transfer->tag_ = tag;
  transfer->data_ = static_cast<std::byte*>(data);
  transfer->bytes_ = bytes;
  return transfer;
}

std::shared_ptr<Transfer> PointToPoint::send(const void* data, std::size_t bytes, int peer,
                                             std::int64_t tag, std::string_view label) {
  const Turn turn(*this);
  auto transfer = start(Kind::kSend, const_cast<void*>(data), bytes, peer, tag, label);
  peers_[static_cast<std::size_t>(peer)].sends.push_back(transfer);
  progress_locked();
  return transfer;
}

std::shared_ptr<Transfer> PointToPoint::receive(void* data, std::size_t bytes, int peer,
                                                std::int64_t tag, std::string_view label) {
  const Turn turn(*this);
  auto transfer = start(Kind::kReceive, data, bytes, peer, tag, label);
  for (int source = 0; source < member_.size(); ++source) {
    if (peer != kAny && peer != source) continue;
    // A message that arrived before its receive was posted may have been set aside.
    auto& aside = peers_[static_cast<std::size_t>(source)].set_aside;
    const auto message = std::find_if(aside.begin(), aside.end(), [&](const Incoming& candidate) {
      return candidate.header.tag == tag;
    });
    if (message == aside.end()) continue;
    check_length(*transfer, source, message->header.bytes);
    deliver(*message, source, *transfer);
    aside.erase(message);
    return transfer;
  }
  receives_.push_back(transfer);
  progress_locked();
  return transfer;
}

void PointToPoint::wait(Transfer& transfer) {
  if (!transfer.is_done()) {
    Call call = transfer.call_;
    // The deadline counts from this call, not from the start of the transfer.
    call.started = std::chrono::steady_clock::now();
    std::uint64_t peers = 0;
    {
      const Turn turn(*this);
      progress_locked();
      peers = peers_with_work();
    }
    // Every wake-up moves all data that can be moved. Otherwise two ranks with full rings could
    // wait for each other.
    const auto ready = [&] {
      progress();
      return transfer.is_done();
    };
    if (!transfer.is_done()) {
      try {
        member_.wait_for_any(peers, call, ready);
      } catch (...) {
        const Turn turn(*this);
        break_all(std::current_exception());
      }
    }
  }
  if (transfer.error_) std::rethrow_exception(transfer.error_);
}

void PointToPoint::when_done(Transfer& transfer, std::function<void()> then) {
  const Turn turn(*this);
  if (transfer.is_done()) {
    due_.push_back(std::move(then));
  } else {
    transfer.then_.push_back(std::move(then));
  }
}

bool PointToPoint::progress() {
  const Turn turn(*this);
  progress_locked();
  return peers_with_work() != 0;
}

bool PointToPoint::is_busy() {
  const Turn turn(*this);
  return peers_with_work() != 0;
}

void PointToPoint::stop_receiving() {
  {
    const Turn turn(*this);
    receives_nothing_ = true;
    break_receives(std::make_exception_ptr(
        CommError(join_message("group '", member_.options().name, "' was dropped on rank ",
                               member_.rank(), " of ", member_.size(),
                               " before a message came that it had started to receive"),
                  "keep the group, and wait for what receive returns",
                  {.rank = member_.rank(), .operation = "receive"})));
  }
  member_.wake_own();
}

bool PointToPoint::progress_locked() {
  if (failure_) return false;
  bool has_moved = false;
  try {
    for (int peer = 0; peer < member_.size(); ++peer) {
      if (peer == member_.rank()) continue;
      has_moved = push(peer) || has_moved;
      has_moved = pull(peer) || has_moved;
    }
  } catch (...) {
    break_all(std::current_exception());
  }
  if (has_moved) member_.wake();
  return has_moved;
}

bool PointToPoint::push(int peer) {
  auto& sends = peers_[static_cast<std::size_t>(peer)].sends;
  if (sends.empty()) return false;
  Mailbox& mailbox = member_.mailbox(member_.rank(), peer);
  std::uint64_t written = mailbox.written.load(std::memory_order_relaxed);
  const std::uint64_t start = written;
  const std::uint64_t read = mailbox.read.load(std::memory_order_seq_cst);
  // The peer writes this counter, so it is checked before it is used.
  if (written - read > capacity_) refuse(peer, Kind::kSend, "has read more than it was sent");
  const std::uint64_t end = read + capacity_;
  while (!sends.empty() && written < end) {
    Transfer& transfer = *sends.front();
    if (!transfer.has_header_) {
      if (end - written < sizeof(Header)) break;
      const Header header = {.tag = transfer.tag_, .bytes = transfer.bytes_, .unused = {}};
      copy_in(peer, written, &header, sizeof(header));
      written += sizeof(header);
      transfer.has_header_ = true;
    }
    const std::uint64_t length =
        std::min<std::uint64_t>(end - written, transfer.bytes_ - transfer.num_moved_);
    copy_in(peer, written, transfer.data_ + transfer.num_moved_, length);
    transfer.num_moved_ += length;
    written += length;
    if (transfer.num_moved_ < transfer.bytes_) break;
    written = padded(written);
    finish(transfer);
    sends.pop_front();
  }
  if (written != start) mailbox.written.store(written, std::memory_order_seq_cst);
  return written != start;
}

bool PointToPoint::pull(int peer) {
  if (receives_nothing_) return false;
  std::list<Incoming>& incoming = peers_[static_cast<std::size_t>(peer)].incoming;
  Mailbox& mailbox = member_.mailbox(peer, member_.rank());
  std::uint64_t read = mailbox.read.load(std::memory_order_relaxed);
  const std::uint64_t start = read;
  const std::uint64_t end = mailbox.written.load(std::memory_order_seq_cst);
  // The peer writes this counter, so it is checked before it is used.
  if (end - read > capacity_) {
    refuse(peer, Kind::kReceive, "has sent more at once than its mailbox holds");
  }
  // Publishes what has been read, also if an exception is thrown, so that nothing is read twice.
  struct Publish {
    ~Publish() {
      if (read != start) counter.store(read, std::memory_order_seq_cst);
    }
    std::atomic<std::uint64_t>& counter;
    const std::uint64_t& read;
    const std::uint64_t start;
  };
  const Publish publish{.counter = mailbox.read, .read = read, .start = start};
  while (read < end) {
    if (incoming.empty()) {
      Header header;
      if (end - read < sizeof(header)) refuse(peer, Kind::kReceive, "has sent less than a header");
      copy_out(peer, read, &header, sizeof(header));
      if (!begin_incoming(peer, header)) break;
      read += sizeof(header);
    }
    Incoming& message = incoming.front();
    const std::uint64_t left = message.header.bytes - message.num_moved;
    const std::uint64_t length = std::min(end - read, left);
    std::byte* to = message.transfer ? message.transfer->data_ : message.aside.data();
    copy_out(peer, read, to + message.num_moved, length);
    message.num_moved += length;
    read += length;
    if (length < left) break;
    read = padded(read);
    finish_incoming(peer);
  }
  return read != start;
}

// Finds a destination for the message at the head of the ring. Returns false if no receive waits
// for a message of this peer.
bool PointToPoint::begin_incoming(int peer, const Header& header) {
  const auto receive = find_receive(peer, header);
  const bool is_expected = receive != receives_.end();
  if (!is_expected && std::none_of(receives_.begin(), receives_.end(), [&](const auto& other) {
        return other->peer_ == kAny || other->peer_ == peer;
      })) {
    return false;
  }
  const auto refuse_to_keep = [&] {
    refuse(peer, Kind::kReceive,
           join_message("sends ", header.bytes, " bytes with tag ", header.tag,
                        is_expected ? ", and there is no memory to take it in"
                                    : ", which nobody here has asked for yet and there is no "
                                      "memory to keep"));
  };
  // The kernel kills a process that uses more memory than there is, so this is checked first. A
  // message that fits the mailbox is too small to check.
  if (!is_expected && header.bytes > capacity_ &&
      header.bytes > static_cast<std::uint64_t>(free_memory())) {
    refuse_to_keep();
  }
  std::list<Incoming> message;
  try {
    message.push_back({.header = header, .transfer = {}, .aside = {}});
    if (!is_expected) message.front().aside.resize(header.bytes);
  } catch (const std::bad_alloc&) {
    refuse_to_keep();
  }
  if (is_expected) {
    message.front().transfer = std::move(*receive);
    receives_.erase(receive);
  }
  peers_[static_cast<std::size_t>(peer)].incoming.swap(message);
  return true;
}

void PointToPoint::finish_incoming(int peer) {
  Peer& from = peers_[static_cast<std::size_t>(peer)];
  std::list<Incoming> finished;
  finished.swap(from.incoming);
  const Incoming& message = finished.front();
  if (message.transfer) {
    message.transfer->peer_ = peer;
    finish(*message.transfer);
  } else if (const auto late = find_receive(peer, message.header); late != receives_.end()) {
    deliver(message, peer, **late);
    receives_.erase(late);
  } else {
    from.set_aside.splice(from.set_aside.end(), finished);
  }
}

// Returns the first receive that takes a message with this header.
std::deque<std::shared_ptr<Transfer>>::iterator PointToPoint::find_receive(int peer,
                                                                           const Header& header) {
  const auto found = std::find_if(receives_.begin(), receives_.end(), [&](const auto& receive) {
    return receive->tag_ == header.tag && (receive->peer_ == kAny || receive->peer_ == peer);
  });
  if (found != receives_.end()) check_length(**found, peer, header.bytes);
  return found;
}

void PointToPoint::deliver(const Incoming& message, int peer, Transfer& transfer) {
  if (!message.aside.empty()) {
    std::memcpy(transfer.data_, message.aside.data(), message.aside.size());
  }
  transfer.peer_ = peer;
  finish(transfer);
}

void PointToPoint::check_length(const Transfer& transfer, int peer, std::size_t bytes) {
  if (transfer.bytes_ == bytes) return;
  member_.fail(peer, transfer.call_,
               join_message("rank ", peer, " sent ", bytes, " bytes with tag ", transfer.tag_,
                            ", and rank ", member_.rank(), " receives ", transfer.bytes_),
               "send and receive must have the same length");
}

void PointToPoint::finish(Transfer& transfer) noexcept {
  member_.end(transfer.call_);
  end(transfer);
}

void PointToPoint::end(Transfer& transfer) noexcept {
  due_.splice(due_.end(), transfer.then_);
  transfer.is_done_.store(true, std::memory_order_release);
}

// Returns the ranks that can advance some transfer of this rank.
std::uint64_t PointToPoint::peers_with_work() const {
  std::uint64_t peers = 0;
  for (std::size_t peer = 0; peer < peers_.size(); ++peer) {
    if (!peers_[peer].sends.empty() || !peers_[peer].incoming.empty()) {
      peers |= std::uint64_t{1} << peer;
    }
  }
  for (const auto& receive : receives_) {
    peers |= receive->peer_ == kAny ? member_.every_rank() & ~(std::uint64_t{1} << member_.rank())
                                    : std::uint64_t{1} << receive->peer_;
  }
  return peers;
}

void PointToPoint::copy_in(int peer, std::uint64_t at, const void* from, std::size_t bytes) {
  if (bytes == 0) return;
  auto* ring = reinterpret_cast<std::byte*>(&member_.mailbox(member_.rank(), peer) + 1);
  // The data may wrap around the end of the ring.
  const std::size_t offset = at % capacity_;
  const std::size_t until_end = std::min(bytes, capacity_ - offset);
  std::memcpy(ring + offset, from, until_end);
  std::memcpy(ring, static_cast<const std::byte*>(from) + until_end, bytes - until_end);
}

void PointToPoint::copy_out(int peer, std::uint64_t at, void* to, std::size_t bytes) {
  if (bytes == 0) return;
  const auto* ring = reinterpret_cast<const std::byte*>(&member_.mailbox(peer, member_.rank()) + 1);
  const std::size_t offset = at % capacity_;
  const std::size_t until_end = std::min(bytes, capacity_ - offset);
  std::memcpy(to, ring + offset, until_end);
  std::memcpy(static_cast<std::byte*>(to) + until_end, ring, bytes - until_end);
}

void PointToPoint::break_all(const std::exception_ptr& error) {
  failure_ = error;
  for (Peer& peer : peers_) {
    for (const auto& transfer : std::exchange(peer.sends, {})) {
      transfer->error_ = error;
      end(*transfer);
    }
  }
  break_receives(error);
}

void PointToPoint::break_receives(const std::exception_ptr& error) {
  const auto end_with_error = [&](const std::shared_ptr<Transfer>& transfer) {
    transfer->error_ = error;
    end(*transfer);
  };
  for (Peer& peer : peers_) {
    for (const Incoming& message : peer.incoming) {
      if (message.transfer) end_with_error(message.transfer);
    }
    peer.incoming.clear();
  }
  for (const auto& transfer : std::exchange(receives_, {})) end_with_error(transfer);
}

void PointToPoint::refuse(int peer, Kind kind, const std::string& why) {
  const Call call{{.kind = kind, .root = static_cast<std::int8_t>(peer)},
                  std::chrono::steady_clock::now(),
                  nullptr};
  member_.fail(peer, call, join_message(member_.name_of_rank(peer), " ", why),
               "receive a message before it is sent, or in smaller pieces; where its memory is "
               "damaged, look for a program that writes out of bounds");
}

}  // namespace trireme::shm
