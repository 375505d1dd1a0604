// SPDX-License-Identifier: Apache-2.0
// What messages and collectives do to the tensors of all their ranks, by the thread of one of them:
// copies between devices, and folds in rank order.
#pragma once

#include <trireme/comm/engines/threads/pending_op.h>
#include <trireme/comm/engines/threads/streams.h>

#include <memory>
#include <span>

namespace trireme::comm::threads {

/// Carries out the operation that these pending operations make: sender and receiver, or all ranks
/// in their order. On processors it is done when this returns; copies from and to other devices are
/// given to streams of the engine's own, behind what every pending operation's device has been
/// given before its call.
/// @return events behind these copies.
/// Throws what operators throw, and UsageError where the parts of an all-to-all do not fit; then no
/// copy is under way.
std::shared_ptr<const Events> execute(std::span<const std::shared_ptr<PendingOp>> ops,
                                      CopyStreams& streams);

}  // namespace trireme::comm::threads
