// SPDX-License-Identifier: Apache-2.0
// Makes tensors before and after init(), and prints where init() lets LibTorch take their memory
// and how much memory the process has beside that of its tensors.
#include <trireme/comm/collectives.h>
#include <trireme/comm/engines/shm/shared_pages.h>
#include <trireme/comm/tensor_memory.h>
#include <trireme/comm/world.h>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/alignment.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

namespace {

class Counted final : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void* /*data*/, std::int64_t bytes, std::size_t /*allocated*/,
                         std::size_t /*reserved*/, c10::Device /*device*/) override {
    now += bytes;
  }
  bool memoryProfilingEnabled() const override { return true; }
  std::int64_t now = 0;
};

void check(bool holds, const char* what) {
  if (holds) return;
  std::cerr << "not so: " << what << '\n';
  std::_Exit(1);
}

bool is_aligned(const at::Tensor& tensor) {
  return reinterpret_cast<std::uintptr_t>(tensor.data_ptr()) % c10::gAlignment == 0;
}

void check_sizes() {
  for (const std::int64_t count : {1, 3, 1000, 100'000, 3'000'001}) {
    const at::Tensor ones = at::ones({count});
    check(is_aligned(ones), "tensors are aligned");
    check(ones.sum().item<float>() == static_cast<float>(count), "memory holds what is written");
  }
  at::Tensor grows = at::ones({0});
  check(grows.numel() == 0, "a tensor of nothing");
  grows.resize_({100});
  grows.fill_(2);
  check(grows.sum().item<float>() == 200, "a tensor that grows");
}

void check_reports() {
  const auto counted = std::make_shared<Counted>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, counted);
  {
    const at::Tensor tensor = at::empty({1 << 18});
    check(counted->now == 1 << 20, "LibTorch's profiler is told of what is taken");
  }
  check(counted->now == 0, "LibTorch's profiler is told of what is given back");
}

