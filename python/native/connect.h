// SPDX-License-Identifier: Apache-2.0
// Connects the ranks of a process group of Python: they meet over the store that torch.distributed
// passes, and the engine is chosen as trireme::init() chooses it.
#pragma once

#include <trireme/comm/group.h>

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <string>
#include <vector>

namespace c10d {
class Store;
}

namespace trireme::python {

/// What torch.distributed passes to the function that creates a backend.
struct GroupRequest {
  c10::intrusive_ptr<c10d::Store> store;  ///< private to this group
  int rank = 0;                           ///< of this process in the group
  int size = 1;
  std::chrono::milliseconds timeout{};
  std::string name;  ///< for messages, such as `world`
  /// The rank in the world of each rank of the group. Empty if this is the world.
  std::vector<int> world_ranks = {};
  /// What stands before the colon in the titles of operations in profiles: the name of the backend
  /// that the script has asked for.
  std::string profiling_prefix = "trireme";
  /// What the ranks have called, for the message about those that do not come.
  std::string call = "init_process_group or new_group";
};

/// Connects the ranks. Collective over the ranks of the group; blocks up to the timeout.
///
/// Throws CommError if ranks are missing at the deadline, and ConfigError as soon as it sees that a
/// rank uses Gloo, because it did not import trireme.torch. Groups may be made again and again over
/// one store, if all ranks do.
comm::Group connect_group(const GroupRequest& request);

}  // namespace trireme::python
