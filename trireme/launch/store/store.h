// SPDX-License-Identifier: Apache-2.0
// Creates the c10d Store through which the ranks of a run find each other. Only this file knows
// where the store is.
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

/// Creates or joins the store of this run:
/// - one process: a store in memory;
/// - `trireme run`, or torchrun with its agent store: a client of the launcher's store, on every
///   rank;
/// - MASTER_ADDR and MASTER_PORT: rank 0 serves the store there, and the other ranks are clients;
/// - mpirun on several hosts without an address: rank 0 serves the store at a free port, and the
///   launcher passes on where that is (passed_store.h);
/// - mpirun on one host without an address: a file in the temporary directory that belongs to this
///   user and is named after the user and the job.
///
/// If the identity has a secret, values in a store that is reached over a network are sealed
/// (sealed_store.h). Without a secret, rank 0 warns if the store is meant for several hosts. Keys
/// have a prefix that separates them from other users of the store and from earlier attempts of a
/// launcher that restarts its ranks. Blocks for up to `timeout`.
///
/// Throws ConfigError if the variables do not suffice, the file belongs to another user, or the
/// port is in use (naming the process that holds it, if known). Throws CommError if the server
/// cannot be reached in time.
/// @param identity the identity of this process.
/// @param attempt the number of restarts so far (TORCHELASTIC_RESTART_COUNT).
/// @param timeout the time to wait for the server.
c10::intrusive_ptr<c10d::Store> make_store(const Identity& identity, std::int64_t attempt,
                                           std::chrono::milliseconds timeout);

/// Returns the prefix of all keys of Trireme in a shared store.
std::string key_prefix(std::int64_t attempt);

}  // namespace trireme::launch
