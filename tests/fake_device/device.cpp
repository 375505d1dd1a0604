// SPDX-License-Identifier: Apache-2.0
// What LibTorch asks of an accelerator beside operators: memory, current devices and streams,
// events, generators.
#include <tests/fake_device/device.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <memory>
#include <mutex>
#include <set>

namespace trireme::testing::fake {
namespace {

using c10::DeviceIndex;

thread_local DeviceIndex current_device = 0;
thread_local std::array<c10::StreamId, kDevices> current_streams = {};

DeviceIndex checked(DeviceIndex index) {
  TORCH_CHECK(index >= 0 && index < kDevices, "there is no device fake:", static_cast<int>(index));
  return index;
}

c10::Device device_at(DeviceIndex index) { return {c10::kPrivateUse1, index}; }
// -1 is the current one.
DeviceIndex index_of(c10::Device device) {
  return device.has_index() ? checked(device.index()) : current_device;
}
c10::Stream stream_at(Place place) {
  return c10::Stream(c10::Stream::UNSAFE, device_at(place.device), place.stream);
}
Place place_of(const c10::Stream& stream) {
  return {.device = checked(stream.device_index()), .stream = stream.id()};
}

class Allocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    const DeviceIndex index = current_device;
    if (bytes == 0) return {nullptr, nullptr, &release, device_at(index)};
    void* const data = Machine::get().allocate(current_place(index), bytes);
    report(data, static_cast<std::int64_t>(bytes), index);
    return {data, data, &release, device_at(index)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    std::memcpy(on_host(to), on_host(from), bytes);
  }

 private:
  static void release(void* data) {
    if (data == nullptr) return;
    Machine& machine = Machine::get();
    const DeviceIndex index = *machine.device_of(data);
    const std::size_t before = machine.bytes_on(index);
    machine.release(data);
    report(data,
           static_cast<std::int64_t>(machine.bytes_on(index)) - static_cast<std::int64_t>(before),
           index);
  }
  static void report(void* data, std::int64_t bytes, DeviceIndex index) {
    const std::size_t all = Machine::get().bytes_on(index);
    c10::reportMemoryUsageToProfiler(data, bytes, all, all, device_at(index));
  }
};

// Memory of the processor which a real device could reach.
class PinnedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    c10::DataPtr memory = below().allocate(bytes);
    void* const data = memory.get();
    const std::lock_guard lock(mutex());
    all().insert(data);
    return {data, memory.release_context(), &release, c10::kCPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
  static bool has(const void* data) {
    const std::lock_guard lock(mutex());
    return all().contains(data);
  }

 private:
  static std::mutex& mutex() {
    static std::mutex& one = *new std::mutex;
    return one;
  }
  static std::set<const void*>& all() {  // guarded by mutex()
    static std::set<const void*>& one = *new std::set<const void*>;
    return one;
  }
  static void release(void* data) {
    {
      const std::lock_guard lock(mutex());
      all().erase(data);
    }
    below().raw_deleter()(data);
  }
  // The same one for as long as memory of it is there.
  static c10::Allocator& below() { return *c10::GetDefaultCPUAllocator(); }
};

struct Event {
  Progress progress;
  std::uint64_t hold = 0;
  std::chrono::steady_clock::time_point time;
};

class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return c10::kPrivateUse1; }
  c10::Device exchangeDevice(c10::Device device) const override {
    return device_at(std::exchange(current_device, index_of(device)));
  }
  c10::Device getDevice() const override { return device_at(current_device); }
  void setDevice(c10::Device device) const override { current_device = index_of(device); }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.has_index()) current_device = device.index();
  }
  DeviceIndex deviceCount() const noexcept override { return kDevices; }

  c10::Stream getStream(c10::Device device) const override {
    return stream_at(current_place(index_of(device)));
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return stream_at({.device = index_of(device), .stream = 0});
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return stream_at(Machine::get().new_stream(index_of(device)));
  }
  c10::Stream getNewStream(c10::Device device, int) const override {
    return stream_at(Machine::get().new_stream(index_of(device)));
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const Place place = place_of(stream);
    c10::StreamId& current = current_streams.at(static_cast<std::size_t>(place.device));
    return stream_at({.device = place.device, .stream = std::exchange(current, place.stream)});
  }
  bool queryStream(const c10::Stream& stream) const override {
    Machine& machine = Machine::get();
    machine.see_on_host(machine.progress_of(place_of(stream)));
    return true;
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    Machine& machine = Machine::get();
    machine.wait_on_host(machine.progress_of(place_of(stream)));
  }
  void synchronizeDevice(const DeviceIndex index) const override {
    Machine& machine = Machine::get();
    machine.wait_on_host(machine.progress_of(checked(index)));
  }

  void record(void** event, const c10::Stream& stream, const DeviceIndex index,
              const c10::EventFlag) const override {
    TORCH_CHECK(index == -1 || index == stream.device_index(), "an event of device ",
                static_cast<int>(index), " is recorded on ", stream);
    if (*event == nullptr) *event = std::make_unique<Event>().release();
    Machine& machine = Machine::get();
    *static_cast<Event*>(*event) = {.progress = machine.progress_of(place_of(stream)),
                                    .hold = machine.current_hold(),
                                    .time = std::chrono::steady_clock::now()};
  }
  void block(void* event, const c10::Stream& stream) const override {
    Machine::get().wait_on_stream(place_of(stream), static_cast<const Event*>(event)->progress);
  }
  bool queryEvent(void* event) const override {
    if (event == nullptr) return true;
    if (Machine::get().is_held(static_cast<const Event*>(event)->hold)) return false;
    Machine::get().see_on_host(static_cast<const Event*>(event)->progress);
    return true;
  }
  void synchronizeEvent(void* event) const override {
    Machine::get().wait_until_let_go(static_cast<const Event*>(event)->hold);
    Machine::get().wait_on_host(static_cast<const Event*>(event)->progress);
  }
  void destroyEvent(void* event, const DeviceIndex) const noexcept override {
    const std::unique_ptr<Event> last(static_cast<Event*>(event));
  }
  double elapsedTime(void* first, void* second, const DeviceIndex) const override {
    return std::chrono::duration<double, std::milli>(static_cast<const Event*>(second)->time -
                                                     static_cast<const Event*>(first)->time)
        .count();
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    Machine::get().record_use(data.get(), place_of(stream));
  }
};

