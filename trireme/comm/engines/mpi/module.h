// SPDX-License-Identifier: Apache-2.0
// What trireme_mpi.so offers: MPI behind an interface that needs neither MPI's headers nor
// LibTorch's, so that everything else is built and runs without MPI. Only non-blocking MPI calls
// are made, apart from those that begin, make a communicator, and end.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace trireme::comm::mpi {

/// Elements that MPI can fold; what is only moved travels as bytes.
enum class Element : std::uint8_t {
  kFloat64,
  kFloat32,
  kInt8,
  kInt16,
  kInt32,
  kInt64,
  kUint8,
  kComplex64,
  kComplex128,
};

enum class Fold : std::uint8_t { kSum, kProduct, kMinimum, kMaximum, kAnd, kOr, kXor };

/// Bytes that belong to one rank.
struct Bytes {
  void* data = nullptr;
  std::int64_t size = 0;
};

inline constexpr int kAnyRank = -1;

/// An operation under way. Its buffers must stay until it is done; one that failed or was given up
/// must be leaked together with them, because MPI may still write there.
class Request {
 public:
  virtual ~Request() = default;
  /// Makes progress; returns whether the operation is done. Throws std::runtime_error.
  virtual bool test() = 0;
  /// Rank that a received message came from; valid when done.
  virtual int source() const = 0;
};

/// Ranks that communicate. Collectives must be started in the same order on all of them; roots and
/// peers are ranks of this communicator. Not thread-safe, and like all of MPI here to be called
/// from one thread at a time. Failures throw std::runtime_error with MPI's own text. Any number of
/// elements is fine: what is beyond MPI's `int` is split or described by a derived type.
class Communicator {
 public:
  using Started = std::unique_ptr<Request>;

  virtual ~Communicator() = default;

  virtual Started all_reduce(void* data, std::int64_t count, Element element, Fold fold) = 0;
  /// Only the root's `output` is written; it may be null elsewhere.
  virtual Started reduce(const void* input, void* output, std::int64_t count, Element element,
                         Fold fold, int root) = 0;
  /// `input` holds the slices of all ranks, one after the other, slice r of `counts[r]` elements.
  virtual Started reduce_scatter(const void* input, void* output,
                                 std::span<const std::int64_t> counts, Element element,
                                 Fold fold) = 0;
  virtual Started broadcast(Bytes data, int root) = 0;
  /// `output` receives `sizes[r]` bytes of each rank r, one after the other.
  virtual Started all_gather(const void* input, void* output,
                             std::span<const std::int64_t> sizes) = 0;
  /// `input.size` is the same on all ranks; `output` matters on the root only.
  virtual Started gather(Bytes input, void* output, int root) = 0;
  virtual Started scatter(const void* input, Bytes output, int root) = 0;
  /// `inputs[r]` goes to rank r, `outputs[r]` comes from it; sizes are free. A message that is
  /// shorter or longer than its receiver expects is an error there.
  virtual Started all_to_all(std::span<const Bytes> inputs, std::span<const Bytes> outputs) = 0;
  virtual Started barrier() = 0;

  /// Highest tag that a message may have.
  virtual int highest_tag() const = 0;
  virtual Started send(Bytes data, int to, int tag) = 0;
  /// @param from a rank or kAnyRank.
  virtual Started receive(Bytes data, int from, int tag) = 0;
};

/// MPI in this process. Not thread-safe; outlives everything.
class Module {
 public:
  virtual ~Module() = default;

  /// What this was built for: `Open MPI` or `MPICH` (and what derives from it).
  virtual std::string_view family() const = 0;
  /// Name and version of the library, one line.
  virtual std::string library() const = 0;

  /// Initialises MPI where the program has not. Throws std::runtime_error where the program has,
  /// with less thread support than is needed.
  virtual void begin() = 0;
  virtual int world_rank() const = 0;
  virtual int world_size() const = 0;
  /// Collective over the given ranks of the world, blocking: let them meet beforehand.
  /// @param largest_count elements or bytes that one MPI call may move; tests set less.
  virtual std::unique_ptr<Communicator> connect(std::span<const int> world_ranks,
                                                std::int64_t largest_count = std::int64_t{1}
                                                                             << 30) = 0;

  /// Whether `begin` initialised MPI and nobody has ended it, so that `end` must be called.
  virtual bool must_end() const = 0;
  /// Starts a barrier of the world, so that waiting for the others at the end can be watched.
  virtual std::unique_ptr<Request> rendezvous_world() = 0;
  virtual void end() = 0;
};

/// The one function of the shared object.
inline constexpr const char* kModuleFunction = "trireme_mpi_module";
using ModuleFunction = Module*();

}  // namespace trireme::comm::mpi
