// SPDX-License-Identifier: Apache-2.0
// Segment: memory that several processes of one host share.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

namespace trireme::shm {

/// Mapped shared memory. Within one process all handles of the same memory share one mapping, so
/// threads that act as ranks use the same addresses. Every handle has an open file description of
/// its own. The kernel drops its locks when the process ends, in whatever way.
class Segment {
 public:
  /// The ways to make shared memory.
  enum class Kind {
    kAnonymous,  ///< a memfd: has no name, and is not limited by the size of /dev/shm
    kNamed,      ///< a file in /dev/shm, for processes that cannot open each other's descriptors
  };

  /// What becomes of the bytes of a segment when it is made.
  enum class Filling {
    kReserved,  ///< reserved and mapped at once
    kSparse,    ///< neither: whoever uses a part of the file writes and maps it
  };

  /// Makes `bytes` of zeroed memory. Throws ConfigError if there is not enough. A sparse segment
  /// takes memory only as it is written; ConfigError if the process may not make files of that
  /// length (`ulimit -f`).
  static Segment create(Kind kind, std::size_t bytes, Filling filling = Filling::kReserved);

  /// Maps memory that another process has made; `address` is its address(). An address comes from
  /// outside, and its process number may belong to another process namespace. So the file is
  /// checked first: it must belong to this user, and must have the identity and the random number
  /// that the address states. Throws ConfigError if it cannot be opened or is another file.
  /// @param filling the one that it was made with.
  static Segment open(const std::string& address, Filling filling = Filling::kReserved);

  Segment() = default;

  /// Returns the path of the memory. For kAnonymous it is in /proc of its maker, as long as that
  /// lives. For kNamed it is in /dev/shm, until unlink.
  const std::string& path() const noexcept { return path_; }

  /// Returns what another process of this host needs to open the memory and to identify it: path,
  /// device, inode, number of bytes and a random number.
  std::string address() const;

  /// Removes the name, if it has one. Mappings stay.
  void unlink() noexcept;

  /// Returns where the memory is mapped; null for a sparse segment.
  std::byte* data() const noexcept;
  std::size_t size() const noexcept;
  /// Returns the descriptor of this handle, to write and map parts of a sparse segment.
  int descriptor() const noexcept;
  explicit operator bool() const noexcept { return mapping_ != nullptr; }

  /// Closes the descriptor. The mapping stays, its locks are dropped, and nobody can open the
  /// memory any more.
  void close() noexcept { descriptor_.reset(); }

  /// Locks one byte of the segment for this handle, to show that its owner lives.
  void lock(int byte) const;
  /// Returns whether another handle holds the lock of that byte.
  bool is_locked(int byte) const;

  /// Makes the segments of this process ready for forks now rather than when the first one is made.
  /// A handler of pthread_atfork that is registered afterwards may hold its lock while it closes
  /// segments.
  static void prepare_for_forks();

  /// Returns how often this process was forked from the process that loaded the library. A forked
  /// child has the mappings of its parent's segments but no locks.
  static int num_forks() noexcept;

 private:
  struct Descriptor;
  struct Mapping;
  struct Name;
  struct Identity;
  static std::shared_ptr<Mapping> map(int fd, const Identity& identity, Filling filling);

  std::shared_ptr<Descriptor> descriptor_;
  std::string path_;
  std::shared_ptr<Mapping> mapping_;
  std::shared_ptr<Name> name_;  // unlinks at last
};

}  // namespace trireme::shm
