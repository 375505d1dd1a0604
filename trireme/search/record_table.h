// SPDX-License-Identifier: Apache-2.0
// The records that a search needs: one for each shape of the axes that share rows and each number
// of rows, of which two are recorded and the others follow.
#pragma once

#include <trireme/parallel/record/module_record.h>
#include <trireme/search/training/training.h>

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

namespace trireme::search {

/// A record and the number of rows of the micro-batch that it belongs to.
struct RecordOfRows {
  std::int64_t rows;
  const ModuleRecord& record;
};

/// Returns the record for `rows` rows. Work, transfers and memory of each call are taken as a
/// constant plus a part in proportion to the rows, which two records determine. Where the two have
/// different transfers, because another layout is cheaper for few rows, those of `many` are taken.
/// Returns std::nullopt if the two records do not have the same calls: the module then does
/// something else for other numbers of rows.
/// @param few a record.
/// @param many a record with more rows.
std::optional<ModuleRecord> scaled_record(const RecordOfRows& few, const RecordOfRows& many,
                                          std::int64_t rows);

/// The numbers of ranks that work on the same rows, along each axis.
struct SharedAxes {
  std::int64_t context = 1;
  std::int64_t expert = 1;
  std::int64_t tensor = 1;

  /// Returns the number of ranks that work on the same rows.
  std::int64_t size() const noexcept { return context * expert * tensor; }
  auto operator<=>(const SharedAxes&) const = default;
};

/// Appends the axes of more than one rank to a mesh, in the order of all plans of a search.
void add_axes(std::vector<MeshAxis>& mesh, const SharedAxes& shared);

/// Records by the numbers of ranks that share rows, and by rows. Made on demand and kept.
class RecordTable {
 public:
  /// @param training must outlive the table.
  /// @param cluster by whose links layouts are chosen; it has one device for each rank, and must
  /// outlive the table.
  /// @param replays records for other layouts follow from a few dry runs. Without it, each record
  /// is a dry run of its own.
  RecordTable(const Training& training, std::int64_t ranks, const cluster::Cluster& cluster,
              bool replays = true)
      : training_(training),
        ranks_(ranks),
        cluster_(cluster),
        replays_(replays && training.base.operators.empty()) {}

  /// Returns the layouts of parameters over `tensor` ranks: those of the training if it gives some,
  /// otherwise the best that are found. Empty if nothing is gained by sharding parameters.
  const ParameterLayouts& layouts(std::int64_t tensor);
  /// Returns the layouts of stacked experts along `expert`. Empty if there are none.
  const ParameterLayouts& experts();
  /// Returns the layouts of all parameters over these ranks.
  ParameterLayouts layouts(const SharedAxes& shared);

  /// Returns the record of a micro-batch of `rows` rows that these ranks share. The reference is
  /// valid as long as the table. Throws UsageError as record_module.
  const ModuleRecord& record(const SharedAxes& shared, std::int64_t rows);
  /// Returns the same, recorded for exactly these rows.
  const ModuleRecord& exact_record(const SharedAxes& shared, std::int64_t rows);
  /// Returns the same from a dry run with exactly these layouts.
  const ModuleRecord& checked_record(const SharedAxes& shared, std::int64_t rows);
  /// Returns false if a checked record has shown that a record was wrong, because forward does
  /// something else for other layouts.
  bool is_right() const noexcept { return is_right_; }
  /// Returns the number of dry runs that records took, without those of layouts; for tests.
  std::int64_t num_dry_runs() const noexcept { return num_dry_runs_; }

 private:
  using Records = std::map<std::pair<SharedAxes, std::int64_t>, ModuleRecord>;  // by axes and rows

  Plan plan_of(const SharedAxes& shared);
  const TracedModule* trace(std::int64_t rows);
  std::optional<ModuleRecord> replayed(const LaidOutModule& laid_out, std::int64_t rows);
  ModuleRecord dry_run(const LaidOutModule& laid_out, std::int64_t rows);
  const Training& training_;
  std::int64_t ranks_;
  const cluster::Cluster& cluster_;
  std::map<std::int64_t, ParameterLayouts> layouts_;  // by the size of `tensor`
  std::optional<ParameterLayouts> experts_;
  bool replays_;
  bool is_right_ = true;
  std::int64_t num_dry_runs_ = 0;
  std::map<std::int64_t, std::vector<TracedModule>> traces_;  // by rows
  Records exact_;
  std::set<std::pair<SharedAxes, std::int64_t>> is_checked_;  // of exact_: from dry runs
  Records scaled_;
};

}  // namespace trireme::search
