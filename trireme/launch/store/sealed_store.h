// SPDX-License-Identifier: Apache-2.0
// Protects the values of a store that strangers may write to. Only values that were set by a
// process with the secret of the run are accepted.
#pragma once

#include <trireme/launch/secret.h>

#include <c10/util/intrusive_ptr.h>

#include <string>
#include <string_view>

namespace c10d {
class Store;
}

namespace trireme::launch {

/// Returns a view of `store` in which each value carries an HMAC of its key and its content.
/// Reading a value without a code, or with a wrong one, throws CommError. Returns `store` itself if
/// `secret` is empty.
///
/// Limits: anybody who can reach the store can read, delete and replace values; the ranks notice
/// replaced values. Counters (`add`) carry no code. They only decide about error messages.
c10::intrusive_ptr<c10d::Store> seal(c10::intrusive_ptr<c10d::Store> store, std::string secret);

/// Returns true if a value that was read without a secret carries a code.
bool is_sealed(std::string_view value);

}  // namespace trireme::launch
