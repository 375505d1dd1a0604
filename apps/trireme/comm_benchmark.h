// SPDX-License-Identifier: Apache-2.0
// What `trireme bench comm` measures.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace trireme::apps {

/// One collective over all ranks of the run.
struct CommBenchmark {
  std::string collective = "all_reduce";
  std::vector<std::size_t> sizes;  ///< bytes
  std::string engine;              ///< empty: as TRIREME_ENGINE says
  std::string dtype = "float32";
};

/// Joins the run and times the collective, size by size; rank 0 prints a table. Collective. Throws
/// ConfigError, CommError, and InternalError where a result is wrong.
void measure_collective(const CommBenchmark& benchmark);

}  // namespace trireme::apps
