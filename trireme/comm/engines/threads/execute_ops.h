// SPDX-License-Identifier: Apache-2.0
// Runs messages and collectives between threads: one thread copies between the devices of all
// ranks, and adds in rank order.
#pragma once

#include <trireme/comm/engines/threads/pending_op.h>
#include <trireme/comm/engines/threads/streams.h>

#include <memory>
#include <span>

namespace trireme::comm::threads {

/// Runs the operation that consists of these pending operations: sender and receiver, or all ranks
/// in order. On CPUs it is done on return. Copies from and to other devices are given to streams of
/// the engine. They run after everything that the device of each pending operation had been given
/// before its call.
/// @return events after these copies.
/// @throws UsageError if the parts of an all-to-all do not fit each other, and what operators
/// throw. No copy is running then.
std::shared_ptr<const Events> execute(std::span<const std::shared_ptr<PendingOp>> ops,
                                      CopyStreams& streams);

}  // namespace trireme::comm::threads
