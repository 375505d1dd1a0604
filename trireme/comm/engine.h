// SPDX-License-Identifier: Apache-2.0
// connect: makes a Group from an engine and the ranks that it is to connect.
#pragma once

#include <trireme/comm/adapter/engine_context.h>
#include <trireme/comm/group.h>

namespace trireme::comm {

/// Connects the ranks of `context` by `engine`, and tests the connection with one small all-reduce.
/// If the context names an engine for accelerators, also connects by that one (Group::carrier).
/// Collective and blocking. Throws CommError if the ranks cannot connect or an engine adds wrongly.
Group connect(const Engine& engine, const EngineContext& context);

}  // namespace trireme::comm
