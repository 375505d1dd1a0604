// SPDX-License-Identifier: Apache-2.0
#include <trireme/predict/calibration/accelerator_samples.h>

#include <trireme/cluster/units.h>
#include <trireme/predict/calibration/stopwatch.h>

#include <ATen/DeviceAccelerator.h>
#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <utility>

namespace trireme::predict {
namespace {

using cluster::kGiB;
using cluster::kGiga;
using cluster::kMicro;
using cluster::kTera;

constexpr int kRuns = 7;

class Sampler {
 public:
  Sampler(const c10::Device& device, const comm::Group& group) : device_(device), group_(group) {}

  cluster::DeviceKind run(const std::string& name) {
    cluster::DeviceKind kind = {.name = name};
    kind.kernel_us = kernel_seconds() / kMicro;
    kind.teraflops.float32 = product_rate(at::kFloat) / kTera;
    kind.teraflops.float16 = product_rate(at::kHalf) / kTera;
    kind.teraflops.bfloat16 = product_rate(at::kBFloat16) / kTera;
    kind.memory_gb_per_s = memory_rate() / kGiga;
    kind.host_gb_per_s = host_rate() / kGiga;
    kind.memory_gib = memory_bytes() / kGiB;
    kind.efficiency = {
        .product = 1, .half_product_gigaflops = half_product(kind) / kGiga, .memory = 1, .link = 1};
    kind.attention_share = attention_share(kind);
    return kind;
  }

 private:
  double time(const std::function<void()>& work) const {
    return median_time(work, device_, group_, kRuns);
  }

  at::TensorOptions options(at::ScalarType dtype) const {
    return at::TensorOptions().device(device_).dtype(dtype);
  }

  // The time between two kernels of a queue of many.
  double kernel_seconds() const {
    constexpr int kKernels = 200;
    at::Tensor number = at::zeros({1}, options(at::kFloat));
    return time([&] {
             for (int i = 0; i < kKernels; ++i) number.add_(1);
           }) /
           kKernels;
  }

  // FLOP/s of a product of two square matrices; 0 if the device has none in this dtype.
  double rate_of(at::ScalarType dtype, std::int64_t size) const {
    try {
      const at::Tensor matrix = at::ones({size, size}, options(dtype));
      at::Tensor product = at::empty({size, size}, options(dtype));
      const double seconds = time([&] { at::mm_out(product, matrix, matrix); });
      const auto rows = static_cast<double>(size);
      return 2 * rows * rows * rows / seconds;
    } catch (const c10::Error&) {
      return 0;
    }
  }

  // The best of growing sizes, up to one that takes a hundredth of a second.
  double product_rate(at::ScalarType dtype) {
    constexpr double kLongest = 0.01;
    constexpr std::int64_t kFirst = 256;
    constexpr std::int64_t kLast = 8192;
    double fastest = 0;
    for (std::int64_t size = kFirst; size <= kLast; size *= 2) {
      const double rate = rate_of(dtype, size);
      if (rate == 0) break;
      fastest = std::max(fastest, rate);
      const auto rows = static_cast<double>(size);
      if (dtype == at::kFloat) products_.emplace_back(2 * rows * rows * rows, rate);
      if (2 * rows * rows * rows / rate > kLongest) break;
    }
    return fastest;
  }

  // The FLOPs of a product that reaches half of the peak, by the smallest square products: a
  // product of f FLOPs reaches f / (f + half) of it.
  double half_product(const cluster::DeviceKind& kind) const {
    double half = 0;
    double weight = 0;
    for (const auto& [flops, rate] : products_) {
      const double seconds = std::max(0.0, flops / rate - kind.kernel_us * kMicro);
      const double ideal = flops / (kind.teraflops.float32 * kTera);
      // Small products say most about it.
      half += std::max(0.0, seconds - ideal) * kind.teraflops.float32 * kTera / flops;
      weight += 1 / flops;
    }
    return weight > 0 ? half / weight : 0;
  }

  double memory_rate() const {
    constexpr std::int64_t kNumbers = 16 << 20;
    const at::Tensor first = at::ones({kNumbers}, options(at::kFloat));
    at::Tensor sum = at::empty({kNumbers}, options(at::kFloat));
    return 3 * static_cast<double>(sum.nbytes()) / time([&] { at::add_out(sum, first, first); });
  }

  // The slower one of both directions.
  double host_rate() const {
    constexpr std::int64_t kNumbers = 16 << 20;
    const at::Tensor here = at::ones({kNumbers}, options(at::kFloat));
    const at::Tensor host = at::empty({kNumbers}, at::TensorOptions().pinned_memory(true));
    const double there = time([&] { host.copy_(here, /*non_blocking=*/true); });
    const double back = time([&] { here.copy_(host, /*non_blocking=*/true); });
    return static_cast<double>(here.nbytes()) / std::max(there, back);
  }

  double memory_bytes() const {
    try {
      return static_cast<double>(at::accelerator::getMemoryInfo(device_.index()).second);
    } catch (const c10::Error&) {
      return 0;  // this allocator does not say
    }
  }

  // The rate of forward and backward of fused attention by that of products.
  double attention_share(const cluster::DeviceKind& kind) const {
    constexpr std::int64_t kSequence = 1024;
    constexpr std::int64_t kHead = 64;
    constexpr std::int64_t kHeads = 16;
    const bool is_half = kind.teraflops.bfloat16 > 0;
    const double peak = (is_half ? kind.teraflops.bfloat16 : kind.teraflops.float32) * kTera;
    const auto heads = [&] {
      return at::ones({1, kHeads, kSequence, kHead}, options(is_half ? at::kBFloat16 : at::kFloat))
          .requires_grad_();
    };
    const std::array<at::Tensor, 3> inputs = {heads(), heads(), heads()};
    const double seconds = time([&] {
      at::scaled_dot_product_attention(inputs[0], inputs[1], inputs[2], {}, 0.0,
                                       /*is_causal=*/true)
          .sum()
          .backward();
    });
    // Two products forward, five backward, of which a mask leaves half.
    constexpr double kProducts = 7;
    const double flops = kProducts * static_cast<double>(kHeads * kSequence * kSequence * kHead);
    return std::clamp(flops / seconds / peak, 0.01, 1.0);
  }

  const c10::Device device_;
  const comm::Group& group_;
  std::vector<std::pair<double, double>> products_;  // FLOPs and FLOP/s in fp32
};

}  // namespace

cluster::DeviceKind sample_accelerator(const std::string& name, const c10::Device& device,
                                       const comm::Group& group) {
  return Sampler(device, group).run(name);
}

}  // namespace trireme::predict
