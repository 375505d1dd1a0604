// SPDX-License-Identifier: Apache-2.0
// What every page carries with it.
#pragma once

#include <string_view>

namespace trireme::report {

/// The style sheet: light and dark by the reader's preference, light on paper. Ranks have colours
/// near those of Okabe and Ito (https://jfly.uni-koeln.de/color), which stay apart by 14 (CIE 1976)
/// or more also where one kind of cone is missing (Machado et al. 2009), those of phases by 12.
std::string_view style_sheet();

/// Shows the numbers of the column under the pointer (or moved to by arrow keys), and hides what is
/// chosen in a legend.
std::string_view page_script();

}  // namespace trireme::report
