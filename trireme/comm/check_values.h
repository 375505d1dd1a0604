// SPDX-License-Identifier: Apache-2.0
// The check mode TRIREME_CHECK=values: compares, over ranks and with names, what is claimed to be
// equal on all of them. Off by default, because it costs a pass over the values and a collective.
#pragma once

#include <trireme/comm/group.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace trireme::comm {

/// Whether TRIREME_CHECK asks for it; all ranks must have the same. Throws ConfigError for a value
/// of the variable that cannot be.
bool checks_values();

/// The number of steps between two comparisons of parameters. The first is before the first step.
///
/// | Values | Compared ranks |
/// | --- | --- |
/// | whole parameters | the ranks along `data`, and along each axis on which they are whole |
/// | slices of hybrid sharding (ZeRO) | the ranks that have the same slice |
/// | weights that stages share | the ranks of these stages |
///
/// Compared in every call instead: tensors passed to `distribute` and `from_local` (Replicate), and
/// gradients that arrive at `full` and `to_local`. ZeRO slices are compared along `data` only.
inline constexpr std::int64_t kStepsBetweenChecks = 100;

struct NamedValue {
  std::string name;
  at::Tensor value;
};

/// Compares the bits of tensors over the ranks of `group`. Collective and blocking, whether or not
/// checks_values(). Throws the same UsageError on every rank where names, shapes, dtypes or values
/// differ; it names the first tensors that do, the ranks that differ from rank 0, and by how much.
/// @param what they are, for the message: `parameters after step 100`.
///
///     if (comm::checks_values()) comm::check_equal_values(parameters, group, "parameters");
void check_equal_values(std::span<const NamedValue> values, const Group& group,
                        std::string_view what);

/// A number that follows from the bits of a tensor's elements and from their places: other values,
/// or the same in another order, have another one, but for chance. Needs about a megabyte, and a
/// copy of a tensor that is not contiguous.
std::int64_t digest_of_values(const at::Tensor& tensor);

}  // namespace trireme::comm
