// SPDX-License-Identifier: Apache-2.0
// SaveOptions as a part of a program's configuration. Score, file layer and what is
// left out are the program's to give.
#pragma once

#include <trireme/base/config/fields.h>
#include <trireme/checkpoint/checkpoint.h>

namespace trireme::checkpoint {

void describe(config::Fields& fields, SaveOptions& options);

}  // namespace trireme::checkpoint
