// SPDX-License-Identifier: Apache-2.0
// deferred() and materialize(): construct modules without memory, and allocate it later.
// Programs include this header; it includes the implementation's.
#pragma once

#include <trireme/parallel/init/deferred.h>
