// SPDX-License-Identifier: Apache-2.0
#include <trireme/checkpoint/consensus.h>

#include <trireme/base/error.h>
#include <trireme/comm/consensus.h>

#include <utility>

namespace trireme::checkpoint {

std::vector<std::string> agree(const comm::Group& group, std::string_view action,
                               const std::function<std::string()>& work) {
  comm::check_given(group, "agree");
  if (group.size() == 1) return {work()};
  comm::Outcomes outcomes = comm::run_on_all(group, work);
  const int failed = outcomes.first_failed();
  if (failed < 0) return std::move(outcomes.texts);
  throw CheckpointError(join_message("rank ", failed, " ", action, ": ",
                                     outcomes.texts[static_cast<std::size_t>(failed)]),
                        "");
}

}  // namespace trireme::checkpoint
