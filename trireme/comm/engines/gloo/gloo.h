// SPDX-License-Identifier: Apache-2.0
// The Gloo of LibTorch, for CPU tensors on one host or over TCP. Needs the headers of Gloo at build
// time.
#pragma once

#include <trireme/comm/adapter/engine_context.h>

namespace trireme::comm {

Engine gloo_engine();

}  // namespace trireme::comm
