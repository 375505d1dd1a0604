// SPDX-License-Identifier: Apache-2.0
#include <trireme/cluster/collective_cost.h>

#include <trireme/base/error.h>

#include <bit>

namespace trireme {
namespace {

void check(double bytes, std::int64_t ranks) {
  if (bytes >= 0 && ranks >= 1) return;
  throw UsageError(
      join_message("the cost of a collective of ", bytes, " bytes over ", ranks, " ranks"),
      "bytes may not be negative, and a group has at least one rank");
}

double steps(Collective collective, std::int64_t ranks) {
  const auto around = static_cast<double>(ranks - 1);
  switch (collective) {
    case Collective::kAllReduce:
      return 2 * around;
    case Collective::kBroadcast:
      return around + static_cast<double>(std::bit_width(static_cast<std::uint64_t>(ranks - 1)));
    case Collective::kAllGather:
    case Collective::kReduceScatter:
    case Collective::kAllToAll:
      break;
  }
  return around;
}

}  // namespace

double bytes_sent(Collective collective, double bytes, std::int64_t ranks) {
  check(bytes, ranks);
  const auto count = static_cast<double>(ranks);
  // A rank keeps its own part of the tensor and sends the others.
  const double all_but_own = bytes * static_cast<double>(ranks - 1) / count;
  switch (collective) {
    case Collective::kAllReduce:
    case Collective::kBroadcast:
      return 2 * all_but_own;
    case Collective::kAllToAll:
      return all_but_own / count;
    case Collective::kAllGather:
    case Collective::kReduceScatter:
      break;
  }
  return all_but_own;
}

double seconds(Collective collective, double bytes, std::int64_t ranks, const Link& link) {
  if (!(link.latency >= 0) || !(link.bytes_per_second > 0)) {
    throw UsageError(
        join_message("a link of ", link.latency, " s and ", link.bytes_per_second, " bytes/s"),
        "latency may not be negative, and bandwidth must be above 0");
  }
  return bytes_sent(collective, bytes, ranks) / link.bytes_per_second +
         steps(collective, ranks) * link.latency;
}

}  // namespace trireme
