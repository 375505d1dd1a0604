// SPDX-License-Identifier: Apache-2.0
// What a data loader does to whole batches: any function of the program, and the two usual ways of
// mixing images.
#pragma once

#include <trireme/data/batch.h>
#include <trireme/data/philox.h>

#include <cstdint>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>

namespace trireme::data {

/// One operation on a batch. A cheap value; const methods may be called concurrently.
class BatchTransform {
 public:
  /// It gets a batch of its own, which it may change and return, on the CPU, and the random numbers
  /// of this batch. It may add, drop and rename columns, but the rows stay as many. It is called
  /// from the data loader's workers, concurrently where there are several, without autograd.
  using Function = std::function<Batch(Batch batch, Random& random)>;

  /// @param name what error messages call it. Throws UsageError where there is no function.
  BatchTransform(std::string name, Function function);

  /// Takes a lambda `(Batch) -> Batch` or `(Batch, Random&) -> Batch` as it is.
  template <typename Callable>
    requires std::is_invocable_r_v<Batch, Callable, Batch, Random&>
  BatchTransform(Callable callable)  // NOLINT(google-explicit-constructor)
      : BatchTransform("a function of the program", Function(std::move(callable))) {}
  template <typename Callable>
    requires(std::is_invocable_r_v<Batch, Callable, Batch> &&
             !std::is_invocable_v<Callable, Batch, Random&>)
  BatchTransform(Callable callable)  // NOLINT(google-explicit-constructor)
      : BatchTransform("a function of the program",
                       [callable = std::move(callable)](auto&& batch, Random&) -> Batch {
                         return callable(std::forward<decltype(batch)>(batch));
                       }) {}

  const std::string& name() const { return name_; }
  const Function& function() const { return function_; }

 private:
  std::string name_;
  Function function_;
};

/// The columns that `mixup` and `cutmix` change.
struct MixColumns {
  std::string image = "image";
  std::string label = "label";
};

/// Mixes every image and label with those of the row before it (the first with the last): x becomes
/// w x + (1 - w) x', with one w for the batch from the distribution Beta(alpha, alpha), as
/// torchvision's MixUp does (Zhang et al., "mixup: Beyond empirical risk minimization", 2018).
/// Images are float32 or float64 [rows, ...]. Labels are class numbers, int64 [rows], and become
/// float32 [rows, classes], or such soft labels already. Throws UsageError unless classes >= 1 and
/// alpha is positive and finite; refuses other dtypes and shapes, and labels that are no class.
BatchTransform mixup(std::int64_t classes, double alpha = 1, MixColumns columns = {});

/// Puts a rectangle of the image of the row before into every image [rows, ..., H, W], the same
/// place in all (the first takes it from the last row), and mixes the labels by the areas, as
/// torchvision's CutMix does (Yun et al., "CutMix: Regularization strategy to train strong
/// classifiers with localizable features", 2019). Draws w as `mixup` does; the rectangle has
/// 1 - w of the area before it is cut at the borders, around the pixel `below(W)`, `below(H)`.
/// Images have any dtype; labels, results and errors are those of `mixup`.
BatchTransform cutmix(std::int64_t classes, double alpha = 1, MixColumns columns = {});

}  // namespace trireme::data
