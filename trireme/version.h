// SPDX-License-Identifier: Apache-2.0
// The version of these headers. tools/versions.env is where it is changed: configuring a build
// fails until this file says the same. `trireme --version` prints it.
#pragma once

#define TRIREME_VERSION_MAJOR 0  ///< Raised by releases that change what programs rely on.
#define TRIREME_VERSION_MINOR 1  ///< Raised by releases that add something.
#define TRIREME_VERSION_PATCH 0  ///< Raised by releases that fix something.

/// The three numbers as text, such as "0.1.0".
#define TRIREME_VERSION "0.1.0"
