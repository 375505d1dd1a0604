// SPDX-License-Identifier: Apache-2.0
// Memory that several processes of one host share.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

namespace trireme::shm {

/// Shared memory, mapped. Within one process all handles of the same memory share one mapping, so
/// that threads acting as ranks use the same addresses. Every handle has an open file description
/// of its own, whose locks the kernel drops when its process ends, however it ends.
class Segment {
 public:
  enum class Kind {
    kAnonymous,  ///< a memfd: has no name, and is not limited by the size of /dev/shm
    kNamed,      ///< a file in /dev/shm, for processes that cannot open each other's descriptors
  };

  /// Makes and maps zeroed memory of that many bytes, all of it reserved now. Throws ConfigError
  /// where there is not enough.
  static Segment create(Kind kind, std::size_t bytes);

  /// Maps what another process made; `address` is its address(). Nothing is mapped, and nothing
  /// that is no memory is opened, unless the file has this user as its owner, the identity that the
  /// address states and the same random number inside. Throws ConfigError where it cannot be opened
  /// or is another one: an address comes from outside, and a process number in it may be that of
  /// another process namespace.
  static Segment open(const std::string& address);

  Segment() = default;

  /// Where the memory is: in /proc of the maker as long as it lives (kAnonymous), or in /dev/shm
  /// until unlink (kNamed).
  const std::string& path() const noexcept { return path_; }

  /// What another process of this host needs to open it, and to know it from any other memory:
  /// path, device, inode, bytes and a random number.
  std::string address() const;

  /// Takes the name away, if it has one; mappings stay.
  void unlink() noexcept;

  std::byte* data() const noexcept;
  std::size_t size() const noexcept;
  explicit operator bool() const noexcept { return mapping_ != nullptr; }

  /// Closes the descriptor: the mapping stays, locks go, and nobody can open it any more.
  void close() noexcept { descriptor_.reset(); }

  /// Locks one byte number of the segment for this handle, to show that its owner lives.
  void lock(int byte) const;
  /// Whether another handle holds the lock of that byte.
  bool is_locked(int byte) const;

  /// Changes in a forked child, which has the mappings of its parent's segments and no locks.
  static int num_forks() noexcept;

 private:
  struct Descriptor;
  struct Mapping;
  struct Name;
  struct Identity;
  static std::shared_ptr<Mapping> map(int fd, const Identity& identity);

  std::shared_ptr<Descriptor> descriptor_;
  std::string path_;
  std::shared_ptr<Mapping> mapping_;
  std::shared_ptr<Name> name_;  // unlinks at last
};

}  // namespace trireme::shm
