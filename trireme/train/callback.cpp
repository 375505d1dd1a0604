// SPDX-License-Identifier: Apache-2.0
#include <trireme/train/callback.h>

#include <c10/util/Type.h>

#include <typeinfo>

namespace trireme {

std::string Callback::name() const { return c10::demangle(typeid(*this).name()); }

}  // namespace trireme
