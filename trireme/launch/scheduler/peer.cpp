// SPDX-License-Identifier: Apache-2.0
#include <trireme/launch/scheduler/peer.h>

#include <trireme/base/error.h>
#include <trireme/base/leaving.h>
#include <trireme/launch/run/exit_report.h>

#include <vector>

namespace trireme::launch {
namespace {

std::string place_text(const Peer& peer, int process) {
  return join_message("(process ", process, " on ", peer.hello.host, ", ", peer.address, ")");
}

}  // namespace

std::string describe_failure(const Peer& peer, const RankEnded& end) {
  return join_message(
      "rank ", end.rank,
      end.code == kLeaveExitCode ? " has saved and left in time: " : " failed first: ",
      peer.hello.program.path, " ", place_text(peer, end.process), " ", end.how,
      end.log.empty() ? "" : "\n  its whole log, on its host: ", end.log);
}

std::string describe_loss(const Peer& peer) {
  std::vector<int> ranks;
  for (int i = 0; i < peer.hello.ranks; ++i) {
    if (!peer.ended.contains(peer.place.first_rank + i)) ranks.push_back(peer.place.first_rank + i);
  }
  const bool is_launcher = peer.hello.ranks > 1;
  return join_message(
      ranks.size() == 1 ? "rank " : "ranks ", describe_ranks(ranks),
      " failed first: ", is_launcher ? "the trireme worker of " : "", peer.hello.program.path, " ",
      place_text(peer, peer.hello.process),
      " closed its connection without saying that it ends\n  hint: it was killed, crashed, or its "
      "host is gone; its own output says more, and `dmesg` there if memory ran out");
}

}  // namespace trireme::launch
