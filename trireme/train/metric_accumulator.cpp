// SPDX-License-Identifier: Apache-2.0
#include <trireme/train/metric_accumulator.h>

#include <trireme/comm/collectives.h>

#include <ATen/ops/argmax.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/tensor.h>

namespace trireme {

void MetricAccumulator::add_loss(double mean_loss, std::int64_t rows) {
  loss_sum += mean_loss * static_cast<double>(rows);
  samples += rows;
}

void MetricAccumulator::add_predictions(const at::Tensor& output, const at::Tensor& target) {
  if (!at::isIntegralType(target.scalar_type(), /*includeBool=*/false) || output.dim() < 2) return;
  const at::Tensor predicted = output.argmax(1);
  if (predicted.sizes() != target.sizes()) return;
  labels += target.numel();
  correct += predicted.eq(target).sum().item<std::int64_t>();
}

Evaluation MetricAccumulator::evaluation() const {
  Evaluation result;
  result.samples = samples;
  if (samples > 0) result.loss = loss_sum / static_cast<double>(samples);
  if (labels > 0) result.accuracy = static_cast<double>(correct) / static_cast<double>(labels);
  return result;
}

MetricAccumulator all_reduce(const MetricAccumulator& accumulator, const comm::Group& group) {
  comm::check_given(group, "all_reduce of a MetricAccumulator");
  if (group.size() == 1) return accumulator;
  const at::Tensor loss = at::tensor({accumulator.loss_sum}, at::kDouble);
  const at::Tensor counts = at::tensor(
      {accumulator.samples, accumulator.labels, accumulator.correct, accumulator.failures},
      at::kLong);
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
