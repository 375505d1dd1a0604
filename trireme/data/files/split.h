// SPDX-License-Identifier: Apache-2.0
// Which part of a published data set.
#pragma once

namespace trireme::data {

enum class Split { kTrain, kTest };

}  // namespace trireme::data
