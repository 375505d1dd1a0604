// SPDX-License-Identifier: Apache-2.0
// A schedule as a picture: ranks down, time across.
#pragma once

#include <trireme/schedule/schedule.h>
#include <trireme/schedule/timeline.h>

#include <string>

namespace trireme::schedule {

/// Returns an SVG that needs nothing beside itself, light or dark by the reader's preference. Each
/// action that takes time is a box with the number of its micro-batch, coloured by its kind and
/// paler for later chunks of a rank; what it is and when stands in its title. Above: name, step
/// time, bubble, and how much is kept. The same schedule and times give the same text.
std::string to_svg(const Schedule& schedule, const Timeline& timeline);

}  // namespace trireme::schedule
