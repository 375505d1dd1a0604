// SPDX-License-Identifier: Apache-2.0
// SaveOptions as part of a program's configuration. Score, file layer and leave_out are set by the
// program.
#pragma once

#include <trireme/base/config/fields.h>
#include <trireme/checkpoint/checkpoint.h>

namespace trireme::checkpoint {

/// Adds the fields of SaveOptions to a configuration.
void describe(config::Fields& fields, SaveOptions& options);

}  // namespace trireme::checkpoint
