// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/horovod/calls.h>

#include <trireme/base/error.h>
#include <trireme/comm/collectives.h>

#include <algorithm>

namespace trireme::hvd::detail {

std::vector<std::string> exchange_calls(const std::string& call, const std::string& description,
                                        const Mistake& mistake, const comm::Group& group) {
  const bool is_right = mistake.message.empty();
  // The first character tells descriptions from mistakes. A line break separates a mistake's parts.
  std::vector<std::string> all = comm::all_gather_text(
      is_right ? "+" + description : join_message("-", mistake.message, "\n", mistake.hint), group);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const std::string kind = all[rank].substr(0, 1);
    all[rank].erase(0, 1);
    if (kind == "+") continue;
    const auto end = all[rank].rfind('\n');
    throw UsageError(join_message(call, " on rank ", rank, ": ", all[rank].substr(0, end)),
                     all[rank].substr(end + 1));
  }
  return all;
}

void check_same_call(const std::string& call, const std::string& description,
                     const Mistake& mistake, const comm::Group& group) {
  const auto all = exchange_calls(call, description, mistake, group);
  const auto other = std::ranges::find_if(all, [&](const auto& text) { return text != all[0]; });
  if (other == all.end()) return;
  throw UsageError(join_message(call, " differs between ranks: rank 0 has ", all[0], ", rank ",
                                other - all.begin(), " has ", *other),
                   "make the same call on every rank");
}

}  // namespace trireme::hvd::detail
