// SPDX-License-Identifier: Apache-2.0
// Measures what the roofline of an accelerator needs: rates of products by dtype, bandwidths, and
// the time of an empty kernel.
#pragma once

#include <trireme/cluster/cluster.h>
#include <trireme/comm/group.h>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <string>

namespace trireme::predict {

/// What sample_accelerator measures. Tests set less than the defaults.
struct AcceleratorSampling {
  int repetitions = 7;                  ///< measured runs of each piece of work
  std::int64_t largest_product = 8192;  ///< rows of the largest matrices; the smallest have 256
  /// Products larger than the first that takes longer are left out.
  double longest_product_seconds = 0.01;
  std::int64_t numbers = 16 << 20;  ///< fp32 numbers of the tensors that are added and copied
  std::int64_t sequence = 1024;     ///< tokens of attention
  /// Writes the product of a square matrix with itself. Empty: at::mm_out.
  std::function<void(at::Tensor& product, const at::Tensor& matrix)> multiply = {};
};

/// Returns a device kind whose figures are measured on `device`, while all ranks of the group
/// measure their own devices. Times are those of the slowest rank, so that all ranks return the
/// same. Peaks are what large products reach in fp32, fp16 and bf16, so that shares of them are 1.
/// A dtype that the device of any rank does not support is left out. `half_product_gigaflops` is
/// fitted to the products of the dtype with the highest peak, in which most trainings compute. The
/// memory is left 0 (see accelerator_memory_gib). Throws on all ranks if anything but a product
/// fails on one of them. Collective and blocking.
cluster::DeviceKind sample_accelerator(const std::string& name, const c10::Device& device,
                                       const comm::Group& group,
                                       const AcceleratorSampling& sampling = {});

/// Returns the memory in GiB that LibTorch's allocator says that an accelerator has, and 0 if it
/// does not say.
double accelerator_memory_gib(const c10::Device& device);

}  // namespace trireme::predict
