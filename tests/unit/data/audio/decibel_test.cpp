// SPDX-License-Identifier: Apache-2.0
#include <trireme/base/error.h>
#include <trireme/data/audio/spectrogram.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <tests/temporary_folder.h>

#include <cmath>

namespace trireme::data {
namespace {

using test::message_of;
using ::testing::HasSubstr;

TEST(AmplitudeToDecibel, IsALogarithmWithAFloor) {
  const at::Tensor x = at::tensor({1.0, 0.1, 100.0, 0.0, 1e-12}, at::kDouble);
  EXPECT_TRUE(at::allclose(amplitude_to_decibel(x),
                           at::tensor({0.0, -10.0, 20.0, -100.0, -100.0}, at::kDouble)));
  EXPECT_TRUE(at::allclose(amplitude_to_decibel(x, DecibelOf::kMagnitude),
                           at::tensor({0.0, -20.0, 40.0, -200.0, -200.0}, at::kDouble)));
  EXPECT_TRUE(
      std::isnan(amplitude_to_decibel(at::tensor({std::nan("")}, at::kDouble)).item<double>()));
}

TEST(AmplitudeToDecibel, KeepsTheRangeBelowTheLoudest) {
  const at::Tensor x = at::tensor({1.0, 1e-3, 1e-9}, at::kFloat);
  EXPECT_TRUE(at::allclose(amplitude_to_decibel(x, DecibelOf::kPower, 40),
                           at::tensor({0.0, -30.0, -40.0}, at::kFloat)));
}

TEST(AmplitudeToDecibel, TakesTheLoudestOfEachSoundForItself) {
  const at::Tensor loud = at::rand({2, 5, 7}) + 0.5;
  const at::Tensor both = at::cat({loud.unsqueeze(0), loud.unsqueeze(0) * 1e-6});
  const at::Tensor decibel = amplitude_to_decibel(both, DecibelOf::kPower, 1);
  for (const std::int64_t i : {0, 1}) {
    EXPECT_TRUE(at::equal(decibel[i], amplitude_to_decibel(both[i], DecibelOf::kPower, 1)));
    EXPECT_NEAR((decibel[i].max() - decibel[i].min()).item<double>(), 1, 1e-4);
  }
}

TEST(AmplitudeToDecibel, TakesNothing) {
  EXPECT_EQ(amplitude_to_decibel(at::zeros({2, 0}), DecibelOf::kPower, 80).numel(), 0);
}

TEST(AmplitudeToDecibel, RefusesWhatItCannotDo) {
  EXPECT_THAT(message_of<UsageError>([] { amplitude_to_decibel(DecibelOf::kPower, -1); }),
              HasSubstr("with a range of -1"));
  EXPECT_THAT(message_of<UsageError>([] { amplitude_to_decibel(at::zeros({2}, at::kLong)); }),
              HasSubstr("cannot compute with Long [2]"));
}

}  // namespace
}  // namespace trireme::data
