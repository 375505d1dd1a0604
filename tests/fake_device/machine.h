// SPDX-License-Identifier: Apache-2.0
// What the fake devices are made of: memory, which is the processor's, and streams, which do
// at once what they are given and remember what they would have had to wait for.
//
// The address of memory on a device is not that of the processor: code of the host that reads or
// writes there ends by a signal, as it does with CUDA.
//
// A stream counts what it was given. It knows how far the other streams are that it has waited
// for (a vector clock: Mattern, 1989): by events, by what the host has waited for before it gave
// the stream more. Every access to memory is compared with earlier ones to the same bytes by other
// streams: where one of the two writes and the later stream has not waited for the earlier one, it
// would be a race on a device whose streams run by themselves, and is refused.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <array>
#include <compare>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

namespace trireme::testing::fake {

inline constexpr c10::DeviceIndex kDevices = 4;

/// A stream of a device; 0 is the default one.
struct Place {
  c10::DeviceIndex device = 0;
  c10::StreamId stream = 0;
  auto operator<=>(const Place&) const = default;
};

/// Converts between an address of a device and that of the same byte for the processor. A device's
/// has a bit that no address of a process has. Null stays null.
inline void* on_device(void* data) {
  constexpr std::uintptr_t kDeviceBit = std::uintptr_t{1} << 62;
  if (data == nullptr) return data;
  // NOLINTNEXTLINE(performance-no-int-to-ptr): the address is no address of the process
  return reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(data) ^ kDeviceBit);
}
inline void* on_host(void* data) { return on_device(data); }
inline const void* on_host(const void* data) { return on_device(const_cast<void*>(data)); }

/// How many of the things given to each stream are done.
using Progress = std::map<Place, std::uint64_t>;

/// Bytes that an operator reads, or reads and writes.
struct Access {
  const void* data = nullptr;
  std::size_t bytes = 0;
  bool writes = false;
};

/// Thread-safety: safe.
class Machine {
 public:
  static Machine& get();

  /// Gives `place` an operator with these accesses. Throws c10::Error where one is a race, or its
  /// memory is another device's.
  void run(Place place, std::span<const Access> accesses);

  /// What is done when all that `place` was given so far is done.
  Progress progress_of(Place place);
  void wait_on_stream(Place place, const Progress& progress);
  void wait_on_host(const Progress& progress);
  /// The host has seen, without waiting, that this is done.
  void see_on_host(const Progress& progress);
  /// How often the host has waited for a device.
  std::uint64_t host_waits();

  Place new_stream(c10::DeviceIndex device);
  /// What is done when all streams of the device are done.
  Progress progress_of(c10::DeviceIndex device);

  /// Memory of a device, by its address there, for what the stream does from now on. Memory that
  /// was let go of is given again to the same stream, which counts as a race where another one may
  /// still use it.
  void* allocate(Place home, std::size_t bytes);
  void release(void* data) noexcept;
  /// Another stream uses it too: it is not given again before that one has done so far.
  void record_use(const void* data, Place place);
  std::optional<c10::DeviceIndex> device_of(const void* data);
  std::size_t bytes_on(c10::DeviceIndex device);

  /// From now until `let_go`, events that are recorded are not reached.
  void hold();
  void let_go();
  /// Of the hold that is on; 0 where none is.
  std::uint64_t current_hold();
  bool is_held(std::uint64_t hold);
  void wait_until_let_go(std::uint64_t hold);

  /// Races that could not be thrown: memory let go of too early. Forgets them.
  std::vector<std::string> take_races();

 private:
  struct Record {
    std::uintptr_t begin = 0;
    std::uintptr_t end = 0;
    bool writes = false;
    Place place;
    std::uint64_t number = 0;  // among what the place was given
  };
  struct Block {
    std::size_t bytes = 0;
    Place home;
    std::vector<Record> records{};
    std::set<Place> used_on{};
  };
  using Blocks = std::map<std::uintptr_t, Block>;

  // With mutex_ locked.
  Blocks::iterator find(const void* data);
  Progress& known_to(Place place);
  void check(Block& block, const Record& record);

  std::mutex mutex_;                  // guards everything below
  std::map<Place, Progress> clocks_;  // what each stream has done or waited for
  Progress host_;                     // what some thread of the host has waited for
  Blocks blocks_;                     // by address
  std::array<std::size_t, kDevices> bytes_ = {};
  std::array<c10::StreamId, kDevices> last_stream_ = {};
  std::vector<std::string> races_;
  std::uint64_t num_host_waits_ = 0;
  std::uint64_t num_holds_ = 0;
  std::uint64_t hold_ = 0;
  std::condition_variable let_go_;
};

std::string describe(Place place);

}  // namespace trireme::testing::fake
