// SPDX-License-Identifier: Apache-2.0
// The inner loops of transforms. Compiled once for each instruction set; TRIREME_KERNELS is the
// namespace.
#include <trireme/data/transforms/kernels.h>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace trireme::data::detail::TRIREME_KERNELS {
namespace {

template <typename Element>
void blend(const Element* first, const Element* second, float weight, std::size_t count,
           float* out) {
  for (std::size_t i = 0; i < count; ++i)
    out[i] = static_cast<float>(first[i]) * (1 - weight) + static_cast<float>(second[i]) * weight;
}

float stretched(const float* in, const ResizedLine& line, std::size_t i) {
  return in[line.first[i]] * line.weight_of_first[i] +
         in[line.second[i]] * line.weight_of_second[i];
}

#if defined(__AVX2__)
constexpr std::size_t kLanes = 8;

__m256i load(const std::int32_t* places) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(places));
}

// Computes eight results from the i-th on. Unless the line shrinks a lot, their inputs are within
// eight elements. These are loaded as one vector and permuted, which is faster than a gather.
__m256 stretched_lanes(const float* in, const ResizedLine& line, std::size_t i) {
  const std::int32_t begin = line.first[i];
  const __m256i first = load(&line.first[i]);
  const __m256i second = load(&line.second[i]);
  __m256 left;
  __m256 right;
  if (line.second[i + kLanes - 1] - begin < static_cast<std::int32_t>(kLanes)) {
    const __m256 values = _mm256_loadu_ps(in + begin);
    const __m256i origin = _mm256_set1_epi32(begin);
    left = _mm256_permutevar8x32_ps(values, _mm256_sub_epi32(first, origin));
    right = _mm256_permutevar8x32_ps(values, _mm256_sub_epi32(second, origin));
  } else {
    left = _mm256_i32gather_ps(in, first, sizeof(float));
    right = _mm256_i32gather_ps(in, second, sizeof(float));
  }
  return _mm256_add_ps(_mm256_mul_ps(left, _mm256_loadu_ps(&line.weight_of_first[i])),
                       _mm256_mul_ps(right, _mm256_loadu_ps(&line.weight_of_second[i])));
}

void store(__m256 values, float* out) { _mm256_storeu_ps(out, values); }

void store(__m256 values, std::uint8_t* out) {
  const __m256i numbers = _mm256_cvttps_epi32(_mm256_add_ps(values, _mm256_set1_ps(0.5F)));
  const __m128i shorts =
      _mm_packs_epi32(_mm256_castsi256_si128(numbers), _mm256_extracti128_si256(numbers, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(out), _mm_packus_epi16(shorts, shorts));
}
#endif

template <typename Element>
void stretch(const float* in, const ResizedLine& line, Element* out) {
  std::size_t i = 0;
#if defined(__AVX2__)
  for (; i + kLanes <= line.size(); i += kLanes) store(stretched_lanes(in, line, i), out + i);
#endif
  constexpr float kHalf = sizeof(Element) == 1 ? 0.5F : 0.0F;
  for (; i < line.size(); ++i) {
    const float value = stretched(in, line, i);
    out[i] = kHalf > 0 ? static_cast<Element>(value + kHalf) : static_cast<Element>(value);
  }
}

template <typename Element>
void rescale(const Element* in, std::size_t count, float scale, float shift, float* out) {
  for (std::size_t i = 0; i < count; ++i) out[i] = static_cast<float>(in[i]) * scale + shift;
}

// Divides instead of multiplying by 1 / std, to get the same bits as torchvision.
template <typename Element>
void normalize(const Element* in, std::size_t count, float mean, float std, float* out) {
  for (std::size_t i = 0; i < count; ++i) out[i] = (static_cast<float>(in[i]) - mean) / std;
}

}  // namespace

extern const Kernels kKernels;
const Kernels kKernels = {
    .name = TRIREME_KERNELS_NAME,
    .blend_bytes = blend<std::uint8_t>,
    .blend_floats = blend<float>,
    .stretch_to_bytes = stretch<std::uint8_t>,
    .stretch_to_floats = stretch<float>,
    .rescale_bytes = rescale<std::uint8_t>,
    .rescale_floats = rescale<float>,
    .normalize_bytes = normalize<std::uint8_t>,
    .normalize_floats = normalize<float>,
};

}  // namespace trireme::data::detail::TRIREME_KERNELS
