// SPDX-License-Identifier: Apache-2.0
// Transforms of whole batches in a data loader: mixup, CutMix, and any function of the program.
#pragma once

#include <trireme/data/batch.h>
#include <trireme/data/named_function.h>

#include <cstdint>
#include <string>

namespace trireme::data {

/// A named function of a batch. It may add, drop and rename columns, but it must keep the number of
/// rows.
class BatchTransform : public NamedFunction<Batch> {
 public:
  using NamedFunction::NamedFunction;
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
