// SPDX-License-Identifier: Apache-2.0
// The links of a group as trireme::seconds() takes them: latency and bandwidth in place of levels,
// algorithms, shared ports and measured curves. Layouts are chosen by them.
#pragma once

#include <trireme/cluster/cluster.h>
#include <trireme/cluster/collective_cost.h>
#include <trireme/cluster/collective_time.h>

#include <array>
#include <cstddef>
#include <optional>

namespace trireme::cluster {

/// The cost of copying within the memory of a device.
struct LocalCopy {
  double seconds = 0;           ///< to start a copy
  double bytes_per_second = 0;  ///< rate, where each byte is read and written

  bool operator==(const LocalCopy&) const = default;
};

/// The rates at which a device computes fused attention, in FLOP/s. 0: it has no such type.
struct AttentionRate {
  double float32 = 0;  ///< of single precision
  double half = 0;     ///< of fp16 and bf16

  bool operator==(const AttentionRate&) const = default;
};

/// One link for each kind of collective, since the kinds take other algorithms and have curves of
/// their own. A plain value; by default all links are the default Link.
class CollectiveLinks {
 public:
  /// Returns the link of a kind.
  const Link& of(Collective collective) const noexcept {
    return links_[static_cast<std::size_t>(collective)];
  }
  /// Sets the link of a kind.
  void set(Collective collective, const Link& link) noexcept {
    links_[static_cast<std::size_t>(collective)] = link;
  }

  /// The copies of the slowest device of the group; nothing if it is not known.
  std::optional<LocalCopy> copy{};

  /// The attention of the slowest device of the group; nothing if it is not known.
  std::optional<AttentionRate> attention{};

  /// Returns true if latency and bandwidth of all kinds, and what devices do, are equal.
  friend bool operator==(const CollectiveLinks& a, const CollectiveLinks& b) noexcept;

 private:
  std::array<Link, 5> links_{};  // by the number of the Collective
};

/// Returns the links with which trireme::seconds() gives the time of seconds() on the cluster for a
/// tensor without bytes and for one of 16 MiB. For other sizes it is on the line through both:
///
///     latency            time without bytes / number of steps
///     bytes per second   bytes that a rank sends of 16 MiB / (time of 16 MiB - time without bytes)
///
/// Within one host this is the link of the host, unless collectives were measured there. Across
/// hosts it is that of the faster algorithm at each of the two sizes. Returns default links for one
/// rank. Copies and attention are those of the slowest device. Throws UsageError for a cluster
/// without the links that the group needs.
CollectiveLinks collective_links(const Cluster& cluster, const GroupShape& shape);

}  // namespace trireme::cluster
