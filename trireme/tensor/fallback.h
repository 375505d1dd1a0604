// SPDX-License-Identifier: Apache-2.0
// Makes a function the fallback of a dispatch key of LibTorch, which then calls it for every
// operator on tensors with that key.
#pragma once

#include <c10/core/DispatchKey.h>
#include <torch/library.h>

namespace trireme::tensor {

/// Makes the boxed kernel `Kernel` the fallback of `key`. Further calls do nothing. Thread-safe.
template <auto* Kernel>
void install_fallback(c10::DispatchKey key) {
  // Never destroyed: LibTorch's dispatcher may be destroyed first.
  static const auto* const library = [key] {
    auto* made = new torch::Library(torch::Library::IMPL, "_", key, __FILE__, __LINE__);
    made->fallback(torch::CppFunction::makeFromBoxedFunction<Kernel>());
    return made;
  }();
  static_cast<void>(library);
}

}  // namespace trireme::tensor
