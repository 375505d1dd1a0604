// SPDX-License-Identifier: Apache-2.0
// Metrics that evaluate a model beside its loss. Their results do not depend on how samples are
// divided over the ranks: they count, or add without rounding where they say so.
#pragma once

#include <trireme/comm/group.h>
#include <trireme/optim/exact_sum.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace trireme {

/// The base class of metrics, also of your own. Model::evaluate clears a metric, adds the batches
/// of this rank and then adds up the ranks. A loop of your own does the same.
class Metric {
 public:
  virtual ~Metric() = default;

  /// Forgets everything that was counted.
  virtual void clear() = 0;

  /// Counts a batch. Throws UsageError if `output` and `target` do not fit each other, and
  /// DataError for a label that is not a class.
  virtual void add(const at::Tensor& output, const at::Tensor& target) = 0;

  /// Replaces the counts of every rank by the sum over all ranks. Collective and blocking.
  virtual void all_reduce(const comm::Group& group) = 0;
};

/// References to metrics, which must outlive what they are given to.
using Metrics = std::vector<std::reference_wrapper<Metric>>;

/// How the scores of single classes are averaged, in scikit-learn's terms.
enum class Average {
  kMacro,     ///< the plain mean
  kWeighted,  ///< the mean weighted by the number of samples of each class
};

/// Counts how often each class was predicted for samples of each class. Takes logits [N, C, ...]
/// and class numbers [N, ...] of any integer dtype, or soft labels in the shape of the logits. The
/// label is then the most likely class.
/// The prediction is the class with the largest logit. Among equal logits the first counts, and a
/// NaN counts as the largest, as in at::argmax.
class ConfusionMatrix final : public Metric {
 public:
  /// @param ignored a label that is not counted, such as that of padding.
  explicit ConfusionMatrix(std::int64_t classes, std::optional<std::int64_t> ignored = {});

  void clear() override;
  void add(const at::Tensor& output, const at::Tensor& target) override;
  void all_reduce(const comm::Group& group) override;

  /// Returns the counts, int64 [classes, classes]. Rows are labels, columns are predictions.
  const at::Tensor& counts() const { return counts_; }
  /// Returns the number of counted samples.
  std::int64_t samples() const;

  /// Returns the share of right predictions; 0 if nothing was counted. Equal to the "micro" average
  /// of precision, recall and F1.
  double accuracy() const;

  /// Returns for each class the share of right ones among the samples predicted as that class,
  /// double [classes]. 0 for a class that was never predicted.
  at::Tensor precision() const;
  /// Returns for each class the share of its samples that were predicted as that class, double
  /// [classes]. 0 for a class without samples.
  at::Tensor recall() const;
  /// Returns for each class the harmonic mean of precision and recall, double [classes]. 0 where it
  /// is not defined.
  at::Tensor f1() const;

  /// Returns the average precision of all classes. A macro average leaves out a class with neither
  /// samples nor predictions, as in scikit-learn.
  double precision(Average average) const { return averaged(precision(), average); }
  /// Returns the average recall of all classes, like `precision`.
  double recall(Average average) const { return averaged(recall(), average); }
  /// Returns the average F1 of all classes, like `precision`.
  double f1(Average average) const { return averaged(f1(), average); }

 private:
  double averaged(const at::Tensor& of_classes, Average average) const;

  std::int64_t classes_;
  std::optional<std::int64_t> ignored_;
  at::Tensor counts_;
};

/// The share of samples whose class is among the k largest logits. Takes logits [N, C, ...] and
/// class numbers [N, ...], or soft labels, which count as their most likely class. Among equal
/// logits the first counts as larger. A NaN counts as the largest, and never as right.
class TopK final : public Metric {
 public:
  /// @param k at least 1, else UsageError is thrown.
  /// @param ignored a label that is not counted, such as that of padding.
  explicit TopK(std::int64_t k, std::optional<std::int64_t> ignored = {});

  void clear() override { right_ = samples_ = 0; }
  void add(const at::Tensor& output, const at::Tensor& target) override;
  void all_reduce(const comm::Group& group) override;

  /// Returns the share; 0 if nothing was counted.
  double value() const;
  std::int64_t samples() const { return samples_; }

 private:
  std::int64_t k_;
  std::optional<std::int64_t> ignored_;
  std::int64_t right_ = 0;
  std::int64_t samples_ = 0;
};

/// exp of the mean negative log-likelihood, in nats, of class numbers [N, ...] under the softmax of
/// logits [N, C, ...]. In a language model the class is the next token. Sums are in double, so the
/// number of ranks may change the last digits.
class Perplexity final : public Metric {
 public:
  /// @param ignored a label that is not counted, such as that of padding.
  explicit Perplexity(std::optional<std::int64_t> ignored = {}) : ignored_(ignored) {}

  void clear() override;
  void add(const at::Tensor& output, const at::Tensor& target) override;
  void all_reduce(const comm::Group& group) override;

  /// Returns the perplexity; 1 if nothing was counted.
  double value() const;
  std::int64_t samples() const { return samples_; }

 private:
  std::optional<std::int64_t> ignored_;
  double sum_ = 0;
  std::int64_t samples_ = 0;
};

/// The mean of the squared differences of all elements. `output` and `target` must have the same
/// shape. Squares are taken in double and added without rounding, so the result has the same bits
/// for every number of ranks.
class MeanSquare final : public Metric {
 public:
  void clear() override;
  void add(const at::Tensor& output, const at::Tensor& target) override;
  void all_reduce(const comm::Group& group) override;

  /// Returns the mean; 0 if nothing was counted. Its square root is the RMSE.
  double value() const;
  /// Returns the number of counted elements.
  std::int64_t elements() const { return elements_; }

 private:
  detail::ExactSumOfSquares sum_;
  std::int64_t elements_ = 0;
};

}  // namespace trireme
