// SPDX-License-Identifier: Apache-2.0
#include <trireme/train/metrics.h>

#include <trireme/base/error.h>
#include <trireme/comm/collectives.h>
#include <trireme/train/losses.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/bincount.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <span>

namespace trireme {
namespace {

// The logits and labels that are counted, one row for each.
struct Rows {
  at::Tensor logits;  // [n, classes]
  at::Tensor labels;  // int64 [n]
};

Rows rows_of(const at::Tensor& output, const at::Tensor& target,
             const std::optional<std::int64_t>& ignored) {
  detail::check_labels("a metric", output, target);
  const at::Tensor labels = detail::is_soft(target) ? target.detach().argmax(1) : target.detach();
  Rows rows{output.detach().movedim(1, -1).reshape({-1, output.size(1)}),
            labels.to(output.device(), at::kLong).flatten()};
  if (ignored) {
    const at::Tensor counts = rows.labels.ne(*ignored);
    rows = {rows.logits.index({counts}), rows.labels.index({counts})};
  }
  detail::check_label_range(rows.labels.cpu(), output.size(1));
  return rows;
}

void add_up(std::span<std::int64_t> counts, const comm::Group& group) {
  const at::Tensor all =
      at::from_blob(counts.data(), {static_cast<std::int64_t>(counts.size())}, at::kLong);
  comm::all_reduce(all, group, comm::ReduceOp::kSum, "metric");
}

double share(std::int64_t part, std::int64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

// Returns double; 0 for a division by 0.
at::Tensor share(const at::Tensor& part, const at::Tensor& whole) {
  return at::where(whole.eq(0), 0.0, part.to(at::kDouble) / whole.to(at::kDouble));
}

}  // namespace

ConfusionMatrix::ConfusionMatrix(std::int64_t classes, std::optional<std::int64_t> ignored)
    : classes_(classes), ignored_(ignored) {
  if (classes < 1) {
    throw UsageError(join_message("a confusion matrix of ", classes, " classes"),
                     "give 1 or more, as many as the network has outputs");
  }
  counts_ = at::zeros({classes, classes}, at::kLong);
}

void ConfusionMatrix::clear() { counts_.zero_(); }

void ConfusionMatrix::add(const at::Tensor& output, const at::Tensor& target) {
  const at::NoGradGuard no_grad;
  const Rows rows = rows_of(output, target, ignored_);
  if (output.size(1) != classes_) {
    throw UsageError(join_message("a confusion matrix of ", classes_, " classes was given output ",
                                  output.sizes()),
                     "make it with as many classes as the network has outputs");
  }
  // Each pair of label and prediction has a number of its own, so one bincount counts all pairs.
  const at::Tensor cells = rows.labels * classes_ + rows.logits.argmax(1);
  counts_ += at::bincount(cells.cpu(), {}, classes_ * classes_).view({classes_, classes_});
}

void ConfusionMatrix::all_reduce(const comm::Group& group) {
  comm::all_reduce(counts_, group, comm::ReduceOp::kSum, "metric");
}

std::int64_t ConfusionMatrix::samples() const { return counts_.sum().item<std::int64_t>(); }

double ConfusionMatrix::accuracy() const {
  return share(counts_.diagonal().sum().item<std::int64_t>(), samples());
}

at::Tensor ConfusionMatrix::precision() const { return share(counts_.diagonal(), counts_.sum(0)); }

at::Tensor ConfusionMatrix::recall() const { return share(counts_.diagonal(), counts_.sum(1)); }

at::Tensor ConfusionMatrix::f1() const {
  return share(2 * counts_.diagonal(), counts_.sum(0) + counts_.sum(1));
}

double ConfusionMatrix::averaged(const at::Tensor& of_classes, Average average) const {
  const at::Tensor labels = counts_.sum(1);
  const at::Tensor weights =
      average == Average::kWeighted ? labels : (labels + counts_.sum(0)).ne(0).to(at::kLong);
  const at::Tensor all = weights.sum();
  return share((of_classes * weights).sum(), all).item<double>();
}

TopK::TopK(std::int64_t k, std::optional<std::int64_t> ignored) : k_(k), ignored_(ignored) {
  if (k < 1) throw UsageError(join_message("top-k of k ", k), "give 1 or more");
}

void TopK::add(const at::Tensor& output, const at::Tensor& target) {
  const at::NoGradGuard no_grad;
  const auto [logits, labels] = rows_of(output, target, ignored_);
  const at::Tensor own = logits.gather(1, labels.unsqueeze(1));
  const at::Tensor is_before = at::arange(logits.size(1), labels.options())
                                   .lt(labels.unsqueeze(1))
                                   .logical_and(logits.eq(own));
  // Written as "not less or equal", so that a NaN counts as larger.
  const at::Tensor num_larger = logits.le(own).logical_not().logical_or(is_before).sum(1);
  const at::Tensor is_right = num_larger.lt(k_).logical_and(own.squeeze(1).isnan().logical_not());
  right_ += is_right.sum().item<std::int64_t>();
  samples_ += labels.numel();
}

void TopK::all_reduce(const comm::Group& group) {
  std::array counts{right_, samples_};
  add_up(counts, group);
  right_ = counts[0];
  samples_ = counts[1];
}

double TopK::value() const { return share(right_, samples_); }

void Perplexity::clear() {
  sum_ = 0;
  samples_ = 0;
}

void Perplexity::add(const at::Tensor& output, const at::Tensor& target) {
  const at::NoGradGuard no_grad;
  if (detail::is_soft(target)) {
    throw UsageError(join_message("perplexity is of class numbers, got soft labels ",
                                  target.sizes(), " of dtype ", target.dtype()),
                     "evaluate with class numbers; for soft labels look at the loss");
  }
  const Rows rows = rows_of(output, target, ignored_);
  const at::Tensor likelihoods = at::log_softmax(rows.logits.to(at::kDouble), 1);
  sum_ -= likelihoods.gather(1, rows.labels.unsqueeze(1)).sum().item<double>();
  samples_ += rows.labels.numel();
}

void Perplexity::all_reduce(const comm::Group& group) {
  const at::Tensor sum = at::tensor({sum_}, at::kDouble);
  comm::all_reduce_ordered(sum, group, "metric");
  sum_ = sum.item<double>();
  add_up({&samples_, 1}, group);
}

double Perplexity::value() const {
  return samples_ == 0 ? 1 : std::exp(sum_ / static_cast<double>(samples_));
}

void MeanSquare::clear() {
  sum_ = {};
  elements_ = 0;
}

void MeanSquare::add(const at::Tensor& output, const at::Tensor& target) {
  const at::NoGradGuard no_grad;
  if (output.sizes() != target.sizes()) {
    throw UsageError(join_message("the mean square of differences needs output and target of one "
                                  "shape: output ",
                                  output.sizes(), ", target ", target.sizes()),
                     "reshape one of them; nothing is broadcast here");
  }
  const at::Tensor differences =
      (output.to(at::kCPU, at::kDouble) - target.to(at::kCPU, at::kDouble)).contiguous();
  sum_.add(std::span(differences.const_data_ptr<double>(),
                     static_cast<std::size_t>(differences.numel())));
  elements_ += differences.numel();
}

void MeanSquare::all_reduce(const comm::Group& group) {
  add_up(sum_.words(), group);
  add_up({&elements_, 1}, group);
}

double MeanSquare::value() const {
  return elements_ == 0 ? 0 : sum_.value() / static_cast<double>(elements_);
}

}  // namespace trireme
