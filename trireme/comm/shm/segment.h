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

  /// Maps what another process made; `path` is its path(). Throws ConfigError where it cannot be
  /// opened.
  static Segment open(const std::string& path);

  Segment() = default;

  /// Where other processes of this host open it, as long as the maker lives (kAnonymous) or until
  /// unlink (kNamed).
  const std::string& path() const noexcept { return path_; }

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
  static std::shared_ptr<Mapping> map(int fd, const std::string& path);

  std::shared_ptr<Descriptor> descriptor_;
  std::string path_;
  std::shared_ptr<Mapping> mapping_;
  std::shared_ptr<Name> name_;  // unlinks at last
};

}  // namespace trireme::shm
