// SPDX-License-Identifier: Apache-2.0
// The NCCL of a LibTorch with CUDA, for CUDA tensors on one host or several. Needs the headers of
// CUDA and NCCL at build time.
#pragma once

#include <trireme/comm/adapter/engine_context.h>

#include <c10/core/Device.h>

#include <string>

namespace trireme::comm {

/// Returns the NCCL engine. Tensors of a rank must be on its current CUDA device, which `init`
/// sets. NCCL needs a device for each rank. As in LibTorch, a collective is ordered on the current
/// CUDA stream. A blocking call returns when later work on that stream sees the result, which may
/// be before it is there.
Engine nccl_engine();

/// Returns an identifier of an accelerator, equal in all processes of a machine: for CUDA the
/// address on the PCI bus, whatever CUDA_VISIBLE_DEVICES hides.
std::string identity_of(at::Device device);

}  // namespace trireme::comm
