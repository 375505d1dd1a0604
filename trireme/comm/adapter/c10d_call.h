// SPDX-License-Identifier: Apache-2.0
// Runs an Operation as a call of a c10d backend, for the engines of LibTorch: Gloo and NCCL.
#pragma once

#include <trireme/comm/adapter/operation.h>

#include <c10/util/intrusive_ptr.h>

namespace c10d {
class Backend;
class Work;
}  // namespace c10d

namespace trireme::comm {

/// Starts the operation on a c10d backend. Its buffers must be blocks. Data that is only moved
/// travels as bytes, so every backend carries every dtype.
/// @param is_async false if the caller waits at once. Some backends then finish the operation
/// before they return, and return null.
c10::intrusive_ptr<c10d::Work> start_on(c10d::Backend& backend, const Operation& operation,
                                        bool is_async = true);

}  // namespace trireme::comm
