// SPDX-License-Identifier: Apache-2.0
// Starts operations, by whichever engine carries the group, as a Work.
#pragma once

#include <trireme/comm/collectives.h>
#include <trireme/comm/shm/point_to_point.h>
#include <trireme/comm/shm/queue.h>

#include <functional>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

namespace c10d {
class Backend;
class Work;
}  // namespace c10d

namespace trireme::comm {

class Starter {
 public:
  using Call = std::function<c10::intrusive_ptr<c10d::Work>(c10d::Backend&)>;

  /// By a c10d engine, whose errors become CommError; the first tensor tells the recorder what is
  /// sent.
  /// @param peer the other rank of a send or receive; -1 for a collective.
  static Work start(const Group& group, const char* operation, std::vector<at::Tensor> keep_alive,
                    std::string_view label, const Call& call, int peer = -1);

  /// By the shared-memory engine. `call` keeps the tensors that it uses alive, and no handle of the
  /// group: the last one would end the group on the group's own thread.
  static Work submit(const Group& group, shm::Queue& queue, std::function<void()> call) {
    return follow(group, queue, queue.submit(std::move(call)));
  }
  /// The same for a message; `keep_alive` stays until it is done.
  static Work follow(const Group& group, std::shared_ptr<shm::Transfer> transfer,
                     const at::Tensor& keep_alive);
  /// The same for a job that `queue` has already.
  static Work follow(const Group& group, shm::Queue& queue, std::shared_ptr<shm::Job> job);
};

}  // namespace trireme::comm
