// SPDX-License-Identifier: Apache-2.0
// Transforms of whole batches in a data loader: mixup, CutMix, and any function of the program.
#pragma once

#include <trireme/data/batch.h>
#include <trireme/data/philox.h>

#include <cstdint>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>

namespace trireme::data {

/// A named operation on a batch. Cheap to copy; const methods may be called concurrently.
class BatchTransform {
 public:
  /// A function that takes a batch on the CPU and returns the batch to use instead.
  ///
  /// The function owns its argument and may change and return it. It may add, drop and rename
  /// columns, but it must keep the number of rows. The data loader calls it on its worker threads,
  /// concurrently if there are several, with autograd disabled. `random` gives random numbers that
  /// belong to this batch.
  using Function = std::function<Batch(Batch batch, Random& random)>;

  /// Makes a transform of a function. Throws UsageError if the function is empty.
  /// @param name the name of the transform in error messages.
  /// @param function the function to apply.
  BatchTransform(std::string name, Function function);

  /// Makes a transform of a lambda `(Batch) -> Batch` or `(Batch, Random&) -> Batch`.
  template <typename Callable>
    requires std::is_invocable_r_v<Batch, Callable, Batch, Random&>
  BatchTransform(Callable callable)  // NOLINT(google-explicit-constructor)
      : BatchTransform("a function of the program", Function(std::move(callable))) {}
  /// Makes a transform of a lambda `(Batch) -> Batch`, which needs no random numbers.
  template <typename Callable>
    requires(std::is_invocable_r_v<Batch, Callable, Batch> &&
             !std::is_invocable_v<Callable, Batch, Random&>)
  BatchTransform(Callable callable)  // NOLINT(google-explicit-constructor)
      : BatchTransform("a function of the program",
                       [callable = std::move(callable)](auto&& batch, Random&) -> Batch {
                         return callable(std::forward<decltype(batch)>(batch));
                       }) {}

  /// Returns the name that error messages use.
  const std::string& name() const { return name_; }
  /// Returns the function to apply.
  const Function& function() const { return function_; }

 private:
  std::string name_;
  Function function_;
};

/// The names of the columns that mixup() and cutmix() change.
struct MixColumns {
  /// The column with the images.
  std::string image = "image";
  /// The column with the labels.
  std::string label = "label";
};

/// Returns a transform that mixes every image and label with those of the row before.
///
/// The first row is mixed with the last one. A value x becomes w x + (1 - w) x', where x' is the
/// value in the other row. The weight w is drawn once for the batch from the distribution
/// Beta(alpha, alpha). The behaviour is that of torchvision's MixUp (Zhang et al., "mixup: Beyond
/// empirical risk minimization", 2018).
///
/// Images are float32 or float64 [rows, ...]. Labels are class numbers, int64 [rows], or
/// probabilities, float32 [rows, classes]. The resulting labels are float32 [rows, classes].
///
/// @param classes the number of classes, at least 1.
/// @param alpha the parameter of the Beta distribution, positive and finite.
/// @param columns the names of the columns to change.
/// @throws UsageError if `classes` or `alpha` is out of range. The data loader throws it for images
/// or labels of another dtype or shape, and for labels that are not in [0, classes).
BatchTransform mixup(std::int64_t classes, double alpha = 1, MixColumns columns = {});

/// Returns a transform that replaces a rectangle of every image by that of the row before.
///
/// The first row takes its rectangle from the last one. The rectangle is at the same place in all
/// images [rows, ..., H, W]; the labels are mixed in proportion to the areas. The behaviour is that
/// of torchvision's CutMix (Yun et al., "CutMix: Regularization strategy to train strong
/// classifiers with localizable features", 2019).
///
/// Draws w as mixup() does, then the centre of the rectangle: column below(W), row below(H). The
/// rectangle covers the fraction 1 - w of the image before it is clipped at the borders. Images may
/// have any dtype. Labels, parameters and errors are those of mixup().
BatchTransform cutmix(std::int64_t classes, double alpha = 1, MixColumns columns = {});

}  // namespace trireme::data
