// SPDX-License-Identifier: Apache-2.0
// Functions by which all ranks agree, or all fail with the same error. They compare what the ranks
// were given, and run work that may fail on some ranks. A rank that threw alone would leave the
// others waiting. All functions are collective and blocking.
#pragma once

#include <trireme/comm/group.h>

#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::comm {

/// The first line in which the text of a rank differs from that of rank 0. A line is `nothing more`
/// if its text has ended before.
struct TextDifference {
  int rank = 0;               ///< the first rank whose text differs
  std::string line_of_first;  ///< the line of rank 0
  std::string line_of_rank;   ///< the line of that rank
};

/// Compares a text on all ranks. Returns the same difference on every rank, or nothing if all texts
/// are equal. Exchanges digests first, and texts only if these differ.
std::optional<TextDifference> find_difference(const std::string& text, const Group& group);

/// Throws the same UsageError on every rank unless all ranks gave the same text. The error says
/// which ranks gave which text.
/// @param what describes the text in the message, such as `axes of a mesh`.
void check_same_text(std::string_view what, const std::string& text, const Group& group);

/// The results of a piece of work on all ranks.
struct Outcomes {
  /// By rank: the text that `work` returned, or the message of the exception that it threw.
  std::vector<std::string> texts;
  std::vector<bool> has_failed;  ///< by rank: true if `work` threw
  std::exception_ptr own = {};   ///< the exception of `work` on this rank, or null

  /// Returns the first rank that failed; -1 if none did.
  int first_failed() const;

  /// Throws if `work` threw on any rank: its own exception on a rank where it did, and UsageError
  /// on the others, with the first rank that failed and its message.
  /// @param doing what `work` does, for the message, such as `cut the module`.
  void throw_failure(std::string_view doing) const;
};

/// Runs `work` on every rank and returns the results of all. `work` itself must not communicate,
/// since a rank that fails would not take part in that. A CommError is thrown at once, because
/// it ends the group for the other ranks as well.
Outcomes run_on_all(const Group& group, const std::function<std::string()>& work);

/// Runs `call` on every rank. Throws on all ranks if `call` throws on any, as
/// Outcomes::throw_failure does.
void succeed_together(std::string_view doing, const Group& group,
                      const std::function<void()>& call);

}  // namespace trireme::comm
