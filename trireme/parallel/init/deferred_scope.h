// SPDX-License-Identifier: Apache-2.0
// Access to deferred tensors for code that cuts a module into shards. Tensors get their memory and
// values one after another, so that only a few are whole at a time.
#pragma once

#include <trireme/parallel/init/deferred.h>

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace trireme::detail {

/// Returns true if the tensor was made under deferred() and has no memory yet. Its storage has the
/// right number of bytes, but throws when its memory is accessed.
bool is_deferred(const at::Tensor& tensor);

/// Computes the values of those of `tensors` that are deferred, and of no others. Random numbers
/// are drawn in the order in which they were recorded, including those of tensors not asked for.
/// Memory that nothing was ever written to becomes 0.
///
/// Calls `on_ready` for each tensor as soon as it has its values, in memory of its own. After it
/// was called for all of `tensors` that share the storage, the storage is emptied (0 bytes), unless
/// `on_ready` gave it other memory. Without `on_ready`, tensors keep their memory and values.
///
/// If `on_ready` throws, the tensors that it was not called for stay deferred. Uses no random
/// generator other than those of the construction. Not thread-safe for tensors of one construction,
/// or of two that one thread made in a row from one generator.
void replay(const std::vector<at::Tensor>& tensors,
            const std::function<void(const at::Tensor& whole)>& on_ready);

/// Returns all states of random generators that the values of `tensors` start from, [n] bytes on
/// the CPU, empty if no random numbers are drawn. `n` depends only on how the tensors were
/// constructed.
at::Tensor random_states(const std::vector<at::Tensor>& tensors);

/// Replaces these states, as a rule by those of rank 0. A generator whose states change by this
/// stays where deferred() left it, so that ranks seeded differently stay different. Throws
/// UsageError if `states` has another number of bytes.
void set_random_states(const std::vector<at::Tensor>& tensors, const at::Tensor& states);

}  // namespace trireme::detail
