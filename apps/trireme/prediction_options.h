// SPDX-License-Identifier: Apache-2.0
// Words of the command line for what predictions are told.
#pragma once

#include <trireme/predict/predict.h>

#include <string>

namespace trireme::apps {

/// Returns the optimizer named `sgd`, `momentum` or `adam`.
inline predict::Optimizer optimizer_of(const std::string& name) {
  if (name == "sgd") return predict::Optimizer::kSgd;
  if (name == "momentum") return predict::Optimizer::kMomentum;
  return predict::Optimizer::kAdam;
}

}  // namespace trireme::apps
