// SPDX-License-Identifier: Apache-2.0
// Values in a store that anybody who reaches it may write to: only what was set by a process that
// knows the secret of the run is believed.
#pragma once

#include <trireme/launch/secret.h>

#include <c10/util/intrusive_ptr.h>

#include <string>
#include <string_view>

namespace c10d {
class Store;
}

namespace trireme::launch {

/// Returns a view of `store` in which each value carries an HMAC of its key and itself. Reading one
/// without it, or with a wrong one, throws CommError. Returns `store` where there is no secret.
///
/// What it does not do: values can be read by whoever reaches the store, and be deleted or
/// replaced, which the ranks notice; counters (`add`) carry no code, and decide about nothing but
/// errors.
c10::intrusive_ptr<c10d::Store> seal(c10::intrusive_ptr<c10d::Store> store, std::string secret);

/// Whether a value that was read without a secret carries a code.
bool is_sealed(std::string_view value);

}  // namespace trireme::launch
