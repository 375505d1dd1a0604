// SPDX-License-Identifier: Apache-2.0
// Suggests a known word for a misspelled one.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::config {

/// Returns the optimal string alignment distance: the number of letters to insert, delete, change
/// or exchange with their neighbour. Capitals equal small letters, and `-` equals `_`. Takes O(|a|
/// |b|) time.
std::size_t edit_distance(std::string_view a, std::string_view b);

/// Returns the candidate with the smallest distance, the first among equals. Returns std::nullopt
/// if all candidates differ in more than a third of the letters.
std::optional<std::string> closest_match(std::string_view word,
                                         std::span<const std::string> candidates);

/// Returns `did you mean 'candidate'?` for the closest match, or an empty text if there is none.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace trireme::config
