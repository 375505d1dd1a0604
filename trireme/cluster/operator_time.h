// SPDX-License-Identifier: Apache-2.0
// Estimates the time of one operator on a device: a roofline with an efficiency that depends on the
// size of the work (Williams, Waterman, Patterson, "Roofline", 2009).
#pragma once

#include <trireme/cluster/cluster.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace trireme::cluster {

/// The kind of an operator, which decides what it can reach of a device's peak.
enum class OperatorKind {
  kProduct,    ///< matrix products and convolutions
  kAttention,  ///< fused attention, whose softmax lies between two products
  kElements,   ///< everything else: bound by memory
};

/// The work of one call of an operator on one device.
struct OperatorWork {
  OperatorKind kind = OperatorKind::kElements;
  double flops = 0;                    ///< floating-point operations
  double bytes = 0;                    ///< bytes read and written
  std::string_view dtype = "float32";  ///< dtype of the operands, as PyTorch spells it
};

/// Returns the time in seconds of one call: the longer one of computing and of moving its bytes,
/// plus the time of an empty kernel. The rate of a product of `f` FLOPs is
///
///     peak * efficiency.product * f / (f + efficiency.half_product_gigaflops * 10^9)
///
/// Fused attention reaches `attention_share` of it. An operator that was measured on the device
/// takes the time of its curve instead. Throws UsageError if the device has no peak for the dtype
/// of a product.
/// @param measured the operator's own curve; null: the formula.
double seconds(const DeviceKind& device, const OperatorWork& work, const Curve* measured = nullptr);

/// Returns the peak rate of products in FLOP/s. 0: not supported.
double peak_flops(const DeviceKind& device, std::string_view dtype);

/// Returns the peak rate of products of the first `ranks` devices of a cluster together, in FLOP/s.
/// Throws UsageError if the cluster has fewer devices, or if one of them has no peak for the dtype.
double peak_flops(const Cluster& cluster, std::int64_t ranks, std::string_view dtype);

/// Returns the curve of an operator that a calibration measured on a device; null if there is none.
/// A product without a curve of its own, such as `aten::matmul`, has that of `aten::mm`.
/// @param name with or without overload.
const Curve* measured_operator(const Cluster& cluster, std::string_view device,
                               std::string_view name, const OperatorWork& work);

/// Returns the time in seconds of an optimizer's step on tensors of the given sizes, if a
/// calibration measured it.
/// @param name `sgd`, `momentum` or `adam`.
/// @param bytes of the parameters of each tensor.
std::optional<double> optimizer_seconds(const Cluster& cluster, std::string_view device,
                                        std::string_view name, std::span<const double> bytes);

}  // namespace trireme::cluster
