// SPDX-License-Identifier: Apache-2.0
// Words of the command line for what predictions are told.
#pragma once

#include <trireme/predict/fused_elements.h>
#include <trireme/predict/predict.h>

#include <string>

namespace trireme::apps {

/// Returns the optimizer named `sgd`, `momentum` or `adam`.
inline predict::Optimizer optimizer_of(const std::string& name) {
  if (name == "sgd") return predict::Optimizer::kSgd;
  if (name == "momentum") return predict::Optimizer::kMomentum;
  return predict::Optimizer::kAdam;
}

/// Returns how operators on elements run: `eager`, `fused` or `compiled`.
inline predict::Elements elements_of(const std::string& name) {
  if (name == "eager") return predict::Elements::kEager;
  return name == "fused" ? predict::Elements::kFused : predict::Elements::kCompiled;
}

}  // namespace trireme::apps
