// SPDX-License-Identifier: Apache-2.0
// All ranks agree, or all of them fail with the same error: comparing what they were given, and
// doing what may fail on some of them. A rank that threw alone would leave the others waiting.
// Everything here is collective and blocking.
#pragma once

#include <trireme/comm/group.h>

#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::comm {

/// The first line in which the text of a rank differs from that of rank 0; `nothing more` where one
/// of them ends.
struct TextDifference {
  int rank = 0;  ///< the first that differs
  std::string line_of_first;
  std::string line_of_rank;
};

/// Compares a text on all ranks, by digests first; returns the same on every rank.
std::optional<TextDifference> find_difference(const std::string& text, const Group& group);

/// Throws the same UsageError on every rank unless all gave the same text, which says which ranks
/// gave which. @param what the text says, for the message: `axes of a mesh`.
void check_same_text(std::string_view what, const std::string& text, const Group& group);

/// How a piece of work went on every rank.
struct Outcomes {
  /// By rank: what `work` returned, or the message of what it threw.
  std::vector<std::string> texts;
  std::vector<bool> has_failed;  ///< by rank
  std::exception_ptr own = {};   ///< what `work` threw on this rank; null where it did not

  /// Returns the first rank that failed; -1 where none did.
  int first_failed() const;
};

/// Runs `work` on every rank and tells each how it went on all. A CommError passes at once, for the
/// others learn of it by themselves.
Outcomes run_on_all(const Group& group, const std::function<std::string()>& work);

/// Runs `call` on every rank; throws what it throws, and on the ranks where it does not, a
/// UsageError with rank and message of the first where it did. @param doing for the message: `cut
/// the module`.
void succeed_together(std::string_view doing, const Group& group,
                      const std::function<void()>& call);

}  // namespace trireme::comm
