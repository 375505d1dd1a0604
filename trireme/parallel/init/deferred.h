// SPDX-License-Identifier: Apache-2.0
// Modules that are larger than the memory: constructed without any for their parameters and
// buffers, which get it, and their initial values, when the module is made parallel.
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

/// A construction under way on this thread. One within another is part of it.
class DeferredScope {
 public:
  DeferredScope();
  ~DeferredScope();
  DeferredScope(const DeferredScope&) = delete;
  DeferredScope& operator=(const DeferredScope&) = delete;
  void finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace detail

/// Calls `make`, which constructs a module, and returns what it returns. Tensors made within have
/// their sizes, strides, type and device, but no memory: operators that give them values are
/// recorded, and are run by `parallelize` or `materialize`, with the very same values as `make()`
/// alone would have given, bit for bit, random ones included. Constants of up to 1 MiB are made at
/// once.
///
///     torch::manual_seed(7);
///     auto model = trireme::deferred([] { return models::gpt(options); });
///     auto parallel = trireme::parallelize(*model, {.data_parallel = true, .zero_level = 3}, group);
///
/// The random numbers: a generator that `make` draws from is left in a state of its own, so that
/// two modules do not start from the same numbers. When the values are made it is put where
/// `make()` alone would have left it, unless it has been used or seeded in between; several modules
/// in a row, on one thread, are as without deferred() whichever is first made parallel. Numbers
/// drawn from it in between are not those that would have come without deferred(), and depend on
/// how many draws this process has deferred before. `make` may seed a generator, or put it back in
/// a state that it read before the first draw. A state read, or a clone() made, after a draw stands
/// for nothing: drawing from it throws UsageError.
///
/// On several ranks the random numbers are those of rank 0, and so are the values, whatever `make`
/// did there, of parameters that stay whole. For those that the plan cuts (ZeRO level 3) it must
/// give the same values on every rank, random numbers apart: `parallelize` throws UsageError naming
/// the first that differs. All this with the plan's broadcast_parameters.
///
/// Until then, an operator that needs the memory of such a tensor throws c10::Error saying so.
/// Within `make`, code that needs values gets them if no random number went into them; else it
/// throws UsageError naming the operator. An ordinary tensor that goes into such values is copied;
/// one that `make` fills at random has no memory afterwards either. If `make` throws, so does
/// deferred(), and puts each generator back in the state in which it was first drawn from.
///
/// Thread-safe for modules of different threads. Two that one thread made one after the other with
/// numbers of one generator are linked: make them parallel from one thread at a time.
template <typename Make>
auto deferred(Make&& make) {
  detail::DeferredScope scope;
  auto made = std::forward<Make>(make)();
  scope.finish();
  return made;
}

/// Gives the parameters and buffers of `module` that have no memory yet memory and their values, on
/// this process alone: for ZeRO levels below 3, or to look at a module. Does nothing to others.
/// Thread-safe like deferred().
void materialize(ConstModuleRef module);

/// The same for tensors that are neither parameter nor buffer.
void materialize(const std::vector<at::Tensor>& tensors);

}  // namespace trireme
