// SPDX-License-Identifier: Apache-2.0
// The NCCL of a LibTorch with CUDA, for CUDA tensors on one host or several. Needs the headers of
// CUDA and NCCL at build time.
#pragma once

#include <trireme/comm/adapter/engine_context.h>

namespace trireme::comm {

/// Returns the NCCL engine. Tensors of a rank must be on its current CUDA device, which `init`
/// sets. NCCL needs a device for each rank. As in LibTorch, a collective is ordered on the current
/// CUDA stream. A blocking call returns when later work on that stream sees the result, which may
/// be before it is there.
/// Must be chosen by name. `auto` chooses by the hosts of the ranks, and most groups carry CPU
/// tensors as well.
Engine nccl_engine();

}  // namespace trireme::comm
