// SPDX-License-Identifier: Apache-2.0
// The store of ranks on several hosts whose launcher gives them no address: rank 0 serves it at a
// free port, and the launcher passes on where that is.
#pragma once

#include <trireme/launch/launcher_environment.h>

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <string>
#include <vector>

namespace c10d {
class Store;
}

namespace trireme::launch {

/// The places at which rank 0 may be reached, and what proves that a store is its own.
struct StorePlaces {
  int port = 0;                        ///< the port of the store
  std::string secret;                  ///< a random secret of this run
  std::vector<std::string> addresses;  ///< numbers and the name of the host, in the order to try
};

/// Returns the places as one word, and reads them again. Throws CommError for another text.
std::string encode(const StorePlaces& places);
StorePlaces decode_places(const std::string& text);

/// Returns the addresses of this host that others may reach: those of `interface` if it is given,
/// otherwise of all interfaces that are up, without loopback; the host name comes last.
std::vector<std::string> own_addresses(const std::string& interface);

/// Serves the store on rank 0 and connects to it on the others. Values are sealed by the secret of
/// the identity, or else by a random one that the launcher passes on. Collective; blocks up to
/// `timeout`. Throws the errors of pass_from_rank_0, and CommError that lists the addresses that
/// were tried.
c10::intrusive_ptr<c10d::Store> make_passed_store(const Identity& identity,
                                                  std::chrono::milliseconds timeout);

}  // namespace trireme::launch
