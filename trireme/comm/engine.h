// SPDX-License-Identifier: Apache-2.0
// From the ranks of a group and an engine to a Group.
#pragma once

#include <trireme/comm/adapter/engine_context.h>
#include <trireme/comm/group.h>

namespace trireme::comm {

/// Connects the ranks of `context` by that engine and proves it with one small all-reduce. Throws
/// CommError.
Group connect(const Engine& engine, const EngineContext& context);

}  // namespace trireme::comm
