// SPDX-License-Identifier: Apache-2.0
// Turns exceptions of Trireme into those of trireme.errors.
#pragma once

#include <trireme/base/error.h>

namespace trireme::python {

/// Sets Python's current exception to the class of trireme.errors that has the name of the class of
/// `error`, or to trireme.errors.Error. It has the same message and the details of a CommError.
/// Needs the GIL.
void set_exception(const Error& error);

}  // namespace trireme::python
