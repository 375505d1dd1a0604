// SPDX-License-Identifier: Apache-2.0
// The engine of worlds whose other ranks do not exist, in a program whose step is predicted.
#pragma once

#include <trireme/comm/adapter/engine_context.h>

namespace trireme::comm {

/// Returns the engine `assumed`. Its collectives return at once what they would if all other ranks
/// gave the same values as this one, so that agreements between ranks come out. Roots other than
/// this rank send what this rank has. A message that is received throws UsageError. It connects to
/// nothing, and is not one of engines(): only init() chooses it, for `trireme predict`.
Engine assumed_engine();

}  // namespace trireme::comm
