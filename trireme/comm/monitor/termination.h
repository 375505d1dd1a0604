// SPDX-License-Identifier: Apache-2.0
// Writes dumps before SIGTERM ends a process.
#pragma once

namespace trireme::comm {

/// Makes SIGTERM run `write` on a thread of its own before it ends this process. Does nothing if
/// the program handles or ignores SIGTERM. A second SIGTERM ends the process at once. Only the
/// first call has an effect. A forked child ends without running `write`.
void dump_at_termination(void (*write)());

}  // namespace trireme::comm
