// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/init/reserved_memory.h>

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

namespace trireme::detail {
namespace {

std::size_t page_size() {
  static const auto size = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return size;
}

bool is_resident(char* address, std::size_t bytes) {
  std::vector<unsigned char> pages((bytes + page_size() - 1) / page_size());
  if (::mincore(address, bytes, pages.data()) != 0) return true;
  return std::ranges::any_of(pages, [](unsigned char page) { return (page & 1) != 0; });
}

}  // namespace

ReservedMemory::ReservedMemory(std::size_t bytes) : bytes_(bytes) {
  rlimit limit{};
  // What is reserved would count against a limit, and be missing elsewhere.
  if (bytes == 0 || ::getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur != RLIM_INFINITY) return;
  void* const address = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address != MAP_FAILED) address_ = address;
}

ReservedMemory::~ReservedMemory() {
  if (address_ != nullptr) ::munmap(address_, bytes_);
}

bool ReservedMemory::is_touched() const {
  if (address_ == nullptr) return false;
  constexpr std::size_t kLooked = std::size_t{4} << 20;
  auto* const begin = static_cast<char*>(address_);
  if (is_resident(begin, std::min(bytes_, kLooked))) return true;
  const std::size_t last = (bytes_ - 1) / page_size() * page_size();
  return is_resident(begin + last, 1);
}

}  // namespace trireme::detail