void check_other_threads_and_processes() {
  std::vector<at::Tensor> made(8);
  for (at::Tensor& tensor : made) std::thread([&] { tensor = at::ones({10'000}); }).join();
  std::thread([&] { made.clear(); }).join();
  const pid_t child = ::fork();
  if (child == 0) std::_Exit(at::ones({100'000}).sum().item<float>() == 100'000 ? 0 : 1);
  int status = 0;
  check(::waitpid(child, &status, 0) == child && status == 0, "a forked process makes tensors");
}

// Some take memory by whatever allocator is there, and give it back by the one that is there then.
void check_lookups() {
  for (const std::size_t bytes : {std::size_t{100}, std::size_t{1} << 20}) {
    void* const own = c10::GetDefaultCPUAllocator()->raw_allocate(bytes);
    c10::GetCPUAllocator()->raw_deallocate(own);
    void* const now = c10::GetCPUAllocator()->raw_allocate(bytes);
    c10::GetCPUAllocator()->raw_deallocate(now);
  }
}

void check_refused(std::int64_t bytes, const char* what) {
  try {
    at::empty({bytes / 4});
    check(false, what);
  } catch (const c10::Error&) {  // NOLINT(bugprone-empty-catch): that is it
  }
}

void check_too_much() {
#ifndef __SANITIZE_ADDRESS__  // which ends the program
  check_refused(std::int64_t{1} << 60, "memory of an exabyte is refused");
  int promises_all = 0;
  std::ifstream("/proc/sys/vm/overcommit_memory") >> promises_all;
  if (promises_all == 1) return;
  const std::int64_t all = std::int64_t{::sysconf(_SC_PHYS_PAGES)} * ::sysconf(_SC_PAGESIZE);
  check_refused(all + all / 2, "more than the machine has is refused, not given and taken back");
#endif
}

std::int64_t resident_bytes() {
  std::ifstream pages("/proc/self/statm");
  std::int64_t all = 0;
  std::int64_t resident = 0;
  pages >> all >> resident;
  return resident * ::sysconf(_SC_PAGESIZE);
}

// As micro-batches do it: activations of a few sizes are kept for a while, and between them larger
// ones come and go. Returns the most that the process took for them, over the most that they were.
double memory_for_each_byte() {
  const std::int64_t before = resident_bytes();
  std::int64_t most = 0;
  std::int64_t most_resident = 0;
  std::vector<at::Tensor> kept;
  for (int round = 0; round < 40; ++round) {
    for (int i = 0; i < 5; ++i) {
      for (const std::int64_t count : {20'000, 60'000, 80'000, 20'100}) {
        kept.push_back(at::ones({count}));
        const at::Tensor passing = at::ones({2 * count});
      }
    }
    std::int64_t bytes = 0;
    for (const at::Tensor& tensor : kept) bytes += static_cast<std::int64_t>(tensor.nbytes());
    most = std::max(most, bytes);
    most_resident = std::max(most_resident, resident_bytes() - before);
    if (round % 4 == 3) kept.erase(kept.begin(), kept.begin() + 60);
  }
  return static_cast<double>(most_resident) / static_cast<double>(most);
}

// Tensors that collectives use again and again are used in place: whole, in parts, and transposed.
// Returns what became of their memory.
std::string check_collectives(const trireme::World& world) {
  namespace comm = trireme::comm;
  if (world.size == 1) return "";
  const auto pages = comm::shared_tensor_pages();
  at::Tensor whole = at::empty({2, 300'001});
  const at::Tensor part = whole.narrow(0, 1, 1);
  const int sum_of_ranks = world.size * (world.size + 1) / 2;
  const auto sum = static_cast<float>(sum_of_ranks);
  const auto all_are = [](const at::Tensor& tensor, float value) {
    return tensor.eq(value).all().item<bool>();
  };
  for (int call = 0; call < 20; ++call) {
    whole.fill_(world.rank + 1);
    comm::all_reduce(whole, world.group);
    check(all_are(whole, sum), "an all-reduce of a whole tensor");
    part.fill_(world.rank + 1);
    comm::all_reduce(part, world.group);
    check(all_are(whole, sum), "an all-reduce of a part of a tensor");
    at::Tensor transposed = at::full({1000, 2}, world.rank + 1, at::kFloat).t().repeat({200, 1});
    comm::all_reduce(transposed.t(), world.group);
    check(all_are(transposed, sum), "an all-reduce of a transposed tensor");
    auto pending =
        comm::all_reduce_async(at::full({300'000}, world.rank + 1, at::kFloat), world.group);
    const at::Tensor next = at::full({300'000}, -1.0F);
    pending.wait();
    check(all_are(next, -1), "a tensor beside one that only its all-reduce holds");
  }
  if (!pages) return ", nothing shared";
  return pages->shared_bytes() >= whole.nbytes() ? ", used in place" : ", copied";
}

}  // namespace

int main() try {
  at::set_num_threads(1);  // threads of OpenMP do not survive a fork
  const at::Tensor before = at::ones({50'000});
  const trireme::World world = trireme::init();
  const auto memory = trireme::comm::choose_tensor_memory("auto");  // what init() has chosen
  check(memory.is_pool == (c10::GetCPUAllocator() != c10::GetDefaultCPUAllocator()),
        "the allocator is that which is named");
  const double for_each_byte = memory_for_each_byte();
  check_sizes();
  check_reports();
  check_other_threads_and_processes();
  check_too_much();
  check_lookups();
  const std::string in_place = check_collectives(world);
  check(before.sum().item<float>() == 50'000, "tensors made before keep their memory");
  std::cout << "rank " << world.rank << ": "
            << (memory.is_pool ? "a pool" : "LibTorch's own, because " + memory.reason) << ", "
            << for_each_byte << " of what tensors need" << in_place << '\n';
  return 0;
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
