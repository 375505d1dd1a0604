// SPDX-License-Identifier: Apache-2.0
// An accelerator for tests on machines without one: LibTorch's device PrivateUse1 under the name
// `fake`, four devices whose memory is the processor's. Linking it is enough.
//
// Operators run on the processor, in the devices' own memory, so with its bits. What a real
// accelerator would not do is refused: tensors of two devices in one operator, or of the processor
// beside a device's (but single numbers). So is what would be a race: streams that use the same
// memory without an event between them (machine.h). Copies between devices are ordered as CUDA's
// are; random numbers come from a generator for each device, of the processor's kind.
//
// What it does not do: it saves no time, and streams do not run by themselves; sparse and quantized
// tensors.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Storage.h>
#include <c10/core/Stream.h>
#include <tests/fake_device/machine.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace trireme::testing::fake {

inline c10::Device device(int index) {
  return {c10::kPrivateUse1, static_cast<c10::DeviceIndex>(index)};
}

/// A stream of the calling thread's choice, current while it lives.
class OnStream {
 public:
  explicit OnStream(c10::Stream stream);
  ~OnStream();
  OnStream(const OnStream&) = delete;
  OnStream& operator=(const OnStream&) = delete;

 private:
  c10::Stream before_;
};
c10::Stream new_stream(int index);

/// While it lives, events that are recorded are not reached: the devices look busy.
class Busy {
 public:
  Busy() { Machine::get().hold(); }
  ~Busy() { Machine::get().let_go(); }
  Busy(const Busy&) = delete;
  Busy& operator=(const Busy&) = delete;
};

/// Memory that was let go of while another stream might still use it; empty where all is well.
inline std::vector<std::string> take_races() { return Machine::get().take_races(); }

/// How often the host has waited for a device, by a synchronization, by a copy from or to memory
/// that is not pinned, or for a value.
inline std::uint64_t host_waits() { return Machine::get().host_waits(); }

inline std::size_t bytes_on(int index) {
  return Machine::get().bytes_on(static_cast<c10::DeviceIndex>(index));
}

/// Gives a storage of a device so many bytes, and keeps what fits.
void resize(const c10::Storage& storage, std::size_t bytes);

/// The calling thread's current stream of a device.
Place current_place(c10::DeviceIndex index);

}  // namespace trireme::testing::fake
