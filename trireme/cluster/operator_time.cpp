// SPDX-License-Identifier: Apache-2.0
#include <trireme/cluster/operator_time.h>

#include <trireme/base/error.h>
#include <trireme/cluster/units.h>

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace trireme::cluster {
namespace {

// Returns the rate between two measured sizes, linear in the logarithm of the size. Below the
// smallest size the time is that of the smallest, above the largest the rate is that of the
// largest.
double measured_rate(const MeasuredProducts& curve, double flops) {
  const double size = flops / kGiga;
  const auto& sizes = curve.gigaflops;
  if (size <= sizes.front()) return curve.teraflops.front() * kTera * size / sizes.front();
  if (size >= sizes.back()) return curve.teraflops.back() * kTera;
  const auto above =
      static_cast<std::size_t>(std::ranges::upper_bound(sizes, size) - sizes.begin());
  const double part = std::log(size / sizes[above - 1]) / std::log(sizes[above] / sizes[above - 1]);
  return std::lerp(curve.teraflops[above - 1], curve.teraflops[above], part) * kTera;
}

double product_rate(const DeviceKind& device, const OperatorWork& work,
                    const MeasuredProducts* products) {
  if (products != nullptr && !products->gigaflops.empty()) {
    return measured_rate(*products, work.flops);
  }
  const double peak = peak_flops(device, work.dtype);
  if (peak <= 0) {
    throw UsageError(
        join_message("device ", device.name, " has no peak rate for products in ", work.dtype),
        join_message("add teraflops.", work.dtype, " to its description"));
  }
  const Efficiency& reached = device.efficiency;
  return peak * reached.product * work.flops /
         (work.flops + reached.half_product_gigaflops * kGiga);
}

}  // namespace

double peak_flops(const DeviceKind& device, std::string_view dtype) {
  const PeakTeraflops& peak = device.teraflops;
  if (dtype == "float64") return peak.float64 * kTera;
  if (dtype == "float32") return peak.float32 * kTera;
  if (dtype == "tf32") return peak.tf32 * kTera;
  if (dtype == "float16") return peak.float16 * kTera;
  if (dtype == "bfloat16") return peak.bfloat16 * kTera;
  if (dtype.starts_with("float8")) return peak.float8 * kTera;
  return 0;
}

const MeasuredProducts* measured_products(const Cluster& cluster, std::string_view device,
                                          std::string_view dtype) {
  const auto found = std::ranges::find_if(cluster.products, [&](const MeasuredProducts& curve) {
    return curve.device == device && curve.dtype == dtype;
  });
  return found == cluster.products.end() ? nullptr : &*found;
}

double seconds(const DeviceKind& device, const OperatorWork& work,
               const MeasuredProducts* products) {
  const double moving = work.bytes / (device.memory_gb_per_s * kGiga * device.efficiency.memory);
  double computing = 0;
  if (work.flops > 0 && work.kind != OperatorKind::kElements) {
    computing = work.flops / product_rate(device, work, products);
    if (work.kind == OperatorKind::kAttention) computing /= device.attention_share;
  }
  return std::max(moving, computing) + device.kernel_us * kMicro;
}

}  // namespace trireme::cluster
