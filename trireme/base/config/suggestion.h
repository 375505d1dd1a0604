// SPDX-License-Identifier: Apache-2.0
// The word that was meant by one that nobody knows.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::config {

/// Returns in how many letters two words differ: letters missing, added, changed, or two neighbours
/// exchanged (the optimal string alignment distance). Capitals count as small letters and `-` as
/// `_`. O(|a| |b|).
std::size_t edit_distance(std::string_view a, std::string_view b);

/// Returns the candidate that differs in the fewest letters, the first of equals; nothing where all
/// differ in more than a third of the letters.
std::optional<std::string> closest_match(std::string_view word,
                                         std::span<const std::string> candidates);

/// Returns `did you mean 'candidate'?` for the nearest; nothing where there is none.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace trireme::config
