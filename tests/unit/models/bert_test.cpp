// SPDX-License-Identifier: Apache-2.0
// The size of the encoder.
#include <models/bert.h>

#include <trireme/parallel/deferred.h>

#include <gtest/gtest.h>
#include <tests/unit/models/count_parameters.h>

namespace models {
namespace {

TEST(BERT, HasThePublishedNumberOfParameters) {
  const auto base = trireme::deferred([] { return BERT(BERTOptions{}); });  // without memory
  EXPECT_EQ(count_parameters(*base), 109'514'298);
  const auto large = trireme::deferred(
      [] { return BERT(BERTOptions{.hidden = 1024, .layers = 24, .heads = 16}); });
  EXPECT_EQ(count_parameters(*large), 335'174'458);
}

}  // namespace
}  // namespace models
