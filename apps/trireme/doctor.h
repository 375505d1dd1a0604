// SPDX-License-Identifier: Apache-2.0
// `trireme doctor`: looks at this machine and this build, and says what works and what to do about
// the rest.
#pragma once

namespace trireme::apps {

/// Prints what was found; returns 0 where everything is in order and 1 where something is not.
int examine();

/// Meets the other process of the self-test and adds with it. Throws where that fails.
void act_as_rank();

}  // namespace trireme::apps
