// SPDX-License-Identifier: Apache-2.0
#include <trireme/predict/calibration/accelerator_samples.h>

#include <trireme/cluster/units.h>
#include <trireme/comm/collectives.h>
#include <trireme/comm/consensus.h>
#include <trireme/predict/calibration/stopwatch.h>

#include <ATen/DeviceAccelerator.h>
#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/zeros.h>
#include <c10/core/ScalarType.h>
#include <c10/core/TensorOptions.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <exception>
#include <optional>
#include <string_view>
#include <vector>

namespace trireme::predict {
namespace {

using cluster::kGiB;
using cluster::kGiga;
using cluster::kMicro;
using cluster::kTera;

// A measured product of two square matrices.
struct ProductRate {
  double flops = 0;
  double flops_per_second = 0;
};

// 0 for a dtype without products.
double peak_of(const std::vector<ProductRate>& products) {
  double peak = 0;
  for (const ProductRate& product : products) peak = std::max(peak, product.flops_per_second);
  return peak;
}

// The FLOPs of a product that reaches half of the peak: one of f FLOPs reaches f / (f + half).
double half_product(const std::vector<ProductRate>& products, double kernel_seconds) {
  const double peak = peak_of(products);
  double half = 0;
  double weight = 0;
  for (const ProductRate& product : products) {
    const double seconds = std::max(0.0, product.flops / product.flops_per_second - kernel_seconds);
    const double ideal = product.flops / peak;
    // Small products say most about it.
    half += std::max(0.0, seconds - ideal) * peak / product.flops;
    weight += 1 / product.flops;
  }
  return weight > 0 ? half / weight : 0;
}

class Sampler {
 public:
  Sampler(const c10::Device& device, const comm::Group& group, const AcceleratorSampling& sampling)
      : device_(device), group_(group), sampling_(sampling) {}

  cluster::DeviceKind run(const std::string& name) const {
    cluster::DeviceKind kind = {.name = name};
    const double kernel = kernel_seconds();
    const std::vector<ProductRate> float32 = products(at::kFloat);
    const std::vector<ProductRate> float16 = products(at::kHalf);
    const std::vector<ProductRate> bfloat16 = products(at::kBFloat16);
    // Most trainings on an accelerator compute in its fastest dtype.
    const std::vector<ProductRate> fastest =
        std::ranges::max({float32, float16, bfloat16}, {}, peak_of);
    kind.kernel_us = kernel / kMicro;
    kind.teraflops.float32 = peak_of(float32) / kTera;
    kind.teraflops.float16 = peak_of(float16) / kTera;
    kind.teraflops.bfloat16 = peak_of(bfloat16) / kTera;
    kind.memory_gb_per_s = memory_rate() / kGiga;
    kind.host_gb_per_s = host_rate() / kGiga;
    kind.efficiency = {.product = 1,
                       .half_product_gigaflops = half_product(fastest, kernel) / kGiga,
                       .memory = 1,
                       .link = 1};
    kind.attention_share = attention_share(kind);
    return kind;
  }

 private:
  using Work = std::function<void()>;
  // Allocates what the work needs.
  using Preparation = std::function<Work()>;

  at::TensorOptions options(at::ScalarType dtype) const {
    return at::TensorOptions().device(device_).dtype(dtype);
  }

  double largest_of_all(double own) const {
    const at::Tensor all = at::full({1}, own, at::kDouble);
    comm::all_reduce(all, group_, comm::ReduceOp::kMaximum);
    return all.item<double>();
  }

  // The work runs once before it is timed: while ranks are timed they wait for each other, and one
  // that failed there would leave the others waiting.
  Work try_out(const Preparation& prepare) const {
    Work work = prepare();
    work();
    synchronize(device_);
    return work;
  }

  double slowest_median(const Work& work) const {
    return largest_of_all(median_time(work, device_, group_, sampling_.repetitions));
  }

  // Seconds on the slowest rank. Throws on all ranks if one of them fails.
  double time(std::string_view doing, const Preparation& prepare) const {
    Work work;
    comm::succeed_together(doing, group_, [&] { work = try_out(prepare); });
    return slowest_median(work);
  }

  // As time(), but returns nothing if a rank fails.
  std::optional<double> time_if_possible(const Preparation& prepare) const {
    Work work;
    bool has_failed = false;
    try {
      work = try_out(prepare);
    } catch (const std::exception&) {
      has_failed = true;
    }
    if (largest_of_all(has_failed ? 1 : 0) > 0) return std::nullopt;
    return slowest_median(work);
  }

