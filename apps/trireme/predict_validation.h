// SPDX-License-Identifier: Apache-2.0
// Compares predictions with published measurements. Format of the files:
// docs/formats/published-cases.md.
#pragma once

#include <string>
#include <vector>

namespace trireme::apps {

/// Predicts the cases of the files and prints a table: predicted, published, the error, and the
/// error of a predictor that assumes the median utilization of the table. Returns 0.
/// @param fit a device kind whose four efficiencies are fitted to the cases and printed; empty for
/// none.
/// Throws DataError with file and line for what cannot be read.
int validate_predictions(const std::vector<std::string>& files, const std::string& fit);

}  // namespace trireme::apps
