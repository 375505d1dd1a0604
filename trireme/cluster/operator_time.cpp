// SPDX-License-Identifier: Apache-2.0
#include <trireme/cluster/operator_time.h>

#include <trireme/base/error.h>
#include <trireme/cluster/units.h>

#include <algorithm>

namespace trireme::cluster {
namespace {

double required_peak(const DeviceKind& device, std::string_view dtype) {
  const double peak = peak_flops(device, dtype);
  if (peak > 0) return peak;
  throw UsageError(
      join_message("device ", device.name, " has no peak rate for products in ", dtype),
      join_message("add teraflops.", dtype, " to its description"));
}

double product_rate(const DeviceKind& device, const OperatorWork& work) {
  const double peak = required_peak(device, work.dtype);
  const Efficiency& reached = device.efficiency;
  return peak * reached.product * work.flops /
         (work.flops + reached.half_product_gigaflops * kGiga);
}

double measured_seconds(const OperatorWork& work, const Curve& measured) {
  const bool is_by_flops = work.flops > 0 && work.kind != OperatorKind::kElements;
  return measured.seconds(is_by_flops ? work.flops / kGiga : work.bytes / kMega);
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

double peak_flops(const Cluster& cluster, std::int64_t ranks, std::string_view dtype) {
  double sum = 0;
  for (const Hosts& hosts : cluster.with_ranks(ranks).hosts) {
    const auto devices = static_cast<double>(hosts.count * hosts.devices);
    sum += devices * required_peak(cluster.device(hosts.device), dtype);
  }
  return sum;
}

const Curve* measured_operator(const Cluster& cluster, std::string_view device,
                               std::string_view name, const OperatorWork& work) {
  const auto find = [&](std::string_view wanted) -> const Curve* {
    const auto found =
        std::ranges::find_if(cluster.operators, [&](const MeasuredOperator& measured) {
          return measured.name == wanted && measured.device == device &&
                 measured.dtype == work.dtype;
        });
    return found == cluster.operators.end() ? nullptr : &found->curve;
  };
  const Curve* const own = find(name.substr(0, name.find('.')));
  if (own != nullptr || work.kind != OperatorKind::kProduct) return own;
  return find("aten::mm");
}

std::optional<double> optimizer_seconds(const Cluster& cluster, std::string_view device,
                                        std::string_view name, std::span<const double> bytes) {
  const auto found =
      std::ranges::find_if(cluster.optimizers, [&](const MeasuredOptimizer& measured) {
        return measured.name == name && measured.device == device;
      });
  if (found == cluster.optimizers.end()) return std::nullopt;
  double sum = 0;
  for (const double tensor : bytes) sum += found->curve.seconds(tensor / kMega);
  return sum;
}

double seconds(const DeviceKind& device, const OperatorWork& work, const Curve* measured) {
  const double start = device.kernel_us * kMicro;
  if (measured != nullptr) return measured_seconds(work, *measured) + start;
  const double moving = work.bytes / (device.memory_gb_per_s * kGiga * device.efficiency.memory);
  double computing = 0;
  if (work.flops > 0 && work.kind != OperatorKind::kElements) {
    computing = work.flops / product_rate(device, work);
    if (work.kind == OperatorKind::kAttention) computing /= device.attention_share;
  }
  return std::max(moving, computing) + start;
}

}  // namespace trireme::cluster
