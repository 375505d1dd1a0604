// SPDX-License-Identifier: Apache-2.0
#include <trireme/comm/engines/shm/memberships.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/base/traced_processes.h>
#include <trireme/comm/engines/shm/member.h>

#include <pthread.h>
#include <sys/stat.h>

#include <fstream>
#include <iterator>
#include <string>

namespace trireme::shm {

std::uint64_t own_process_namespace() {
  struct stat status = {};
  return ::stat("/proc/self/ns/pid", &status) == 0 ? status.st_ino : 0;
}

bool is_stopped_process(std::int64_t process) {
  std::ifstream file(join_message("/proc/", process, "/stat"));
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const std::size_t name_end = text.rfind(')');
  if (name_end == std::string::npos || name_end + 2 >= text.size()) return false;
  const char state = text[name_end + 2];
  thread_local TracedProcesses traced;
  if (state != 't') {
    traced.forget(process);
    return state == 'T';
  }
  TextReader fields(text.substr(name_end + 3));
  std::string skipped;
  for (int i = 0; i < 10; ++i) fields >> skipped;
  std::uint64_t user_ticks = 0;
  std::uint64_t system_ticks = 0;
  fields >> user_ticks >> system_ticks;
  return traced.is_held(process, user_ticks + system_ticks);
}

Memberships& Memberships::instance() {
  static Memberships* const memberships = [] {
    ::pthread_atfork([] { instance().mutex_.lock(); }, [] { instance().mutex_.unlock(); },
                     [] {
                       instance().all_.clear();
                       instance().mutex_.unlock();
                     });
    return new Memberships;  // outlives every Member
  }();
  return *memberships;
}

void Memberships::add(Member& member) {
  const std::lock_guard lock(mutex_);
  all_.insert(&member);
}

void Memberships::remove(Member& member) {
  const std::lock_guard lock(mutex_);
  all_.erase(&member);
}

void Memberships::tell(int world_rank, std::optional<int> waits_for) {
  const std::lock_guard lock(mutex_);
  for (const Member* const member : all_) {
    if (member->world_rank(member->rank()) != world_rank) continue;
    member->block(member->rank())
        .waits_in_world_for.store(waits_for ? *waits_for + 1 : 0, std::memory_order_seq_cst);
  }
}

Memberships::Sight Memberships::look_at(int world_rank) {
  const std::lock_guard lock(mutex_);
  Sight sight;
  for (const Member* const member : all_) {
    for (int rank = 0; rank < member->size(); ++rank) {
      if (member->world_rank(rank) != world_rank) continue;
      const RankBlock& block = member->block(rank);
      const auto waits_for = block.waits_in_world_for.load(std::memory_order_seq_cst);
      if (waits_for > 0) sight.waits_for = static_cast<int>(waits_for - 1);
      sight.process = block.process;
      sight.is_stopped =
          block.process_namespace == own_process_namespace() && is_stopped_process(block.process);
    }
  }
  return sight;
}

}  // namespace trireme::shm
