// SPDX-License-Identifier: Apache-2.0
// What a pipeline does to a column of each sample before it goes into the batch: the usual
// preparations of images, and any function of the program. The built-in ones are loops over the
// sample's memory and use no threads of their own.
#pragma once

#include <trireme/data/random.h>

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace trireme::data {

namespace detail {
class Operation;
}

/// One operation on one sample of a column. A cheap value; const methods may be called
/// concurrently.
class Transform {
 public:
  /// A function of the program: it gets a tensor of its own, which it may change and return, and
  /// the random numbers of this sample. It is called from the pipeline's workers, concurrently
  /// where there are several, without autograd.
  using Function = std::function<at::Tensor(at::Tensor sample, Random& random)>;

  /// @param name what error messages call it.
  Transform(std::string name, Function function);

  /// Takes a lambda `(at::Tensor) -> at::Tensor` or `(at::Tensor, Random&) -> at::Tensor` as it is.
  template <typename Callable>
    requires std::is_invocable_r_v<at::Tensor, Callable, at::Tensor, Random&>
  Transform(Callable function)  // NOLINT(google-explicit-constructor)
      : Transform("a function of the program", Function(std::move(function))) {}
  template <typename Callable>
    requires(std::is_invocable_r_v<at::Tensor, Callable, at::Tensor> &&
             !std::is_invocable_v<Callable, at::Tensor, Random&>)
  Transform(Callable function)  // NOLINT(google-explicit-constructor)
      : Transform("a function of the program",
                  [function = std::move(function)](at::Tensor sample, Random&) {
                    return function(std::move(sample));
                  }) {}

  explicit Transform(std::shared_ptr<const detail::Operation> operation);

  const std::string& name() const { return name_; }

  /// Applies it to one sample outside a pipeline; the sample is not changed.
  at::Tensor operator()(const at::Tensor& sample, Random& random) const;

  /// For the pipeline: the built-in operation, or null where this is a function of the program.
  const detail::Operation* operation() const { return operation_.get(); }
  const Function& function() const { return function_; }

 private:
  std::string name_;
  std::shared_ptr<const detail::Operation> operation_;
  Function function_;
};

// Images are [..., H, W], with the channels before them ([C, H, W]), in any dtype unless said
// otherwise. A sample that does not fit is a UsageError from BatchStream::next() that names column,
// operation and sample.

/// Adds `padding` zeros on each of the four sides, then cuts a piece [height, width] from a random
/// place, each place equally likely, as torchvision's RandomCrop does. Throws UsageError where the
/// sides are not positive.
Transform random_crop(std::int64_t height, std::int64_t width, std::int64_t padding = 0);

/// Mirrors left and right with the given probability. Throws UsageError where it is not in [0, 1].
Transform random_horizontal_flip(double probability = 0.5);

/// Resizes to [height, width] bilinearly with half-pixel centres, without smoothing when it
/// shrinks: the convention of PyTorch's interpolate(mode="bilinear", align_corners=False) and
/// OpenCV's INTER_LINEAR. Keeps the dtype; integers are rounded to the nearest. Throws UsageError
/// where the sides are not positive.
Transform resize(std::int64_t height, std::int64_t width);

/// x * scale + shift. The result is float32, or float64 where the sample is.
Transform rescale(double scale, double shift = 0);

/// (x - mean) / std for each channel, with one value for all or one for each, as torchvision's
/// Normalize does. The result is float32, or float64 where the sample is. Throws UsageError where a
/// std is 0 or the counts differ.
Transform normalize(std::vector<double> mean, std::vector<double> std);

/// [H, W, C] to [C, H, W].
Transform hwc_to_chw();

/// Converts to another dtype, as Tensor::to does.
Transform type_cast(at::ScalarType dtype);

}  // namespace trireme::data
