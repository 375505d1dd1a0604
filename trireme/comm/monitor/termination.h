// SPDX-License-Identifier: Apache-2.0
// A last word of a process that SIGTERM ends.
#pragma once

namespace trireme::comm {

/// Lets `write` run, on a thread of its own, before SIGTERM ends this process, where the program
/// has no handler of its own for it and does not ignore it; a second SIGTERM ends it at once. A
/// second call does nothing. A fork of this process ends at once.
void dump_at_termination(void (*write)());

}  // namespace trireme::comm
