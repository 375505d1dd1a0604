// SPDX-License-Identifier: Apache-2.0
// The measurement behind `trireme bench comm`.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace trireme::apps {

/// The collective to measure, over all ranks of the run.
struct CommBenchmark {
  /// The name of the collective.
  std::string collective = "all_reduce";
  /// The sizes in bytes.
  std::vector<std::size_t> sizes;
  /// The name of the engine; empty for that of TRIREME_ENGINE.
  std::string engine;
  /// The dtype of the elements.
  std::string dtype = "float32";
};

/// Joins the run and times the collective for each size; rank 0 prints a table. Collective. Throws
/// ConfigError and CommError, and InternalError if a result is wrong.
void measure_collective(const CommBenchmark& benchmark);

}  // namespace trireme::apps
