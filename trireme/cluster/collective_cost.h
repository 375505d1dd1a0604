// SPDX-License-Identifier: Apache-2.0
// Estimates the cost of collectives from the latency and bandwidth of the links between ranks.
#pragma once

#include <cstdint>

namespace trireme {

/// The kinds of collectives.
enum class Collective { kAllReduce, kAllGather, kReduceScatter, kAllToAll, kBroadcast };

/// The link between the ranks of a group.
struct Link {
  double latency = 2e-6;          ///< the time of one communication step in seconds
  double bytes_per_second = 5e9;  ///< the rate at which a rank sends, and at the same time receives
};

/// Returns the time in seconds of a collective over n ranks: the number of steps times the latency,
/// plus the bytes that one rank sends divided by the bandwidth. This is the cost model of Thakur,
/// Rabenseifner and Gropp, "Optimization of Collective Communication Operations in MPICH" (2005),
/// with the algorithms for long messages: rings, pairwise exchange, and a broadcast by scatter and
/// ring all-gather.
///
///     all-gather, reduce-scatter   n - 1 steps               (n - 1) / n   * bytes sent
///     all-reduce                   2 (n - 1)                 2 (n - 1) / n * bytes
///     all-to-all                   n - 1                     (n - 1) / n^2 * bytes
///     broadcast                    ceil(log2 n) + n - 1      2 (n - 1) / n * bytes
///
/// `bytes` is the size of the whole tensor. That is the output of an all-gather, the input of a
/// reduce-scatter, the tensor of an all-reduce or broadcast, and the sum over all ranks for an
/// all-to-all. The time is 0 for one rank. Throws UsageError for negative bytes, fewer than one
/// rank, a negative latency, or a bandwidth that is not above 0.
double seconds(Collective collective, double bytes, std::int64_t ranks, const Link& link = {});

/// Returns the number of bytes that one rank sends in a collective; for a broadcast, the rank that
/// sends most.
double bytes_sent(Collective collective, double bytes, std::int64_t ranks);

}  // namespace trireme
