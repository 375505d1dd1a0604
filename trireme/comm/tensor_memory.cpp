// SPDX-License-Identifier: Apache-2.0
#include <trireme/comm/tensor_memory.h>

#include <trireme/base/error.h>
#include <trireme/base/machine.h>
#include <trireme/base/memory_pool.h>
#include <trireme/comm/engines/shm/shared_pages.h>

#include <c10/core/CPUAllocator.h>
#include <dlfcn.h>
#include <gnu/libc-version.h>
#include <pthread.h>
#include <unistd.h>

#include <memory>
#include <mutex>
#include <optional>
#include <utility>

namespace trireme::comm {
namespace {

// malloc serves smaller allocations as well as the pool would, and there are many of them.
constexpr std::size_t kSmallest = std::size_t{64} << 10;

// Never destroyed, because tensors may be freed after main.
MemoryPool* pool = nullptr;

// Reports its allocations to LibTorch's profiler, as LibTorch's own allocator does.
class PoolAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    void* const data = bytes < kSmallest ? nullptr : pool->allocate(bytes);
    // If there is no memory there either, LibTorch's allocator reports that.
    if (data == nullptr) return c10::GetDefaultCPUAllocator()->allocate(bytes);
    c10::profiledCPUMemoryReporter().New(data, bytes);
    return {data, data, &release, at::kCPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

 private:
  // Also frees memory of LibTorch's allocator, allocated before or since. Some code allocates
  // memory with one allocator and frees it with the one that is set at that time.
  static void release(void* data) {
    if (!pool->owns(data)) return c10::GetDefaultCPUAllocator()->raw_deleter()(data);
    c10::profiledCPUMemoryReporter().Delete(data);
    pool->release(data);
  }
};

const void* object_of(const void* function) {
  Dl_info info{};
  return ::dladdr(function, &info) != 0 ? info.dli_fbase : nullptr;
}

bool is_malloc_of_the_c_library() {
  return object_of(::dlsym(RTLD_DEFAULT, "malloc")) ==
         object_of(reinterpret_cast<const void*>(&::gnu_get_libc_version));
}

void share_pages_of_pool() {
  // Blocks that begin and end within a page of the system would share it with others.
  if (::sysconf(_SC_PAGESIZE) != static_cast<long>(MemoryPool::kAlignment)) return;
  const auto [begin, end] = pool->range();
  auto pages = std::make_shared<shm::SharedPages>(
      shm::SharedPages::Range{begin, end}, [](const void* data, std::size_t bytes) {
        const auto found = pool->whole_pages(data, bytes);
        return shm::SharedPages::Range{found.begin, found.end};
      });
  pool->set_return_pages(
      [pages](MemoryPool::Range range) { pages->discard({range.begin, range.end}); });
  pool->set_released(
      [pages](MemoryPool::Range range) { pages->drop_frozen({range.begin, range.end}); });
  shm::SharedPages::set_of_process(std::move(pages));
}

void make_pool(bool may_share) {
  // Twice the available memory, because fragments leave part of the range unused.
  pool = new MemoryPool(2 * static_cast<std::size_t>(available_memory()));
  // The pool, which calls the pages, is locked before them at a fork: handlers run last to first.
  if (may_share) share_pages_of_pool();
  ::pthread_atfork([] { pool->lock(); }, [] { pool->unlock(); }, [] { pool->unlock(); });
  c10::SetCPUAllocator(new PoolAllocator);
}

TensorMemory decide(std::string_view name) {
  if (name == "libtorch") return {.reason = "tensor memory is 'libtorch'"};
  if (name == "auto") {
    if (c10::GetCPUAllocator() != c10::GetDefaultCPUAllocator()) {
      return {.reason = "the program has given LibTorch an allocator"};
    }
    if (!is_malloc_of_the_c_library()) return {.reason = "malloc is not the C library's"};
  }
  try {
    make_pool(name != "private");
  } catch (const ConfigError& error) {
    if (name != "auto") throw;
    return {.reason = error.what()};
  }
  return {.is_pool = true, .reason = {}};
}

}  // namespace

TensorMemory choose_tensor_memory(std::string_view name) {
  if (name != "auto" && name != "pool" && name != "private" && name != "libtorch") {
    throw ConfigError(join_message("tensor memory (TRIREME_TENSOR_MEMORY) is '", name,
                                   "', expected auto, pool, private or libtorch"),
                      "correct it, or leave it to the default, auto");
  }
  static std::mutex mutex;
  static std::optional<TensorMemory>& decided = *new std::optional<TensorMemory>;
  const std::lock_guard lock(mutex);
  if (!decided) decided = decide(name);
  return *decided;
}

std::shared_ptr<shm::SharedPages> shared_tensor_pages() { return shm::SharedPages::of_process(); }

}  // namespace trireme::comm
