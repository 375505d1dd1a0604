// SPDX-License-Identifier: Apache-2.0
// Hooks of LambdaCallback that are none: "no matching constructor" used to be all that was said.
#include <trireme/train/lambda_callback.h>

namespace trireme {

void make_callbacks() {
  int steps = 0;
  const LambdaCallback good({.step_end = [&](const StepEndContext& /*step*/) { ++steps; }});
  const LambdaCallback none({.step_end = nullptr, .epoch_end = nullptr});
  const LambdaCallback by_hook({.on_step_end = [&](const StepEndContext& /*step*/) {}});  // refused
  const LambdaCallback of_number({.step_end = [&](int /*step*/) {}});                     // refused
  const LambdaCallback of_step({.run_begin = [&](const StepContext& /*step*/) {}});       // refused
}

}  // namespace trireme
