// SPDX-License-Identifier: Apache-2.0
// What a collective costs, by the latency and bandwidth of what joins the ranks.
#pragma once

#include <cstdint>

namespace trireme {

enum class Collective { kAllReduce, kAllGather, kReduceScatter, kAllToAll, kBroadcast };

/// The link between the ranks of a group.
struct Link {
  double latency = 2e-6;          ///< seconds a step takes, whatever its size
  double bytes_per_second = 5e9;  ///< that one rank sends, and receives at the same time
};

/// Seconds that a collective of `bytes` takes over n ranks: steps times latency plus the bytes that
/// one rank sends over the bandwidth (the cost model of Thakur, Rabenseifner and Gropp,
/// "Optimization of Collective Communication Operations in MPICH", 2005, with the algorithms for
/// long messages: rings, pairwise exchange, and a broadcast by scatter and ring all-gather).
///
///     all-gather, reduce-scatter   n - 1 steps               (n - 1) / n   * bytes sent
///     all-reduce                   2 (n - 1)                 2 (n - 1) / n * bytes
///     all-to-all                   n - 1                     (n - 1) / n^2 * bytes
///     broadcast                    ceil(log2 n) + n - 1      2 (n - 1) / n * bytes
///
/// `bytes` is the size of the whole tensor: what an all-gather gives, a reduce-scatter takes, an
/// all-reduce and a broadcast hold, and the sum of what all ranks hold for an all-to-all. 0 for one
/// rank. Throws UsageError for negative bytes, fewer than one rank, a negative latency, or a
/// bandwidth that is not above 0.
double seconds(Collective collective, double bytes, std::int64_t ranks, const Link& link = {});

/// Bytes that one rank sends for it: the rank that sends most.
double bytes_sent(Collective collective, double bytes, std::int64_t ranks);

}  // namespace trireme
