// SPDX-License-Identifier: Apache-2.0
#include <trireme/train/tally.h>

#include <trireme/comm/collectives.h>

#include <ATen/ops/argmax.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/tensor.h>

namespace trireme {

void Tally::add_loss(double mean_loss, std::int64_t rows) {
  loss_sum += mean_loss * static_cast<double>(rows);
  samples += rows;
}

void Tally::add_predictions(const at::Tensor& output, const at::Tensor& target) {
  if (!at::isIntegralType(target.scalar_type(), /*includeBool=*/false) || output.dim() < 2) return;
  const at::Tensor predicted = output.argmax(1);
  if (predicted.sizes() != target.sizes()) return;
  labels += target.numel();
  correct += predicted.eq(target).sum().item<std::int64_t>();
}

Evaluation Tally::evaluation() const {
  Evaluation result;
  result.samples = samples;
  if (samples > 0) result.loss = loss_sum / static_cast<double>(samples);
  if (labels > 0) result.accuracy = static_cast<double>(correct) / static_cast<double>(labels);
  return result;
}

Tally all_reduce(const Tally& tally, const comm::Group& group) {
  if (group.size() == 1) return tally;
  const at::Tensor loss = at::tensor({tally.loss_sum}, at::kDouble);
  const at::Tensor counts =
      at::tensor({tally.samples, tally.labels, tally.correct, tally.failures}, at::kLong);
  comm::all_reduce(loss, group);
  comm::all_reduce(counts, group);
  const std::int64_t* sums = counts.const_data_ptr<std::int64_t>();
  return {.loss_sum = *loss.const_data_ptr<double>(),
          .samples = sums[0],
          .labels = sums[1],
          .correct = sums[2],
          .failures = sums[3]};
}

}  // namespace trireme
