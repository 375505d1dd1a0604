// SPDX-License-Identifier: Apache-2.0
#include <trireme/comm/consensus.h>

#include <trireme/base/error.h>
#include <trireme/base/exception_text.h>
#include <trireme/base/text.h>
#include <trireme/comm/collectives.h>

#include <c10/util/hash.h>

#include <algorithm>

namespace trireme::comm {
namespace {

// Returns the first rank whose text differs from that of rank 0.
std::optional<std::size_t> first_other(const std::vector<std::string>& texts) {
  const auto other =
      std::ranges::find_if(texts, [&](const std::string& text) { return text != texts.front(); });
  if (other == texts.end()) return std::nullopt;
  return static_cast<std::size_t>(other - texts.begin());
}

// Returns the ranks that gave `text`, such as `rank 0` or `ranks 1, 2`.
std::string describe_ranks(const std::vector<std::string>& texts, const std::string& text) {
  constexpr int kNamed = 8;
  TextWriter ranks;
  const auto count = std::ranges::count(texts, text);
  ranks << (count == 1 ? "rank " : "ranks ");
  int named = 0;
  for (std::size_t rank = 0; rank < texts.size() && named < kNamed; ++rank) {
    if (texts[rank] == text) ranks << (named++ == 0 ? "" : ", ") << rank;
  }
  if (count > named) ranks << " and " << count - named << " more";
  return ranks.str();
}

}  // namespace

std::optional<TextDifference> find_difference(const std::string& text, const Group& group) {
  const auto other = first_other(all_gather_text(c10::sha1(text).str(), group));
  if (!other) return std::nullopt;
  const std::vector<std::string> all = all_gather_text(text, group);
  TextReader lines_of_first(all.front());
  TextReader lines_of_other(all[*other]);
  TextDifference difference = {.rank = static_cast<int>(*other)};
  while (true) {
    const bool has_first =
        static_cast<bool>(std::getline(lines_of_first, difference.line_of_first));
    const bool has_other = static_cast<bool>(std::getline(lines_of_other, difference.line_of_rank));
    if (!has_first) difference.line_of_first = "nothing more";
    if (!has_other) difference.line_of_rank = "nothing more";
    if (difference.line_of_first != difference.line_of_rank || (!has_first && !has_other)) {
      return difference;
    }
  }
}

void check_same_text(std::string_view what, const std::string& text, const Group& group) {
  const std::vector<std::string> all = all_gather_text(text, group);
  if (!first_other(all)) return;
  TextWriter given;
  for (auto one = all.begin(); one != all.end(); ++one) {
    if (std::find(all.begin(), one, *one) != one) continue;
    given << (one == all.begin() ? "" : "; ") << describe_ranks(all, *one) << " gave " << *one;
  }
  throw UsageError(
      join_message("ranks of group '", group.name(), "' differ in the ", what, ": ", given.str()),
      "give the same on every rank");
}

int Outcomes::first_failed() const {
  const auto first = std::ranges::find(has_failed, true);
  return first == has_failed.end() ? -1 : static_cast<int>(first - has_failed.begin());
}

Outcomes run_on_all(const Group& group, const std::function<std::string()>& work) {
  Outcomes outcomes;
  std::string own;
  try {
    own = work();
  } catch (const CommError&) {
    throw;
  } catch (const std::exception& error) {
    outcomes.own = std::current_exception();
    own = message_of(error);
  } catch (...) {
    outcomes.own = std::current_exception();
    own = "an exception that is no std::exception";
  }
  // The first character says whether the rank has failed.
  for (std::string& text : all_gather_text((outcomes.own ? '-' : '+') + own, group)) {
    outcomes.has_failed.push_back(text.starts_with('-'));
    outcomes.texts.push_back(text.empty() ? text : text.substr(1));
  }
  return outcomes;
}

void Outcomes::throw_failure(std::string_view doing) const {
  if (own) std::rethrow_exception(own);
  const int first = first_failed();
  if (first < 0) return;
  throw UsageError(join_message("rank ", first, " could not ", doing,
                                " and failed: ", texts[static_cast<std::size_t>(first)]),
                   "do on that rank what its message says; this one only follows it");
}

void succeed_together(std::string_view doing, const Group& group,
                      const std::function<void()>& call) {
  const auto work = [&] {
    call();
    return std::string();
  };
  run_on_all(group, work).throw_failure(doing);
}

}  // namespace trireme::comm
