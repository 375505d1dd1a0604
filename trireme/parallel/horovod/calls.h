// SPDX-License-Identifier: Apache-2.0
// Collective checks that all ranks make the same call of Horovod's interface, before anything is
// exchanged.
#pragma once

#include <trireme/comm/group.h>

#include <string>
#include <vector>

namespace trireme::hvd::detail {

/// The mistake in this rank's call; the message is empty if there is none.
struct Mistake {
  std::string message;
  std::string hint;
};

/// Returns the description that each rank gives of its call, by rank. Collective and blocking. If
/// ranks made mistakes, throws a UsageError about the first of them, the same on every rank.
std::vector<std::string> exchange_calls(const std::string& call, const std::string& description,
                                        const Mistake& mistake, const comm::Group& group);

/// Does the same for descriptions that must be equal. Throws UsageError with both sides if they
/// differ.
void check_same_call(const std::string& call, const std::string& description,
                     const Mistake& mistake, const comm::Group& group);

}  // namespace trireme::hvd::detail
