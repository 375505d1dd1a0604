// SPDX-License-Identifier: Apache-2.0
// The version of Trireme, which `trireme --version` prints. tools/versions.env contains it too, and
// configuring a build fails if the two differ.
#pragma once

#define TRIREME_VERSION_MAJOR 0  ///< Raised by releases that break programs.
#define TRIREME_VERSION_MINOR 1  ///< Raised by releases that add features.
#define TRIREME_VERSION_PATCH 0  ///< Raised by releases that fix errors.

/// The three numbers as text, such as "0.1.0".
#define TRIREME_VERSION "0.1.0"
