// SPDX-License-Identifier: Apache-2.0
// The NCCL that comes inside a LibTorch with CUDA, for CUDA tensors on one host or several. Needs
// the headers of CUDA and NCCL at build time.
#pragma once

#include <trireme/comm/adapter/engine_context.h>

namespace trireme::comm {

/// Each rank's tensors are on its current CUDA device, which `init` sets to the rank's own; NCCL
/// wants a device for each rank. As in LibTorch a collective is ordered on the current CUDA stream:
/// a blocking call returns when what follows on that stream sees the result, not when it is there.
/// By name only: `auto` chooses by where the ranks are, and most groups carry CPU tensors as well.
Engine nccl_engine();

}  // namespace trireme::comm
