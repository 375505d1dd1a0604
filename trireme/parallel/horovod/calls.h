// SPDX-License-Identifier: Apache-2.0
// Proves that all ranks make a call of Horovod's interface alike, before anything is exchanged.
#pragma once

#include <trireme/comm/group.h>

#include <string>
#include <vector>

namespace trireme::hvd::detail {

/// What is wrong with a call on this rank; empty where nothing is.
struct Mistake {
  std::string message;
  std::string hint;
};

/// Returns every rank's description of its call, by rank. Collective, blocking. Throws the same
/// UsageError on every rank where one or more have made a mistake: that of the first such rank.
std::vector<std::string> exchange_calls(const std::string& call, const std::string& description,
                                        const Mistake& mistake, const comm::Group& group);

/// The same, for descriptions that must be equal: throws UsageError with both sides where two are
/// not.
void check_same_call(const std::string& call, const std::string& description,
                     const Mistake& mistake, const comm::Group& group);

}  // namespace trireme::hvd::detail
