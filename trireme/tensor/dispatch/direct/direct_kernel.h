// SPDX-License-Identifier: Apache-2.0
// Kernels with the C++ signature of their operator. Boxing arguments into IValues and unboxing them
// takes as long as the rest of a short call, and several times as long for long lists.
#pragma once

#include <trireme/tensor/dispatch/direct/direct_call.h>
#include <trireme/tensor/dispatch/kernel.h>

#include <ATen/core/boxing/KernelFunction.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>

namespace trireme::tensor {

/// The kernel of `Operator`, one of at::_ops. It runs calls that only need the operator on local
/// tensors. All other calls go to the boxed kernel, and so does the first call of each kind, for
/// which no decision has been made. Apart from tensors, the operator may only have arguments whose
/// value no rule reads. Thread-safe.
template <class Operator, class Schema = typename Operator::schema>
class DirectKernel;

template <class Operator, class Result, class... Arguments>
class DirectKernel<Operator, Result(Arguments...)> {
 public:
  DirectKernel(c10::OperatorHandle op, std::unique_ptr<DistributedKernel> boxed)
      : op_(std::move(op)),
        facts_(boxed->facts()),
        boxed_(c10::KernelFunction::makeFromBoxedFunctor(std::move(boxed))) {}

  Result operator()(Arguments... arguments) const {
    {
      DirectCall call(facts_);
      (call.add(arguments), ...);
      if (call.is_ready()) return run(call, arguments...);
    }
    return boxed_.template call<Result, Arguments...>(
        op_, c10::DispatchKeySet(c10::DispatchKey::PrivateUse2),
        std::forward<Arguments>(arguments)...);
  }

 private:
  static Result run(DirectCall& call, Arguments... arguments) {
    const c10::impl::ExcludeDispatchKeyGuard below(kAboveLocal);
    // Braces fix the order of evaluation: locals are taken in the order of the arguments.
    std::tuple<decltype(call.local(arguments))...> locals{call.local(arguments)...};
    if constexpr (std::is_void_v<Result>) {
      std::apply(Operator::call, locals);
      call.give_nothing();
    } else if constexpr (std::is_reference_v<Result>) {
      std::apply(Operator::call, locals);
      Result written = std::get<0>(std::tie(arguments...));
      call.give_written(written);
      return written;
    } else {
      return call.give(std::apply(Operator::call, locals));
    }
  }

  c10::OperatorHandle op_;
  const OperatorFacts& facts_;  // of the boxed kernel
  c10::KernelFunction boxed_;
};

}  // namespace trireme::tensor
