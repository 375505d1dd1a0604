// SPDX-License-Identifier: Apache-2.0
// Fuses consecutive operators on elements in a record, as compilers and hand-written kernels do.
#pragma once

#include <trireme/parallel/record/module_record.h>

#include <string>

namespace trireme::predict {

/// How operators on elements (everything but products and attention) run.
enum class Elements {
  kEager,  ///< each one as a kernel of its own, as LibTorch does
  /// Consecutive ones as one kernel: what only that kernel reads is not written to memory. So do
  /// the fused kernels of Megatron-LM (Narayanan et al. 2021, section 4.2) and XLA.
  kFused,
  /// The same, and backward computes results again from what is kept anyway, as torch.compile's
  /// partitioner does.
  kCompiled,
};

/// Returns the choice named `eager`, `fused` or `compiled`. Throws ConfigError for another name.
Elements elements_of(const std::string& name);

/// Returns the record as it runs with fused operators. Consecutive operators on elements form a
/// kernel, which ends at a product, at attention and before a collective. The first of them has the
/// whole work of the kernel: every tensor from outside is read once, and only what is read outside
/// is written. kEager returns the record itself.
///
/// kCompiled also chooses what forward keeps. A result of a kernel that backward reads is not kept
/// if it can be computed from kept tensors, parameters and inputs; a smaller input of the kernel is
/// kept in its place.
ModuleRecord fuse_elements(ModuleRecord record, Elements elements);

}  // namespace trireme::predict
