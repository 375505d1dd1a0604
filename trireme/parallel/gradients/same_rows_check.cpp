// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/gradients/same_rows_check.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

namespace trireme::detail {
namespace {

constexpr int kSteps = 2;
constexpr std::int64_t kMostElements = 4096;

// Returns the relative rounding error, per added rank, of the mean of equal numbers.
double rounding_of(at::ScalarType type) {
  switch (type) {
    case at::kDouble:
      return std::numeric_limits<double>::epsilon();
    case at::kFloat:
      return std::numeric_limits<float>::epsilon();
    case at::kHalf:
      return 0x1p-10;
    default:
      return 0x1p-7;  // bf16
  }
}

at::Tensor first_elements(const at::Tensor& gradients) {
  return gradients.narrow(0, 0, std::min(kMostElements, gradients.numel()));
}

}  // namespace

bool SameRowsCheck::wants_sample() const {
  return num_steps_ < kSteps && data_.size() > 1 && !sample_.defined();
}

void SameRowsCheck::take_sample(const at::Tensor& own_gradients) {
  if (!at::isFloatingType(own_gradients.scalar_type()) || own_gradients.numel() == 0) return;
  sample_ = first_elements(own_gradients).clone();
}

void SameRowsCheck::compare(const at::Tensor& reduced_gradients, double divisor) {
  if (!sample_.defined()) return;
  const at::ScalarType type = sample_.scalar_type();
  const at::Tensor if_same = sample_.to(at::kDouble).mul_(data_.size() / divisor);
  sample_.reset();
  ++num_steps_;
  const double largest = if_same.abs().max().item<double>();
  const double distance =
      first_elements(reduced_gradients).to(at::kDouble).sub(if_same).abs().max().item<double>();
  const bool is_same = std::isfinite(largest) && largest > 0 &&
                       distance <= data_.size() * rounding_of(type) * largest;
  num_same_ += is_same ? 1 : 0;
  if (num_same_ < kSteps || data_.rank() != 0) return;
  TORCH_WARN("the ", data_.size(),
             " ranks along data have computed the same gradients in their first two steps, as they "
             "do where all of them read the same rows; each step then takes ",
             data_.size(),
             " times the work that it needs. Give each rank its own part, which "
             "trireme::data_part(plan, group) names: loader.shard({.index = part.index, .count = "
             "part.count}). Where the same rows are meant, as in data of ones, ignore this.");
}

}  // namespace trireme::detail
