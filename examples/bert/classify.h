// SPDX-License-Identifier: Apache-2.0
// Fine-tunes a pre-trained BERT on texts with labels.
#pragma once

#include <cstdint>
#include <string>

namespace examples {

struct ClassifyOptions {
  std::string file;  // lines of label<TAB>text
  std::string from;  // folder of a pre-trained BERT
  std::int64_t epochs = 10;
  std::int64_t batch = 16;
  double learning_rate = 1e-3;
};

/// Trains on four fifths of the lines, in a random order, and prints the accuracy on the others.
void classify(const ClassifyOptions& options);

}  // namespace examples
