// SPDX-License-Identifier: Apache-2.0
// What a choice takes at least and about, in time and memory, without a simulation.
#pragma once

#include <trireme/cluster/cluster.h>
#include <trireme/search/candidates.h>
#include <trireme/search/record_table.h>

#include <cstdint>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

namespace trireme::search {

/// What bounds of a choice say.
struct Bounds {
  double least_seconds = 0;  ///< no prediction of the choice is below
  double least_memory = 0;   ///< the same for the largest memory of a rank, in bytes
  double seconds = 0;        ///< about the prediction
  double memory = 0;         ///< about the prediction
};

/// Computes bounds. Sums over the operators of a record are made once for each shape of
/// the axes that share rows, and each number of rows.
class BoundTable {
 public:
  /// @param cluster with as many devices as there are ranks. All arguments must outlive the table.
  BoundTable(const Training& training, const cluster::Cluster& cluster, std::int64_t ranks,
             const std::vector<RepeatedModules>& repeated, RecordTable& records)
      : training_(training),
        cluster_(cluster),
        ranks_(ranks),
        repeated_(repeated),
        records_(records) {}

  Bounds of(const Choice& choice);

 private:
  // Sums over one micro-batch on the ranks that share it.
  struct Totals {
    double compute = 0;        // seconds of operators on the fastest device
    double layouts = 0;        // seconds of collectives along `context` and `tensor`
    double recomputation = 0;  // seconds of both that backward repeats if all repeated modules are
    double saved_by_cut = 0;   // the most that the beginning of a stage saves of it
    double kept = 0;           // bytes kept for backward without recomputation
    double kept_inputs = 0;    // the same with it
    double temporary = 0;      // bytes at the peak beside those that are kept
    double inputs = 0;         // bytes of the batch
    double parameters = 0;     // bytes of parameters and buffers
    double trained = 0;        // the same of parameters with gradients
    double gradients = 0;      // bytes of gradients
    double optimizer = 0;      // bytes of optimizer state
    double optimizer_seconds = 0;  // at least
  };
  // Seconds of exchanges of all parameters along `data`.
  struct Exchanges {
    double reduce = 0;
    double gather = 0;
  };

  const Totals& totals(const SharedAxes& shared, std::int64_t rows);
  Exchanges exchanges(const Choice& choice, const Totals& totals);
  double least_seconds(const Choice& choice, const Totals& totals, const Exchanges& all) const;
  double about(const Choice& choice, const Totals& totals, const Exchanges& all) const;

  const Training& training_;
  const cluster::Cluster& cluster_;
  std::int64_t ranks_;
  const std::vector<RepeatedModules>& repeated_;
  RecordTable& records_;
  std::map<std::pair<SharedAxes, std::int64_t>, Totals> totals_;
  // By the mesh, and whether gradients are reduced on all ranks.
  std::map<std::tuple<std::int64_t, std::int64_t, SharedAxes, bool, bool>, Exchanges> exchanges_;
};

}  // namespace trireme::search
