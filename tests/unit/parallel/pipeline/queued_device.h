// SPDX-License-Identifier: Apache-2.0
// A device, as LibTorch's PrivateUse1, whose streams only write down what they are given. All of it
// is run when everything has been written down, in an order of chance that streams and events
// allow. Its memory is used again as soon as it is freed, as that of a caching allocator is by the
// stream that computes. So whatever an event is missing for goes wrong in some order.
#pragma once

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/DeviceType.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace trireme::test {

/// Not thread-safe.
class QueuedDevice {
 public:
  static constexpr auto kType = c10::DeviceType::PrivateUse1;
  static c10::Device device() { return {kType, 0}; }

  static QueuedDevice& get() {
    static QueuedDevice device;
    return device;
  }

  /// Forgets what was written down, and all streams but the first.
  void reset() {
    queues_.clear();
    log.clear();
    num_streams = 0;
    num_events = 0;
    current = 0;
  }

  /// Writes work of the current stream down.
  void give(std::function<void()> work) {
    queues_[current].push_back({.kind = Entry::Kind::kWork, .event = 0, .work = std::move(work)});
  }
  void reach(c10::StreamId stream, int event) {
    log.push_back("stream " + std::to_string(stream) + " reaches " + std::to_string(event));
    queues_[stream].push_back({.kind = Entry::Kind::kReach, .event = event, .work = {}});
  }
  void wait(c10::StreamId stream, int event) {
    log.push_back("stream " + std::to_string(stream) + " waits for " + std::to_string(event));
    queues_[stream].push_back({.kind = Entry::Kind::kWait, .event = event, .work = {}});
  }

  /// Runs what is written down, a copy of it: it may be run again in another order.
  void run(std::uint64_t seed) const {
    std::mt19937_64 random(seed);
    auto queues = queues_;
    std::set<int> reached;
    for (;;) {
      std::vector<c10::StreamId> ready;
      for (const auto& [stream, queue] : queues) {
        const bool waits = !queue.empty() && queue.front().kind == Entry::Kind::kWait &&
                           !reached.contains(queue.front().event);
        if (!queue.empty() && !waits) ready.push_back(stream);
      }
      if (ready.empty()) break;
      auto& queue = queues[ready[random() % ready.size()]];
      const Entry entry = std::move(queue.front());
      queue.pop_front();
      if (entry.kind == Entry::Kind::kReach) reached.insert(entry.event);
      if (entry.kind == Entry::Kind::kWork) entry.work();
    }
    for (const auto& [stream, queue] : queues) {
      if (!queue.empty()) throw std::runtime_error("a stream waits for ever");
    }
  }

  static c10::Stream stream(c10::StreamId id) {
    return c10::Stream(c10::Stream::UNSAFE, device(), id);
  }

  std::vector<std::string> log{};  ///< what streams were told of events
  c10::StreamId current = 0;
  c10::StreamId num_streams = 0;
  int num_events = 0;

 private:
  struct Entry {
    enum class Kind : std::uint8_t { kWork, kReach, kWait };
    Kind kind = Kind::kWork;
    int event = 0;
    std::function<void()> work{};
  };
  std::map<c10::StreamId, std::deque<Entry>> queues_;
};

class QueuedGuard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return QueuedDevice::kType; }
  c10::Device exchangeDevice(c10::Device /*device*/) const override { return getDevice(); }
  c10::Device getDevice() const override { return QueuedDevice::device(); }
  void setDevice(c10::Device /*device*/) const override {}
  void uncheckedSetDevice(c10::Device /*device*/) const noexcept override {}
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  c10::Stream getStream(c10::Device /*device*/) const override {
    return QueuedDevice::stream(QueuedDevice::get().current);
  }
  c10::Stream getNewStream(c10::Device /*device*/, int /*priority*/) const override {
    return QueuedDevice::stream(++QueuedDevice::get().num_streams);
  }
  c10::Stream exchangeStream(c10::Stream other) const override {
    return QueuedDevice::stream(std::exchange(QueuedDevice::get().current, other.id()));
  }
  void record(void** event, const c10::Stream& on, c10::DeviceIndex /*index*/,
              c10::EventFlag /*flag*/) const override {
    auto& device = QueuedDevice::get();
    *event = new int(++device.num_events);
    device.reach(on.id(), device.num_events);
  }
  void block(void* event, const c10::Stream& on) const override {
    QueuedDevice::get().wait(on.id(), *static_cast<int*>(event));
  }
  void destroyEvent(void* event, c10::DeviceIndex /*index*/) const noexcept override {
    delete static_cast<int*>(event);
  }
};

/// Blocks that are freed are the next to be given away. They are never given back: work that is
/// written down reads them.
class QueuedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    auto& free = free_of(bytes);
    void* memory = nullptr;
    if (free.empty()) {
      memory = std::calloc(bytes == 0 ? 1 : bytes, 1);
    } else {
      memory = free.back();
      free.pop_back();
    }
    auto* const block = new Block{memory, bytes};
    return {memory, block, &release, QueuedDevice::device()};
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }

 private:
  struct Block {
    void* memory;
    std::size_t bytes;
  };
  static std::vector<void*>& free_of(std::size_t bytes) {
    static std::map<std::size_t, std::vector<void*>> free;
    return free[bytes];
  }
  static void release(void* context) {
    const auto* const block = static_cast<Block*>(context);
    free_of(block->bytes).push_back(block->memory);
    delete block;
  }
};

struct QueuedHooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex /*index*/) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::Allocator* getPinnedMemoryAllocator() const override {
    return c10::GetDefaultCPUAllocator();
  }
};

namespace queued {

inline at::Tensor empty(at::IntArrayRef sizes, std::optional<at::ScalarType> dtype,
                        std::optional<at::Layout> /*layout*/, std::optional<at::Device> /*device*/,
                        std::optional<bool> /*pinned*/, std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(sizes, c10::GetAllocator(QueuedDevice::kType),
                                   c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   dtype.value_or(at::kFloat), format);
}

inline at::Tensor& set(at::Tensor& tensor, at::Storage storage, std::int64_t offset,
                       at::IntArrayRef sizes, at::IntArrayRef strides) {
  tensor.unsafeGetTensorImpl()->set_storage_keep_dtype(std::move(storage));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, offset);
  return tensor;
}

inline at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool /*non_blocking*/) {
  QueuedDevice::get().give([to = to.mutable_data_ptr(), from = from.const_data_ptr(),
                            bytes = from.nbytes()] { std::memcpy(to, from, bytes); });
  return to;
}

}  // namespace queued

/// Once in a process, before the device is used.
inline void register_queued_device() {
  static QueuedAllocator allocator;
  static QueuedHooks hooks;
  static const bool is_done = [] {
    c10::register_privateuse1_backend("queued");
    c10::SetAllocator(QueuedDevice::kType, &allocator);
    at::RegisterPrivateUse1HooksInterface(&hooks);
    static torch::Library kernels(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1,
                                  __FILE__, __LINE__);
    kernels.impl("empty.memory_format", TORCH_FN(queued::empty));
    kernels.impl("set_.source_Storage_storage_offset", TORCH_FN(queued::set));
    kernels.impl("_copy_from", TORCH_FN(queued::copy_from));
    return true;
  }();
  static_cast<void>(is_done);
}

}  // namespace trireme::test
