// SPDX-License-Identifier: Apache-2.0
// Estimates the time of one operator on a device: a roofline with an efficiency that depends on the
// size of the work (Williams, Waterman, Patterson, "Roofline", 2009).
#pragma once

#include <trireme/cluster/cluster.h>

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
/// or, if the cluster was calibrated for the device and dtype, interpolated between measured
/// rates. Fused attention reaches `attention_share` of it. Throws UsageError if the device has no
/// peak for the dtype of a product.
/// @param products the measured curve; null: the formula.
double seconds(const DeviceKind& device, const OperatorWork& work,
               const MeasuredProducts* products = nullptr);

/// Returns the peak rate of products in FLOP/s. 0: not supported.
double peak_flops(const DeviceKind& device, std::string_view dtype);

/// Returns the curve that a calibration measured for a device and dtype; null if there is none.
const MeasuredProducts* measured_products(const Cluster& cluster, std::string_view device,
                                          std::string_view dtype);

}  // namespace trireme::cluster
