// SPDX-License-Identifier: Apache-2.0
// Records of a module for any number of rows, from the records of two numbers of rows.
#pragma once

#include <trireme/parallel/record/module_record.h>

#include <cstdint>
#include <optional>

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

}  // namespace trireme::search
