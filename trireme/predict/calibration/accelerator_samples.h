// SPDX-License-Identifier: Apache-2.0
// Measures what the roofline of an accelerator needs: rates of products by dtype, bandwidths, and
// the time of an empty kernel.
#pragma once

#include <trireme/cluster/cluster.h>
#include <trireme/comm/group.h>

#include <c10/core/Device.h>

#include <string>

namespace trireme::predict {

/// Returns a device kind whose figures are measured on `device`, while all ranks of the group
/// measure their own devices. Peaks are what large products reach in fp32, fp16 and bf16, so that
/// shares of them are 1. A dtype that the device does not support is left out. The memory is what
/// LibTorch's allocator says that the device has, and 0 if it does not say. Collective and
/// blocking.
cluster::DeviceKind sample_accelerator(const std::string& name, const c10::Device& device,
                                       const comm::Group& group);

}  // namespace trireme::predict
