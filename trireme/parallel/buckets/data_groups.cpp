// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/buckets/data_groups.h>

#include <trireme/base/environment.h>
#include <trireme/parallel/module/agreement.h>

#include <numeric>

namespace trireme::detail {
namespace {

std::int64_t agreed_streams(const Plan& plan, const comm::Group& group) {
  const std::int64_t count = plan.allreduce_streams > 0
                                 ? plan.allreduce_streams
                                 : Settings::from(Environment::of_process()).allreduce_streams;
  check_same_text("number of streams (plan, else TRIREME_ALLREDUCE_STREAMS)", std::to_string(count),
                  group);
  return count;
}

std::vector<comm::Group> make_streams(const comm::Group& group, std::int64_t count) {
  std::vector<comm::Group> streams = {group};
  while (std::ssize(streams) < count) streams.push_back(duplicate(group));
  return streams;
}

// Makes `count` groups of `size` ranks and returns the one that contains this rank. Creating a
// group is collective, so every rank makes all of them in the same order.
template <typename RankOf>
comm::Group one_of(const comm::Group& group, int count, int size, const RankOf& rank_of) {
  comm::Group own;
  for (int number = 0; number < count; ++number) {
    std::vector<int> ranks;
    for (int place = 0; place < size; ++place) ranks.push_back(rank_of(number, place));
    const comm::Group made = group.subgroup(ranks);
    if (made.rank() >= 0) own = made;
  }
  return own;
}

}  // namespace

comm::Group duplicate(const comm::Group& group) {
  if (group.size() == 1) return group;
  std::vector<int> all(static_cast<std::size_t>(group.size()));
  std::iota(all.begin(), all.end(), 0);
  return group.subgroup(all);
}

DataGroups connect_data_groups(const Plan& plan, const comm::Group& group) {
  DataGroups data_groups;
  data_groups.all = group;
  const std::int64_t streams = agreed_streams(plan, group);
  data_groups.streams = make_streams(group, streams);
  const auto cut = static_cast<int>(plan.shard_ranks);
  if (cut == 0 || cut == group.size()) {
    data_groups.shard = group;
    data_groups.shard_streams = data_groups.streams;
    return data_groups;
  }
  const int copies = group.size() / cut;
  data_groups.shard =
      one_of(group, copies, cut, [&](int copy, int part) { return copy * cut + part; });
  data_groups.replicas =
      one_of(group, cut, copies, [&](int part, int copy) { return copy * cut + part; });
  data_groups.shard_streams = make_streams(data_groups.shard, streams);
  return data_groups;
}

}  // namespace trireme::detail
