// SPDX-License-Identifier: Apache-2.0
// The command `trireme doctor`, which examines the machine and this build, and says how to fix
// problems.
#pragma once

namespace trireme::apps {

/// Prints the findings. Returns 0 if everything is in order, otherwise 1.
int examine();

/// Runs as one of the two ranks of the self-test: joins the other one and adds with it. Throws on
/// failure.
void act_as_rank();

}  // namespace trireme::apps
