// SPDX-License-Identifier: Apache-2.0
// The interface of trireme_mpi.so. It needs the headers of neither MPI nor LibTorch, so everything
// else is built and runs without MPI. Only non-blocking MPI calls are made, apart from those that
// initialise MPI, make a communicator and finalise MPI.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace trireme::comm::mpi {

/// The element types that MPI can reduce. Data that is only moved travels as bytes.
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

/// The reductions.
enum class Fold : std::uint8_t { kSum, kProduct, kMinimum, kMaximum, kAnd, kOr, kXor };

/// A range of bytes that belongs to one rank.
struct Bytes {
  void* data = nullptr;
  std::int64_t size = 0;
};

inline constexpr int kAnyRank = -1;

/// A running operation. Its buffers must stay valid until it is done. If an operation failed or was
/// given up, it must be leaked together with its buffers, because MPI may still write to them.
class Request {
 public:
  virtual ~Request() = default;
  /// Makes progress and returns whether the operation is done. Throws std::runtime_error.
  virtual bool test() = 0;
  /// Returns the rank that a received message came from. Valid when the operation is done.
  virtual int source() const = 0;
};

/// Ranks that communicate. All of them must start collectives in the same order. Roots and peers
/// are ranks of this communicator. Not thread-safe: like all of MPI here, it must be called from
/// one thread at a time. Failures throw std::runtime_error with MPI's own text. Numbers of elements
/// are not limited: those beyond MPI's `int` are split or described by a derived type.
class Communicator {
 public:
  using Started = std::unique_ptr<Request>;

  virtual ~Communicator() = default;

  virtual Started all_reduce(void* data, std::int64_t count, Element element, Fold fold) = 0;
  /// Starts a reduction to the root. Only the root's `output` is written; it may be null elsewhere.
  virtual Started reduce(const void* input, void* output, std::int64_t count, Element element,
                         Fold fold, int root) = 0;
  /// Starts a reduce-scatter. `input` holds the slices of all ranks one after the other; slice r
  /// has `counts[r]` elements.
  virtual Started reduce_scatter(const void* input, void* output,
                                 std::span<const std::int64_t> counts, Element element,
                                 Fold fold) = 0;
  virtual Started broadcast(Bytes data, int root) = 0;
  /// Starts an all-gather. `output` receives `sizes[r]` bytes of each rank r, one after the other.
  virtual Started all_gather(const void* input, void* output,
                             std::span<const std::int64_t> sizes) = 0;
  /// Starts a gather. `input.size` must be equal on all ranks. `output` is used on the root only.
  virtual Started gather(Bytes input, void* output, int root) = 0;
  virtual Started scatter(const void* input, Bytes output, int root) = 0;
  /// Starts an all-to-all. `inputs[r]` goes to rank r, `outputs[r]` comes from it. Sizes may
  /// differ. A message that is shorter or longer than its receiver expects is an error there.
  virtual Started all_to_all(std::span<const Bytes> inputs, std::span<const Bytes> outputs) = 0;
  virtual Started barrier() = 0;

  /// Returns the highest tag that a message may have.
  virtual int highest_tag() const = 0;
  virtual Started send(Bytes data, int to, int tag) = 0;
  /// Starts a receive.
  /// @param from a rank or kAnyRank.
  virtual Started receive(Bytes data, int from, int tag) = 0;
};

/// MPI in this process. Not thread-safe. Never destroyed.
class Module {
 public:
  virtual ~Module() = default;

  /// Returns the family of MPI that this was built for: `Open MPI`, or `MPICH` with its
  /// derivatives.
  virtual std::string_view family() const = 0;
  /// Returns name and version of the library in one line.
  virtual std::string library() const = 0;

  /// Initialises MPI unless the program has done so. Throws std::runtime_error if the program has
  /// initialised it with less thread support than is needed.
  virtual void begin() = 0;
  virtual int world_rank() const = 0;
  virtual int world_size() const = 0;
  /// Makes a communicator of these ranks of the world. Collective over them. Blocks without a
  /// deadline, so let the ranks meet before.
  /// @param largest_count the largest number of elements or bytes that one MPI call may move; tests
  /// set less.
  virtual std::unique_ptr<Communicator> connect(std::span<const int> world_ranks,
                                                std::int64_t largest_count = std::int64_t{1}
                                                                             << 30) = 0;

  /// Returns whether `begin` has initialised MPI and nobody has finalised it, so that `end` must be
  /// called.
  virtual bool must_end() const = 0;
  /// Starts a barrier of the world, so that waiting for the other ranks at the end can be watched.
  virtual std::unique_ptr<Request> rendezvous_world() = 0;
  virtual void end() = 0;
};

/// The name of the only function of the shared object.
inline constexpr const char* kModuleFunction = "trireme_mpi_module";
using ModuleFunction = Module*();

}  // namespace trireme::comm::mpi
