// SPDX-License-Identifier: Apache-2.0
// An Operation as a call of a c10d backend, for the engines that are LibTorch's own: Gloo and NCCL.
#pragma once

#include <trireme/comm/adapter/operation.h>

#include <c10/util/intrusive_ptr.h>

namespace c10d {
class Backend;
class Work;
}  // namespace c10d

namespace trireme::comm {

/// Starts the operation on any c10d backend; its buffers must be blocks. What is only moved travels
/// as bytes, so that every dtype goes over every backend.
/// @param is_async false: the caller waits at once, and backends that can are done on return.
c10::intrusive_ptr<c10d::Work> start_on(c10d::Backend& backend, const Operation& operation,
                                        bool is_async = true);

}  // namespace trireme::comm
