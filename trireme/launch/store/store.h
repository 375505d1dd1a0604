// SPDX-License-Identifier: Apache-2.0
// Makes the c10d Store through which the ranks of a run find each other: the one place that knows
// where it is.
#pragma once

#include <trireme/launch/launcher_environment.h>

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>
#include <string>

namespace c10d {
class Store;
}

namespace trireme::launch {

/// Makes or joins the store of this run:
///   - one process: a store in memory;
///   - `trireme run` and torchrun with its agent store: a client of theirs, on every rank;
///   - MASTER_ADDR and MASTER_PORT: rank 0 serves there, the others are clients;
///   - mpirun on one host, without an address: a file of this user's under the temporary directory,
///   named by user and job.
/// Where the identity has a secret, values in a store that is reached over a network are sealed
/// (sealed_store.h); without one rank 0 warns where it is meant for several hosts. Keys are kept
/// apart from those of other users of the store, and of earlier attempts of a launcher that
/// restarts its ranks (`attempt`: TORCHELASTIC_RESTART_COUNT). Blocking up to `timeout`. Throws
/// ConfigError where the variables do not suffice, the file is another user's or the port is taken
/// (naming the process that holds it where it can be told), CommError where the server cannot be
/// reached in time.
c10::intrusive_ptr<c10d::Store> make_store(const Identity& identity, std::int64_t attempt,
                                           std::chrono::milliseconds timeout);

/// What comes before every key of ours in a shared store.
std::string key_prefix(std::int64_t attempt);

}  // namespace trireme::launch