class Hooks final : public at::PrivateUse1HooksInterface {
 public:
  explicit Hooks(c10::Allocator& pinned) : pinned_(pinned) {
    for (at::Generator& generator : generators_) generator = at::detail::createCPUGenerator();
  }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return kDevices; }
  void setCurrentDevice(DeviceIndex index) const override { current_device = checked(index); }
  DeviceIndex getCurrentDevice() const override { return current_device; }
  DeviceIndex exchangeDevice(DeviceIndex index) const override {
    return std::exchange(current_device, checked(index));
  }
  DeviceIndex maybeExchangeDevice(DeviceIndex index) const override {
    return index < 0 ? current_device : exchangeDevice(index);
  }
  const at::Generator& getDefaultGenerator(DeviceIndex index) const override {
    return generators_.at(static_cast<std::size_t>(index < 0 ? current_device : checked(index)));
  }
  at::Generator getNewGenerator(DeviceIndex) const override {
    return at::detail::createCPUGenerator();
  }
  at::Device getDeviceFromPtr(void* data) const override {
    const auto index = Machine::get().device_of(data);
    TORCH_CHECK(index.has_value(), data, " is in no memory of a fake device");
    return device_at(*index);
  }
  bool isPinnedPtr(const void* data) const override { return PinnedAllocator::has(data); }
  at::Allocator* getPinnedMemoryAllocator() const override { return &pinned_; }
  void resizePrivateUse1Bytes(const c10::Storage& storage, std::size_t bytes) const override {
    resize(storage, bytes);
  }

 private:
  c10::Allocator& pinned_;
  std::array<at::Generator, kDevices> generators_;
};

// LibTorch keeps what it is given until the process has ended.
[[maybe_unused]] const bool kIsRegistered = [] {
  c10::register_privateuse1_backend("fake");
  c10::SetAllocator(c10::kPrivateUse1, new Allocator);
  c10::impl::registerDeviceGuard(c10::kPrivateUse1, new Guard);
  at::RegisterPrivateUse1HooksInterface(new Hooks(*new PinnedAllocator));
  return true;
}();

}  // namespace

void resize(const c10::Storage& storage, std::size_t bytes) {
  const c10::DeviceGuard guard(storage.device());
  c10::DataPtr memory = c10::GetAllocator(c10::kPrivateUse1)->allocate(bytes);
  const std::size_t kept = std::min(bytes, storage.nbytes());
  if (kept > 0) std::memcpy(on_host(memory.get()), on_host(storage.data()), kept);
  storage.set_data_ptr_noswap(std::move(memory));
  storage.set_nbytes(bytes);
}

Place current_place(DeviceIndex index) {
  return {.device = index, .stream = current_streams.at(static_cast<std::size_t>(index))};
}

c10::Stream new_stream(int index) {
  return stream_at(Machine::get().new_stream(static_cast<DeviceIndex>(index)));
}

OnStream::OnStream(c10::Stream stream) : before_(Guard().exchangeStream(stream)) {}
OnStream::~OnStream() { Guard().exchangeStream(before_); }

}  // namespace trireme::testing::fake
