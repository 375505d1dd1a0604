// SPDX-License-Identifier: Apache-2.0
#include <trireme/base/config/suggestion.h>

#include <trireme/base/text.h>

#include <algorithm>

namespace trireme::config {
namespace {

char plain(char letter) { return letter == '-' ? '_' : ascii_lower(letter); }

}  // namespace

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> two_above;
  std::vector<std::size_t> above(b.size() + 1);
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) above[j] = j;
  // Only the last two rows of the dynamic programme are kept.
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const bool equal = plain(a[i - 1]) == plain(b[j - 1]);
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, above[j - 1] + (equal ? 0U : 1U)});
      const bool exchanged = i > 1 && j > 1 && plain(a[i - 1]) == plain(b[j - 2]) &&
                             plain(a[i - 2]) == plain(b[j - 1]);
      if (exchanged) row[j] = std::min(row[j], two_above[j - 2] + 1);
    }
    two_above = above;
    above = row;
  }
  return above[b.size()];
}

std::optional<std::string> closest_match(std::string_view word,
                                         std::span<const std::string> candidates) {
  std::optional<std::string> best;
  std::size_t least = 0;
  for (const std::string& candidate : candidates) {
    const std::size_t distance = edit_distance(word, candidate);
    const std::size_t letters = std::max(word.size(), candidate.size());
    if (3 * distance > std::max<std::size_t>(letters, 3)) continue;
    if (best && distance >= least) continue;
    best = candidate;
    least = distance;
  }
  return best;
}

std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates) {
  const auto found = closest_match(word, candidates);
  return found ? "did you mean '" + *found + "'?" : std::string();
}

}  // namespace trireme::config
