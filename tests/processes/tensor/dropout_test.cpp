// SPDX-License-Identifier: Apache-2.0
// Dropout on distributed tensors in real processes: the masks, and so the network, of one process
// whatever the mesh.
#include <gmock/gmock.h>
#include <tests/processes/parallel/run_ranks.h>

#include <sstream>
#include <string>
#include <vector>

namespace trireme {
namespace {

using test::Finished;

struct Outcome {
  std::vector<std::string> bits;  // of masks, and of a network that is whole
  std::vector<double> cut;        // losses of a network that is cut
};

Outcome outcome_of(int along_data, int along_tensor) {
  const Finished finished =
      test::run_ranks(along_data * along_tensor, "DROPOUT_PROGRAM",
                      std::to_string(along_data) + " " + std::to_string(along_tensor));
  EXPECT_EQ(finished.code, 0) << finished.output;
  Outcome outcome;
  std::istringstream lines(finished.output);
  for (std::string line; std::getline(lines, line);) {
    // Behind what tells the rank.
    const auto has = [&](const char* word) { return line.find(word) != std::string::npos; };
    if (has("cut ")) outcome.cut.push_back(std::stod(line.substr(line.find("cut ") + 4)));
    if (has("mask ") || has("whole ")) outcome.bits.push_back(line);
  }
  return outcome;
}

TEST(Dropout, IsThatOfOneProcessWhateverTheMesh) {
  const Outcome expected = outcome_of(1, 1);
  ASSERT_EQ(expected.cut.size(), 3);
  ASSERT_EQ(expected.bits.size(), 16 + 3 + 4);
  EXPECT_NE(expected.bits[0], expected.bits[1]) << "every call draws another mask";
  for (const auto& [data, tensor] : std::vector<std::pair<int, int>>{{1, 2}, {3, 1}, {2, 2}}) {
    const Outcome got = outcome_of(data, tensor);
    EXPECT_EQ(got.bits, expected.bits) << data << "x" << tensor;
    EXPECT_THAT(got.cut, ::testing::Pointwise(::testing::DoubleNear(1e-10), expected.cut));
  }
}

}  // namespace
}  // namespace trireme
