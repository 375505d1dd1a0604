// SPDX-License-Identifier: Apache-2.0
// Construction of modules that are larger than a process's memory. Parameters and buffers have no
// memory at first. They get it, and their initial values, when the module is made parallel.
#pragma once

#include <trireme/graph/module_ref.h>

#include <ATen/core/Tensor.h>

#include <memory>
#include <utility>
#include <vector>

namespace torch::nn {
class Module;
}

namespace trireme {

namespace detail {

enum class Deferral;

/// Records the operators of this thread while it lives. A scope within another one belongs to it.
class DeferredScope {
 public:
  DeferredScope();
  explicit DeferredScope(Deferral deferral);
  ~DeferredScope();
  DeferredScope(const DeferredScope&) = delete;
  DeferredScope& operator=(const DeferredScope&) = delete;
  /// Says that the constructor has returned. Without this call the destructor restores generators.
  void finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace detail

/// Calls `make`, which constructs a module, and returns its result. Tensors made by `make` have
/// sizes, strides, dtype and device but no memory. The operators that compute their values are
/// recorded. `parallelize` or `materialize` runs them later and gives the same values as `make()`
/// alone would have given, bit for bit, random ones included. Tensors of up to 1 MiB are allocated
/// at once, and keep their memory unless `make` writes random or deferred values into them.
///
///     torch::manual_seed(7);
///     auto model = trireme::deferred([] { return models::gpt(options); });
///     auto parallel = trireme::parallelize(*model, {.data_parallel = true, .zero_level = 3}, group);
///
/// Random generators:
/// - A generator that `make` draws from is left in a different state, so that two modules do not
///   start from the same numbers.
/// - When the values are computed, the generator is set to the state that `make()` alone would have
///   left, unless it was used or seeded in between. Several modules constructed in a row on one
///   thread get the same values as without deferred(), whichever is made parallel first.
/// - Numbers drawn in between are not those that would have come without deferred(). They depend
///   on how many draws this process has deferred before.
/// - `make` may seed a generator, or restore a state that it read before the first draw. A state or
///   clone() taken after a draw is meaningless: drawing from it throws UsageError.
///
/// On several ranks, if the plan has broadcast_parameters, random numbers are those of rank 0.
/// Parameters that stay whole get rank 0's values, whatever `make` did elsewhere. For parameters
/// that the plan cuts (ZeRO level 3), `make` must compute the same values on every rank, apart from
/// random numbers. `parallelize` throws UsageError naming the first parameter that differs.
///
/// Before the values are computed, an operator that needs the memory of a deferred tensor throws
/// c10::Error. Within `make`, such an operator gets the values if they do not depend on random
/// numbers; otherwise it throws UsageError naming the operator. An ordinary tensor that is used to
/// compute deferred values is copied. If `make` throws, deferred() rethrows the exception and
/// restores each generator to its state before the first draw.
///
/// Thread-safe for modules of different threads. Modules that one thread constructed in a row from
/// one generator are linked: make them parallel from one thread at a time.
template <typename Make>
auto deferred(Make&& make) {
  detail::DeferredScope scope;
  auto made = std::forward<Make>(make)();
  scope.finish();
  return made;
}

/// Allocates the parameters and buffers of `module` that have no memory yet, and computes their
/// values. Concerns this process only: use it to look at a module, or with ZeRO levels below 3.
/// Does nothing to tensors that have memory. Thread-safe like deferred().
void materialize(ConstModuleRef module);

/// Does the same for given tensors, such as ones that are neither parameters nor buffers.
void materialize(const std::vector<at::Tensor>& tensors);

}  // namespace trireme
