// SPDX-License-Identifier: Apache-2.0
// Transforms of one column of a sample in a data loader: the usual augmentations of images, and any
// function of the program. The built-in transforms are loops over the memory of the sample. They
// start no threads.
#pragma once

#include <trireme/data/philox.h>

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

/// A named operation on one column of a sample. Cheap to copy; const methods may be called
/// concurrently.
class Transform {
 public:
  /// A function that takes a sample and returns the tensor to use instead.
  ///
  /// The function owns its argument and may change and return it. The data loader calls it on its
  /// worker threads, concurrently if there are several, with autograd disabled. `random` gives
  /// random numbers that belong to this sample.
  using Function = std::function<at::Tensor(at::Tensor sample, Random& random)>;

  /// Makes a transform of a function. Throws UsageError if the function is empty.
  /// @param name the name of the transform in error messages.
  /// @param function the function to apply.
  Transform(std::string name, Function function);

  /// Makes a transform of a lambda `(at::Tensor, Random&) -> at::Tensor`.
  template <typename Callable>
    requires std::is_invocable_r_v<at::Tensor, Callable, at::Tensor, Random&>
  Transform(Callable function)  // NOLINT(google-explicit-constructor)
      : Transform("a function of the program", Function(std::move(function))) {}
  /// Makes a transform of a lambda `(at::Tensor) -> at::Tensor`.
  template <typename Callable>
    requires(std::is_invocable_r_v<at::Tensor, Callable, at::Tensor> &&
             !std::is_invocable_v<Callable, at::Tensor, Random&>)
  Transform(Callable function)  // NOLINT(google-explicit-constructor)
      : Transform("a function of the program",
                  [function = std::move(function)](at::Tensor sample, Random&) {
                    return function(std::move(sample));
                  }) {}

  /// Makes a built-in transform. Used by the functions below.
  explicit Transform(std::shared_ptr<const detail::Operation> operation);

  /// Returns the name that error messages use.
  const std::string& name() const { return name_; }

  /// Applies the transform to one sample outside a data loader and returns the result. The sample
  /// is not changed.
  at::Tensor operator()(const at::Tensor& sample, Random& random) const;

  /// Returns the built-in operation, or null if this is a function of the program. For the data
  /// loader.
  const detail::Operation* operation() const { return operation_.get(); }
  /// Returns the function of the program; empty for a built-in transform.
  const Function& function() const { return function_; }

 private:
  std::string name_;
  std::shared_ptr<const detail::Operation> operation_;
  Function function_;
};

// Images are [..., H, W] with the channels before height and width, in any dtype unless stated
// otherwise. A sample that a transform cannot take ("Rejects ..." below) is a UsageError from
// BatchStream::next() that names column, operation and sample. "Numeric dtypes" are the integers
// uint8 and int8 to int64, and float16, bfloat16, float32 and float64. Arithmetic on them is done
// in float32, or in float64 for float64.
//
// The random transforms draw from the Random of the sample only, in the stated order. `uniform` and
// `below` are its functions; a number drawn from a to b is a + (b - a) * uniform. Where torchvision
// is named, the result is that of torchvision for a tensor and the same random choices.

/// Adds `padding` zeros on each of the four sides, then cuts a piece [height, width] at a random
/// place, like torchvision's RandomCrop.
///
/// All places are equally likely. Draws top, then left, by `below`. Throws UsageError if a side is
/// not positive or the padding is negative. Rejects images without pixels or smaller than the
/// piece.
Transform random_crop(std::int64_t height, std::int64_t width, std::int64_t padding = 0);

/// Cuts the central piece [height, width], with zeros around a smaller image, like torchvision's
/// CenterCrop.
///
/// If the margin is odd, the piece begins at the even one of the two central positions. If the
/// number of zeros is odd, the last side gets one more. Throws UsageError if a side is not
/// positive. Rejects images without pixels.
Transform center_crop(std::int64_t height, std::int64_t width);

/// Cuts a random piece and resizes it to [height, width] like resize(): the augmentation of
/// Inception and ResNet, torchvision's RandomResizedCrop(antialias=False).
///
/// Draws a fraction of the area from scale_min to scale_max, then width / height from ratio_min to
/// ratio_max, uniformly in its logarithm. After up to ten attempts, the first piece that fits is
/// cut at a top and a left drawn by `below`. If none fits, the largest central piece with an
/// allowed ratio is used, of at least one pixel. For numeric dtypes. Throws UsageError unless the
/// sides are positive, 0 <= scale_min <= scale_max <= 1 and 0 < ratio_min <= ratio_max. Rejects
/// images without pixels.
Transform random_resized_crop(std::int64_t height, std::int64_t width, double scale_min = 0.08,
                              double scale_max = 1, double ratio_min = 3 / 4.,
                              double ratio_max = 4 / 3.);

/// The pixels that pad() adds around an image; the examples show a row a b c.
enum class PadMode {
  kConstant,  ///< One value: 0 0 a b c 0 0.
  kReflect,   ///< The image mirrored at its outermost pixels: c b a b c b a.
  kEdge,      ///< The outermost pixels repeated: a a a b c c c.
};

/// Adds pixels on each side, like torchvision's Pad: [..., H, W] becomes [..., top + H + bottom,
/// left + W + right].
///
/// `value` is used by PadMode::kConstant. Throws UsageError if a number of pixels is negative.
/// Rejects images without pixels, a value that an integer dtype cannot represent (kConstant), and a
/// reflection that is not smaller than the image (kReflect).
Transform pad(std::int64_t left, std::int64_t top, std::int64_t right, std::int64_t bottom,
              double value = 0, PadMode mode = PadMode::kConstant);

