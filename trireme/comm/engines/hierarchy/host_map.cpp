// SPDX-License-Identifier: Apache-2.0
#include <trireme/comm/engines/hierarchy/host_map.h>

#include <trireme/base/error.h>

#include <map>

namespace trireme::comm {

HostMap::HostMap(std::span<const int> host_of_rank, int most_leaders) {
  if (host_of_rank.empty() || most_leaders < 0) {
    throw UsageError(join_message("a hierarchy of ", host_of_rank.size(), " ranks with at most ",
                                  most_leaders, " leaders in each host"),
                     "give at least one rank, and 0 (as many as fit) or more leaders");
  }
  std::map<int, int> number;
  for (const int given : host_of_rank) {
    const int host = number.try_emplace(given, num_hosts()).first->second;
    if (host == num_hosts()) members_.emplace_back();
    auto& members = members_[static_cast<std::size_t>(host)];
    local_.push_back(static_cast<int>(members.size()));
    members.push_back(num_ranks());
    host_.push_back(host);
  }
  const auto [smallest, largest] =
      std::minmax_element(members_.begin(), members_.end(),
                          [](const auto& a, const auto& b) { return a.size() < b.size(); });
  largest_local_size_ = static_cast<int>(largest->size());
  num_leaders_ = static_cast<int>(smallest->size());
  if (most_leaders > 0) num_leaders_ = std::min(num_leaders_, most_leaders);
}

std::vector<int> HostMap::leaders(int leader) const {
  std::vector<int> ranks;
  for (const auto& members : members_) ranks.push_back(members[static_cast<std::size_t>(leader)]);
  return ranks;
}

std::vector<int> hosts_of(std::span<const std::string> machines) {
  std::map<std::string_view, int> number;
  std::vector<int> hosts;
  for (const std::string& machine : machines) {
    hosts.push_back(number.try_emplace(machine, static_cast<int>(number.size())).first->second);
  }
  return hosts;
}

HostBlocks::HostBlocks(const HostMap& hosts, std::span<const std::int64_t> length_of_rank)
    : length_(length_of_rank.begin(), length_of_rank.end()), offset_(length_.size()) {
  for (int host = 0; host < hosts.num_hosts(); ++host) {
    std::int64_t end = 0;
    for (const int rank : hosts.members(host)) {
      offset_[static_cast<std::size_t>(rank)] = end;
      end += length(rank);
    }
    largest_host_ = std::max(largest_host_, end);
  }
  const auto [shortest, longest] = std::minmax_element(length_.begin(), length_.end());
  shortest_ = *shortest;
  longest_ = *longest;
}

}  // namespace trireme::comm
