// SPDX-License-Identifier: Apache-2.0
#include <trireme/train/loop/callback_calls.h>

#include <trireme/base/error.h>
#include <trireme/base/exception_text.h>
#include <trireme/base/format_ranks.h>
#include <trireme/base/text.h>
#include <trireme/comm/collectives.h>

#include <algorithm>
#include <vector>

namespace trireme::detail {
namespace {

// A message that several ranks share except for their numbers, such as `rank 1, reading data: …`.
struct Told {
  std::string before;
  std::vector<int> ranks;
  std::string after;
};

// Splits a message at the first `rank N`. Names of callbacks may contain the word `rank` too.
Told without_rank(const std::string& message) {
  constexpr std::string_view kRank = "rank ";
  for (std::size_t at = message.find(kRank); at != std::string::npos;
       at = message.find(kRank, at + 1)) {
    const std::size_t begin = at + kRank.size();
    const std::size_t end =
        std::min(message.find_first_not_of("0123456789", begin), message.size());
    const auto rank = parse_number<int>(std::string_view(message).substr(begin, end - begin));
    if (rank) return {message.substr(0, at), {*rank}, message.substr(end)};
  }
  return {.before = message, .ranks = {}, .after = {}};
}

// Returns each failure once, with the ranks that had it.
std::string told_once(const std::vector<std::string>& messages) {
  std::vector<Told> all;
  for (const std::string& message : messages) {
    if (message.empty()) continue;
    Told told = without_rank(message);
    const auto same = std::ranges::find_if(all, [&](const Told& other) {
      return other.before == told.before && other.after == told.after;
    });
    if (same == all.end()) {
      all.push_back(std::move(told));
    } else {
      same->ranks.insert(same->ranks.end(), told.ranks.begin(), told.ranks.end());
    }
  }
  std::string text;
  for (const Told& told : all) {
    text += (text.empty() ? "" : "; ") + told.before +
            (told.ranks.empty() ? "" : format_ranks(told.ranks)) + told.after;
  }
  return text;
}

}  // namespace

// Must be called while an exception is handled.
void Failures::keep_or_throw(const std::string& who) {
  if (group_.size() == 1) throw;
  const std::exception_ptr thrown = std::current_exception();
  try {
    throw;
  } catch (const CommError&) {
    throw;
  } catch (...) {
    if (exception_) return;
    exception_ = thrown;
    message_ = join_message(who, ": ", message_of(thrown));
  }
}

void Failures::throw_on_all(std::string_view what) const {
  const std::string messages = told_once(comm::all_gather_text(message_, group_));
  const auto error = [&] {
    return TrainingError(join_message(what, " failed: ", messages),
                         "all ranks have stopped together; fix what is said here, and go on from "
                         "a checkpoint");
  };
  if (!exception_) throw error();
  try {
    std::rethrow_exception(exception_);
  } catch (...) {
    std::throw_with_nested(error());
  }
}

std::string CallbackCalls::name_of(std::string_view doing) const {
  return join_message("rank ", rank_, ", ", doing, place());
}

std::string CallbackCalls::name_of(const Callback& callback, std::string_view hook) const {
  return join_message("callback ", callback.name(), " on rank ", rank_, ", in ", hook, place());
}

std::string CallbackCalls::place() const {
  if (global_step_ == 0) return " before the first step";
  return join_message(" in epoch ", epoch_, ", step ", global_step_, " of all");
}

}  // namespace trireme::detail
