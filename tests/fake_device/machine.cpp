// SPDX-License-Identifier: Apache-2.0
#include <tests/fake_device/machine.h>

#include <c10/core/impl/alloc_cpu.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <iterator>
#include <sstream>
#include <utility>

namespace trireme::testing::fake {
namespace {

bool is_done(const Progress& progress, Place place, std::uint64_t number) {
  const auto found = progress.find(place);
  return found != progress.end() && found->second >= number;
}

void merge(Progress& into, const Progress& from) {
  for (const auto& [place, number] : from) {
    std::uint64_t& known = into[place];
    known = std::max(known, number);
  }
}

std::uintptr_t address(const void* data) { return reinterpret_cast<std::uintptr_t>(data); }

}  // namespace

std::string describe(Place place) {
  std::ostringstream text;
  text << "stream " << place.stream << " of fake:" << static_cast<int>(place.device);
  return text.str();
}

// Never destroyed: tensors may outlive static objects.
Machine& Machine::get() {
  static Machine& machine = *new Machine;
  return machine;
}

Progress& Machine::known_to(Place place) { return clocks_[place]; }

Machine::Blocks::iterator Machine::find(const void* data) {
  auto after = blocks_.upper_bound(address(data));
  if (after == blocks_.begin()) return blocks_.end();
  const auto block = std::prev(after);
  return address(data) < block->first + block->second.bytes ? block : blocks_.end();
}

void Machine::run(Place place, std::span<const Access> accesses) {
  const std::lock_guard lock(mutex_);
  Progress& known = known_to(place);
  merge(known, host_);
  const std::uint64_t number = ++known[place];
  for (const Access& access : accesses) {
    if (access.bytes == 0) continue;
    const auto block = find(access.data);
    if (block == blocks_.end()) continue;  // the processor's
    check(block->second, {.begin = address(access.data),
                          .end = address(access.data) + access.bytes,
                          .writes = access.writes,
                          .place = place,
                          .number = number});
  }
}

void Machine::check(Block& block, const Record& record) {
  const Progress& known = known_to(record.place);
  for (const Record& earlier : block.records) {
    const bool overlaps = earlier.begin < record.end && record.begin < earlier.end;
    if (!overlaps || !(earlier.writes || record.writes)) continue;
    if (earlier.place == record.place || is_done(known, earlier.place, earlier.number)) continue;
    TORCH_CHECK(false, describe(record.place), record.writes ? " writes " : " reads ",
                record.end - record.begin, " bytes that ", describe(earlier.place),
                earlier.writes ? " writes" : " reads", ", and has not waited for it");
  }
  // What the new access is behind, and covers, can meet no later one that does not meet this one.
  std::erase_if(block.records, [&](const Record& earlier) {
    const bool is_covered = record.begin <= earlier.begin && earlier.end <= record.end;
    return is_covered && (record.writes || (!earlier.writes && earlier.place == record.place));
  });
  block.records.push_back(record);
}

Progress Machine::progress_of(Place place) {
  const std::lock_guard lock(mutex_);
  Progress& known = known_to(place);
  merge(known, host_);
  return known;
}

Progress Machine::progress_of(c10::DeviceIndex device) {
  const std::lock_guard lock(mutex_);
  Progress all = host_;
  for (const auto& [place, known] : clocks_) {
    if (place.device == device) merge(all, known);
  }
  return all;
}

void Machine::wait_on_stream(Place place, const Progress& progress) {
  const std::lock_guard lock(mutex_);
  merge(known_to(place), progress);
}

void Machine::wait_on_host(const Progress& progress) {
  const std::lock_guard lock(mutex_);
  ++num_host_waits_;
  merge(host_, progress);
}

void Machine::see_on_host(const Progress& progress) {
  const std::lock_guard lock(mutex_);
  merge(host_, progress);
}

std::uint64_t Machine::host_waits() {
  const std::lock_guard lock(mutex_);
  return num_host_waits_;
}

Place Machine::new_stream(c10::DeviceIndex device) {
  const std::lock_guard lock(mutex_);
  return {.device = device, .stream = ++last_stream_.at(static_cast<std::size_t>(device))};
}

void* Machine::allocate(Place home, std::size_t bytes) {
  void* const data = on_device(c10::alloc_cpu(bytes));
  const std::lock_guard lock(mutex_);
  blocks_[address(data)] = {.bytes = bytes, .home = home};
  bytes_.at(static_cast<std::size_t>(home.device)) += bytes;
  return data;
}

void Machine::release(void* data) noexcept {
  {
    const std::lock_guard lock(mutex_);
    const auto found = blocks_.find(address(data));
    const Block& block = found->second;
    Progress known = known_to(block.home);
    merge(known, host_);
    // It is not given again before these have done what they were given, and so what they wait for.
    for (const Place place : block.used_on) merge(known, known_to(place));
    for (const Record& record : block.records) {
      if (record.place == block.home || block.used_on.contains(record.place)) continue;
      if (is_done(known, record.place, record.number)) continue;
      races_.push_back(describe(block.home) + " is given memory again of which " +
                       describe(record.place) + (record.writes ? " writes " : " reads ") +
                       std::to_string(record.end - record.begin) + " bytes");
    }
    bytes_.at(static_cast<std::size_t>(block.home.device)) -= block.bytes;
    blocks_.erase(found);
  }
  c10::free_cpu(on_host(data));
}

void Machine::record_use(const void* data, Place place) {
  const std::lock_guard lock(mutex_);
  const auto block = find(data);
  if (block != blocks_.end()) block->second.used_on.insert(place);
}

std::optional<c10::DeviceIndex> Machine::device_of(const void* data) {
  const std::lock_guard lock(mutex_);
  const auto block = find(data);
  if (block == blocks_.end()) return std::nullopt;
  return block->second.home.device;
}

std::size_t Machine::bytes_on(c10::DeviceIndex device) {
  const std::lock_guard lock(mutex_);
  return bytes_.at(static_cast<std::size_t>(device));
}

void Machine::hold() {
  const std::lock_guard lock(mutex_);
  hold_ = ++num_holds_;
}

void Machine::let_go() {
  const std::lock_guard lock(mutex_);
  hold_ = 0;
  let_go_.notify_all();
}

std::uint64_t Machine::current_hold() {
  const std::lock_guard lock(mutex_);
  return hold_;
}

bool Machine::is_held(std::uint64_t hold) {
  const std::lock_guard lock(mutex_);
  return hold != 0 && hold == hold_;
}

void Machine::wait_until_let_go(std::uint64_t hold) {
  std::unique_lock lock(mutex_);
  let_go_.wait(lock, [&] { return hold == 0 || hold != hold_; });
}

std::vector<std::string> Machine::take_races() {
  const std::lock_guard lock(mutex_);
  return std::exchange(races_, {});
}

}  // namespace trireme::testing::fake