/// Overwrites a random rectangle with `value` in all channels, like torchvision's RandomErasing.
///
/// Applies with the given probability (uniform < probability). Then draws a fraction of the area
/// from scale_min to scale_max and height / width from ratio_min to ratio_max, uniformly in its
/// logarithm. After up to ten attempts, the first rectangle that is smaller than the image in both
/// directions is overwritten, at a top and a left drawn by `below`. If there is none, the image
/// stays as it is. Throws UsageError unless 0 <= probability <= 1, 0 <= scale_min <= scale_max <= 1
/// and 0 < ratio_min <= ratio_max. Rejects a value that an integer dtype cannot represent.
Transform random_erasing(double probability = 0.5, double scale_min = 0.02, double scale_max = 0.33,
                         double ratio_min = 0.3, double ratio_max = 3.3, double value = 0);

/// Mirrors the image left to right with the given probability (uniform < probability). Throws
/// UsageError if the probability is not in [0, 1].
Transform random_horizontal_flip(double probability = 0.5);

/// Mirrors the image top to bottom with the given probability (uniform < probability). Throws
/// UsageError if the probability is not in [0, 1].
Transform random_vertical_flip(double probability = 0.5);

/// How a value between pixels is computed.
enum class Interpolation {
  kNearest,   ///< The value of the nearest pixel.
  kBilinear,  ///< The mean of the four pixels around it, weighted by distance.
};

/// Rotates the image about its centre by a random angle from -degrees to degrees, like
/// torchvision's RandomRotation.
///
/// The size stays the same; pixels from outside the image are 0. The centre is ((W - 1) / 2, (H -
/// 1) / 2). A positive angle rotates counter-clockwise with row 0 at the top, like PyTorch's rot90.
/// Relative to the centre, with x to the right and y down, the pixel (x, y) gets the value at
///
///     (x cos - y sin, x sin + y cos)
///
/// grid_sample(align_corners=False) at these points gives the same values. Draws the angle.
///
/// Interpolation::kBilinear is for numeric dtypes and rounds integers to the nearest. Throws
/// UsageError if `degrees` is negative or not finite.
Transform random_rotation(double degrees, Interpolation interpolation = Interpolation::kNearest);

/// Resizes to [height, width] by bilinear interpolation with half-pixel centres and without
/// antialiasing.
///
/// This is the convention of PyTorch's interpolate(mode="bilinear", align_corners=False) and of
/// OpenCV's INTER_LINEAR. Keeps the dtype; integers are rounded to the nearest. For numeric dtypes.
/// Throws UsageError if a side is not positive. Rejects images without pixels.
Transform resize(std::int64_t height, std::int64_t width);

/// Changes brightness, contrast, saturation and hue at random, in random order, like torchvision's
/// ColorJitter.
///
/// Images [..., C, H, W] are uint8, or float32 or float64 in [0, 1]. With x a value and grey as in
/// to_grayscale(), the adjustments with a random factor f are
///
///     brightness  f x
///     contrast    f x + (1 - f) m, m the mean of the grey image (of all values unless C is 3)
///     saturation  f x + (1 - f) grey
///     hue         adds f, modulo 1, to the hue in [0, 1)
///
/// Each result is clamped to black (0) and white (1 or 255); uint8 results are truncated.
///
/// f is drawn from max(0, 1 - setting) to 1 + setting, for the hue from -setting to setting. A
/// setting of 0 skips that adjustment. First draws the order, by shuffling the four as listed: for
/// i = 3, 2, 1 swap i with below(i + 1). Then draws the four f as listed, including those that are
/// skipped. Throws UsageError if a setting is negative or not finite, or hue is above 0.5. Rejects
/// other dtypes, and images without three channels if saturation or hue is not 0.
Transform color_jitter(double brightness = 0, double contrast = 0, double saturation = 0,
                       double hue = 0);

/// Computes 0.2989 red + 0.587 green + 0.114 blue, like torchvision's Grayscale: [..., 3, H, W]
/// becomes [..., channels, H, W].
///
/// `channels` is 1 or 3; three channels are equal. Integers are truncated. For numeric dtypes.
/// Throws UsageError if `channels` is neither 1 nor 3. Rejects images without three channels.
Transform to_grayscale(std::int64_t channels = 1);

/// Applies to_grayscale(3) with the given probability (uniform < probability). Throws UsageError if
/// the probability is not in [0, 1].
Transform random_grayscale(double probability = 0.1);

/// Averages kernel_size x kernel_size pixels around each pixel, like torchvision's GaussianBlur.
///
/// The weights are exp(-d^2 / (2 sigma^2)), normalized to the sum 1. The image is continued by
/// PadMode::kReflect; integers are rounded to the nearest. Draws sigma, in pixels, from sigma_min
/// to sigma_max. For numeric dtypes. Throws UsageError if `kernel_size` is not odd and positive,
/// and unless 0 < sigma_min <= sigma_max. Rejects images with a side that is not larger than
/// kernel_size / 2.
Transform gaussian_blur(std::int64_t kernel_size, double sigma_min = 0.1, double sigma_max = 2);

/// Computes x * scale + shift. The result is float32, or float64 if the sample is float64.
Transform rescale(double scale, double shift = 0);

/// Computes (x - mean) / std for each channel, like torchvision's Normalize.
///
/// `mean` and `std` have one value for all channels or one for each. The result is float32, or
/// float64 if the sample is float64. Throws UsageError if a std is 0 or the numbers of values
/// differ.
Transform normalize(std::vector<double> mean, std::vector<double> std);

/// Transposes an image [H, W, C] to [C, H, W].
Transform hwc_to_chw();

/// Converts to another dtype, like Tensor::to.
Transform type_cast(at::ScalarType dtype);

}  // namespace trireme::data
