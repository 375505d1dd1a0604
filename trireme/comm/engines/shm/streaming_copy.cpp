// SPDX-License-Identifier: Apache-2.0
#include <trireme/comm/engines/shm/streaming_copy.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace trireme::shm {

void streaming_copy(void* to, const void* from, std::size_t bytes) {
#if defined(__x86_64__)
  constexpr std::size_t kLine = 64;
  auto* target = static_cast<std::byte*>(to);
  const auto* source = static_cast<const std::byte*>(from);
  const std::size_t misaligned = reinterpret_cast<std::uintptr_t>(target) % kLine;
  const std::size_t head = std::min(bytes, misaligned == 0 ? 0 : kLine - misaligned);
  std::memcpy(target, source, head);
  std::size_t at = head;
  for (; at + kLine <= bytes; at += kLine) {
    const auto* line = reinterpret_cast<const __m128i*>(source + at);
    auto* out = reinterpret_cast<__m128i*>(target + at);
    const __m128i a = _mm_loadu_si128(line);
    const __m128i b = _mm_loadu_si128(line + 1);
    const __m128i c = _mm_loadu_si128(line + 2);
    const __m128i d = _mm_loadu_si128(line + 3);
    _mm_stream_si128(out, a);
    _mm_stream_si128(out + 1, b);
    _mm_stream_si128(out + 2, c);
    _mm_stream_si128(out + 3, d);
  }
  std::memcpy(target + at, source + at, bytes - at);
  _mm_sfence();
#else
  // Arm cores detect long runs of stores, and do not fetch the lines for them.
  std::memcpy(to, from, bytes);
#endif
}

}  // namespace trireme::shm
