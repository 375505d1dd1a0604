// SPDX-License-Identifier: Apache-2.0
// The splits of a published data set.
#pragma once

namespace trireme::data {

/// The training or the test part of a published data set.
enum class Split { kTrain, kTest };

}  // namespace trireme::data
