// SPDX-License-Identifier: Apache-2.0
#include <trireme/checkpoint/consensus.h>

#include <trireme/base/error.h>
#include <trireme/base/exception_text.h>
#include <trireme/comm/collectives.h>

namespace trireme::checkpoint {

std::vector<std::string> agree(const comm::Group& group, std::string_view action,
                               const std::function<std::string()>& work) {
  comm::check_given(group, "agree");
  if (group.size() == 1) return {work()};
  std::string own;
  bool is_done = false;
  try {
    own = work();
    is_done = true;
  } catch (const CommError&) {
    throw;  // A dead group cannot agree; the other ranks notice it themselves.
  } catch (const std::exception& error) {
    own = message_of(error);
  } catch (...) {
    own = "an exception that is no std::exception";
  }
  // The first character tells success or failure.
  auto all = comm::all_gather_text(join_message(is_done ? '+' : '-', own), group);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].front() == '+') continue;
    throw CheckpointError(join_message("rank ", rank, " ", action, ": ", all[rank].substr(1)), "");
  }
  for (std::string& text : all) text.erase(0, 1);
  return all;
}

}  // namespace trireme::checkpoint