  // The time between two kernels of a queue of many.
  double kernel_seconds() const {
    constexpr int kKernels = 200;
    const double all = time("run small kernels", [&] {
      return [number = at::zeros({1}, options(at::kFloat))] {
        for (int i = 0; i < kKernels; ++i) number.add_(1);
      };
    });
    return all / kKernels;
  }

  std::optional<double> product_seconds(at::ScalarType dtype, std::int64_t size) const {
    return time_if_possible([&] {
      const at::Tensor matrix = at::ones({size, size}, options(dtype));
      return [this, matrix, product = at::empty_like(matrix)]() mutable {
        if (sampling_.multiply) {
          sampling_.multiply(product, matrix);
        } else {
          at::mm_out(product, matrix, matrix);
        }
      };
    });
  }

  // Products of growing sizes, up to one that takes long; none if some rank has none in this dtype.
  // Each step is decided by what all ranks know, because all of them time the same products.
  std::vector<ProductRate> products(at::ScalarType dtype) const {
    constexpr std::int64_t kFirst = 256;
    std::vector<ProductRate> measured;
    for (std::int64_t size = kFirst; size <= sampling_.largest_product; size *= 2) {
      const std::optional<double> seconds = product_seconds(dtype, size);
      if (!seconds) break;
      const auto rows = static_cast<double>(size);
      const double flops = 2 * rows * rows * rows;
      measured.push_back({.flops = flops, .flops_per_second = flops / *seconds});
      if (*seconds > sampling_.longest_product_seconds) break;
    }
    return measured;
  }

  double memory_rate() const {
    const double seconds = time("add tensors", [&] {
      const at::Tensor addend = at::ones({sampling_.numbers}, options(at::kFloat));
      return [addend, sum = at::empty_like(addend)]() mutable { at::add_out(sum, addend, addend); };
    });
    return 3 * bytes_of_numbers() / seconds;
  }

  // The slower one of both directions.
  double host_rate() const {
    const auto seconds_of = [&](std::string_view doing, bool is_to_host) {
      return time(doing, [&] {
        const at::Tensor here = at::ones({sampling_.numbers}, options(at::kFloat));
        const at::Tensor host = at::empty(
            {sampling_.numbers}, at::TensorOptions().dtype(at::kFloat).pinned_memory(true));
        return [to = is_to_host ? host : here, from = is_to_host ? here : host] {
          to.copy_(from, /*non_blocking=*/true);
        };
      });
    };
    const double there = seconds_of("copy a tensor to host memory", true);
    const double back = seconds_of("copy a tensor from host memory", false);
    return bytes_of_numbers() / std::max(there, back);
  }

  double bytes_of_numbers() const {
    return static_cast<double>(sampling_.numbers) * static_cast<double>(sizeof(float));
  }

  // The rate of forward and backward of fused attention by that of products.
  double attention_share(const cluster::DeviceKind& kind) const {
    constexpr std::int64_t kHead = 64;
    constexpr std::int64_t kHeads = 16;
    const std::int64_t sequence = sampling_.sequence;
    const bool is_half = kind.teraflops.bfloat16 > 0;
    const double peak = (is_half ? kind.teraflops.bfloat16 : kind.teraflops.float32) * kTera;
    const double seconds = time("compute attention", [&] {
      const auto heads = [&] {
        return at::ones({1, kHeads, sequence, kHead}, options(is_half ? at::kBFloat16 : at::kFloat))
            .requires_grad_();
      };
      return [inputs = std::array<at::Tensor, 3>{heads(), heads(), heads()}] {
        at::scaled_dot_product_attention(inputs[0], inputs[1], inputs[2], {}, 0.0,
                                         /*is_causal=*/true)
            .sum()
            .backward();
      };
    });
    // Two products forward, five backward, of which a mask leaves half.
    constexpr double kProducts = 7;
    const double flops = kProducts * static_cast<double>(kHeads * sequence * sequence * kHead);
    return std::clamp(flops / seconds / peak, 0.01, 1.0);
  }

  const c10::Device device_;
  const comm::Group& group_;
  const AcceleratorSampling& sampling_;
};

}  // namespace

cluster::DeviceKind sample_accelerator(const std::string& name, const c10::Device& device,
                                       const comm::Group& group,
                                       const AcceleratorSampling& sampling) {
  return Sampler(device, group, sampling).run(name);
}

double accelerator_memory_gib(const c10::Device& device) {
  // LibTorch sets up some allocators only with the first tensor.
  (void)at::empty({1}, at::TensorOptions().device(device));
  try {
    return static_cast<double>(at::accelerator::getMemoryInfo(device.index()).second) / kGiB;
  } catch (const c10::Error&) {
    return 0;
  }
}

}  // namespace trireme::predict
