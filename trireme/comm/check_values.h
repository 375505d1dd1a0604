// SPDX-License-Identifier: Apache-2.0
// The check mode TRIREME_CHECK=values. It compares tensors that must be equal on several ranks and
// names those that differ.
// The mode is off by default, because each comparison costs a pass over the values and a
// collective.
#pragma once

#include <trireme/comm/group.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace trireme::comm {

/// Returns whether TRIREME_CHECK asks for comparisons of values. All ranks must set the variable
/// alike. Throws ConfigError if the variable has a value that is not allowed.
bool checks_values();

/// The number of training steps between two comparisons of the parameters. The first comparison
/// takes place before the first step. The compared ranks depend on the kind of parameter:
/// - whole parameters: the ranks along `data`, and along every other axis on which they are whole;
/// - slices of hybrid sharding (ZeRO): the ranks that hold the same slice;
/// - weights that several stages share: the ranks of these stages.
///
/// Slices of ZeRO are compared along `data` only. Other tensors are compared in every call: those
/// passed to `distribute` and `from_local` (Replicate), and the gradients that arrive at `full` and
/// `to_local`.
inline constexpr std::int64_t kStepsBetweenChecks = 100;

/// A tensor to compare and the name that messages give it.
struct NamedValue {
  std::string name;  ///< for messages
  at::Tensor value;  ///< any dtype and device
};

/// Compares the bits of tensors over the ranks of `group`. Compares them in any case, also where
/// checks_values() is false. Collective and blocking.
/// Throws the same UsageError on every rank if names, shapes, dtypes or values differ. It names the
/// first tensors that differ, the ranks on which they differ from rank 0, and by how much.
/// @param what describes the tensors in the message, such as `parameters after step 100`.
///
///     if (comm::checks_values()) comm::check_equal_values(parameters, group, "parameters");
void check_equal_values(std::span<const NamedValue> values, const Group& group,
                        std::string_view what);

/// Returns a number computed from the bits and positions of the elements of a tensor. Tensors with
/// other values, or with the same values in another order, have another digest with high
/// probability; if a single bit differs, always. It is the same on every device. Needs
/// about 1 MiB of memory, and a copy of the tensor if it is not contiguous. On the CPU it reads
/// memory about as fast as it comes, with the threads of LibTorch.
std::int64_t digest_of_values(const at::Tensor& tensor);

}  // namespace trireme::comm
