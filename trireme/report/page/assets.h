// SPDX-License-Identifier: Apache-2.0
// The style sheet and the script that are part of every page.
#pragma once

#include <string_view>

namespace trireme::report {

/// Returns the style sheet. It is light or dark as the reader prefers, and light on paper. The
/// colours of ranks are close to those of Okabe and Ito (https://jfly.uni-koeln.de/color). They
/// differ by at least 14 (CIE 1976), also for readers who lack one kind of cone (Machado et al.
/// 2009). The colours of phases differ by at least 12.
std::string_view style_sheet();

/// Returns the script. It shows the numbers of the column under the pointer or the arrow keys, and
/// hides the series chosen in a legend.
std::string_view page_script();

}  // namespace trireme::report
