// SPDX-License-Identifier: Apache-2.0
// What a model is judged by beside its loss. Every metric counts, or adds without rounding where it
// says so, over the samples of all ranks: the result does not depend on how they are divided.
#pragma once

#include <trireme/comm/group.h>
#include <trireme/optim/exact_sum.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace trireme {

/// Something counted over an evaluation. Model::evaluate clears it, gives it the batches of this
/// rank and adds the ranks up; a loop by hand does the same. Your own derive from it.
class Metric {
 public:
  virtual ~Metric() = default;

  /// Forgets all that was counted.
  virtual void clear() = 0;

  /// Counts a batch. Throws UsageError where the two do not fit, DataError for a label that is no
  /// class.
  virtual void add(const at::Tensor& output, const at::Tensor& target) = 0;

  /// Gives every rank what all have counted. Collective, blocking.
  virtual void all_reduce(const comm::Group& group) = 0;
};

/// Metrics that outlive what they are given to, as Callbacks do.
using Metrics = std::vector<std::reference_wrapper<Metric>>;

/// How scores of single classes become one: scikit-learn's words.
enum class Average {
  kMacro,     ///< their mean
  kWeighted,  ///< their mean, each weighing as much as the class has samples
};

/// How often each class was taken for which: logits [N, C, ...] and class numbers [N, ...] of any
/// integer dtype, or soft labels in the logits' shape, which count as their most likely class. What
/// the largest logit says counts; of equal ones the first, and one that is not a number is the
/// largest, as in at::argmax.
class ConfusionMatrix final : public Metric {
 public:
  /// @param ignored a label that does not count, such as that of padding.
  explicit ConfusionMatrix(std::int64_t classes, std::optional<std::int64_t> ignored = {});

  void clear() override;
  void add(const at::Tensor& output, const at::Tensor& target) override;
  void all_reduce(const comm::Group& group) override;

  /// int64 [classes, classes]: rows are labels, columns predictions.
  const at::Tensor& counts() const { return counts_; }
  std::int64_t samples() const;

  /// Share of right predictions; 0 where nothing was counted. It is also what the "micro" average
  /// of precision, recall and F1 is.
  double accuracy() const;

  /// Of each class, double [classes]: of the samples taken for the class those that are of it, of
  /// the samples of the class those that were taken for it, and the harmonic mean of both. 0 where
  /// that divides by nothing.
  at::Tensor precision() const;
  at::Tensor recall() const;
  at::Tensor f1() const;

  /// Of all classes together. A class that has neither samples nor predictions is left out of a
  /// macro average, as in scikit-learn.
  double precision(Average average) const { return averaged(precision(), average); }
  double recall(Average average) const { return averaged(recall(), average); }
  double f1(Average average) const { return averaged(f1(), average); }

 private:
  double averaged(const at::Tensor& of_classes, Average average) const;

  std::int64_t classes_;
  std::optional<std::int64_t> ignored_;
  at::Tensor counts_;
};

/// Share of samples whose class is among the k largest logits: logits [N, C, ...] and class numbers
/// [N, ...], or soft labels, which count as their most likely class. Of equal logits the first
/// counts as larger; one that is not a number as the largest, and never as right.
class TopK final : public Metric {
 public:
  /// Throws UsageError for k below 1.
  explicit TopK(std::int64_t k, std::optional<std::int64_t> ignored = {});

  void clear() override { right_ = samples_ = 0; }
  void add(const at::Tensor& output, const at::Tensor& target) override;
  void all_reduce(const comm::Group& group) override;

  /// 0 where nothing was counted.
  double value() const;
  std::int64_t samples() const { return samples_; }

 private:
  std::int64_t k_;
  std::optional<std::int64_t> ignored_;
  std::int64_t right_ = 0;
  std::int64_t samples_ = 0;
};

/// exp of the mean negative log-likelihood, in nats, of class numbers [N, ...] under the softmax of
/// logits [N, C, ...]: of the next token in a language model. Sums are in double; their order may
/// show in the last digits.
class Perplexity final : public Metric {
 public:
  explicit Perplexity(std::optional<std::int64_t> ignored = {}) : ignored_(ignored) {}

  void clear() override;
  void add(const at::Tensor& output, const at::Tensor& target) override;
  void all_reduce(const comm::Group& group) override;

  /// 1 where nothing was counted.
  double value() const;
  std::int64_t samples() const { return samples_; }

 private:
  std::optional<std::int64_t> ignored_;
  double sum_ = 0;
  std::int64_t samples_ = 0;
};

/// Mean of the squared differences of all elements, which are taken in double and added without
/// rounding: the same bits for every number of ranks. Output and target have one shape.
class MeanSquare final : public Metric {
 public:
  void clear() override;
  void add(const at::Tensor& output, const at::Tensor& target) override;
  void all_reduce(const comm::Group& group) override;

  /// 0 where nothing was counted. std::sqrt of it is the RMSE.
  double value() const;
  std::int64_t elements() const { return elements_; }

 private:
  detail::ExactSumOfSquares sum_;
  std::int64_t elements_ = 0;
};

}  // namespace trireme
