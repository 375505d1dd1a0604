// SPDX-License-Identifier: Apache-2.0
// The records that a search needs: one for each size of `tensor` and number of rows, of which two
// are recorded and the others follow.
#pragma once

#include <trireme/search/scaled_record.h>
#include <trireme/search/training/training.h>

#include <cstdint>
#include <map>
#include <optional>
#include <utility>

namespace trireme::search {

/// Records by the number of ranks along `tensor` and by rows. Made on demand and kept.
class RecordTable {
 public:
  /// @param training must outlive the table.
  /// @param cluster by whose links layouts are chosen; it has one device for each rank, and must
  /// outlive the table.
  RecordTable(const Training& training, std::int64_t ranks, const cluster::Cluster& cluster)
      : training_(training), ranks_(ranks), cluster_(cluster) {}

  /// Returns the layouts of parameters over `tensor` ranks: those of the training if it gives some,
  /// otherwise the best that are found. Empty if nothing is gained by sharding parameters.
  const ParameterLayouts& layouts(std::int64_t tensor);

  /// Returns the record of a micro-batch of `rows` rows whose parameters are laid out over `tensor`
  /// ranks. The reference is valid as long as the table. Throws UsageError as record_module.
  const ModuleRecord& record(std::int64_t tensor, std::int64_t rows);
  /// Returns the same, recorded for exactly these rows.
  const ModuleRecord& exact_record(std::int64_t tensor, std::int64_t rows);

 private:
  const Training& training_;
  std::int64_t ranks_;
  const cluster::Cluster& cluster_;
  std::map<std::int64_t, ParameterLayouts> layouts_;  // by the size of `tensor`
  // By the size of `tensor` and rows.
  std::map<std::pair<std::int64_t, std::int64_t>, ModuleRecord> exact_;
  std::map<std::pair<std::int64_t, std::int64_t>, ModuleRecord> scaled_;
};

}  // namespace trireme::search
