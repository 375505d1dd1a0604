// SPDX-License-Identifier: Apache-2.0
// What deferred() left to be done, for code that cuts a module into shards: gives tensors their
// memory and values one after another, so that few are whole at a time.
#pragma once

#include <trireme/parallel/init/deferred.h>

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace trireme::detail {

/// Whether the tensor was made under deferred() and has no memory yet. Its storage has the right
/// number of bytes, and throws where its memory is asked for.
bool is_deferred(const at::Tensor& tensor);

/// Runs what was recorded for those of `tensors` that are deferred, in the order in which it was
/// recorded as far as random numbers and dependencies go. Calls `on_ready` with each as soon as it
/// has its values, in memory of its own; once it was called for all of `tensors` that share the
/// storage, the storage is emptied (0 bytes), unless `on_ready` gave it other memory. Without
/// `on_ready` they keep memory and values. They are not deferred any more then. Other tensors of
/// the same construction stay deferred; their random numbers are drawn all the same. What nothing
/// was ever written to is 0.
///
/// If `on_ready` throws, those it was not called for stay deferred. Not thread-safe for tensors of
/// one construction, nor of two that one thread made in a row with numbers of one generator; uses
/// no generator but the module's own.
void replay(const std::vector<at::Tensor>& tensors,
            const std::function<void(const at::Tensor& whole)>& on_ready);

/// All states of random generators that the values of `tensors` start from, [n] bytes on the CPU; n
/// depends on how the tensors were constructed only. Empty if no random number is drawn.
at::Tensor random_states(const std::vector<at::Tensor>& tensors);

/// Takes other states for them, those of rank 0 as a rule. A generator whose states were others
/// stays where deferred() left it, so that ranks which were seeded apart stay apart. Throws
/// UsageError for another number of bytes.
void set_random_states(const std::vector<at::Tensor>& tensors, const at::Tensor& states);

}  // namespace trireme::detail
