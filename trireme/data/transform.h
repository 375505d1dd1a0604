// SPDX-License-Identifier: Apache-2.0
// What a data loader does to a column of each sample before it goes into the batch: the usual
// preparations of images, and any function of the program. The built-in ones are loops over the
// sample's memory and use no threads of their own.
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

/// One operation on one sample of a column. A cheap value; const methods may be called
/// concurrently.
class Transform {
 public:
  /// A function of the program: it gets a tensor of its own, which it may change and return, and
  /// the random numbers of this sample. It is called from the data loader's workers, concurrently
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

  /// Applies it to one sample outside a data loader; the sample is not changed.
  at::Tensor operator()(const at::Tensor& sample, Random& random) const;

  /// For the data loader: the built-in operation, or null where this is a function of the program.
  const detail::Operation* operation() const { return operation_.get(); }
  const Function& function() const { return function_; }

 private:
  std::string name_;
  std::shared_ptr<const detail::Operation> operation_;
  Function function_;
};

// Images are [..., H, W], with the channels before them ([C, H, W]), in any dtype unless said
// otherwise. A sample that does not fit is a UsageError from BatchStream::next() that names column,
// operation and sample. "Numbers" are the integers int8 to int64 and uint8, and float16, bfloat16,
// float32 and float64; their arithmetic is float32, or float64 for float64.
//
// The random ones draw from the Random of the sample alone, in the order that each states;
// `uniform` and `below` are its functions, and a number from a to b is a + (b - a) * uniform. Where
// torchvision is named, the result is what it makes of a tensor by the same choices.

/// Adds `padding` zeros on each of the four sides, then cuts a piece [height, width] from a random
/// place, each place equally likely, as torchvision's RandomCrop does. Draws top, then left, by
/// `below`. Throws UsageError where the sides are not positive or the padding is negative; refuses
/// images without pixels, or smaller than the piece.
Transform random_crop(std::int64_t height, std::int64_t width, std::int64_t padding = 0);

/// Cuts the piece [height, width] in the middle, with zeros around it where the image is smaller,
/// as torchvision's CenterCrop does: of the two middles of an odd margin the piece begins at the
/// even one, and of an odd number of zeros the last side gets one more. Throws UsageError where the
/// sides are not positive; refuses images without pixels.
Transform center_crop(std::int64_t height, std::int64_t width);

/// Cuts a random piece and resizes it to [height, width] as `resize` does, for training as
/// Inception and ResNet do: torchvision's RandomResizedCrop(antialias=False). Draws up to ten times
/// a part of the area, from scale_min to scale_max, and width / height, from ratio_min to ratio_max
/// uniformly in its logarithm; the first piece that fits is cut, at a top and then a left drawn by
/// `below`. Where none fits, it takes the largest one in the middle whose width / height is in the
/// range, of at least one pixel. Numbers only. Throws UsageError unless the sides are positive, 0
/// <= scale_min <= scale_max <= 1 and 0 < ratio_min <= ratio_max; refuses images without pixels.
Transform random_resized_crop(std::int64_t height, std::int64_t width, double scale_min = 0.08,
                              double scale_max = 1, double ratio_min = 3 / 4.,
                              double ratio_max = 4 / 3.);

/// What `pad` puts around an image, for a row a b c.
enum class PadMode {
  kConstant,  ///< one value: 0 0 a b c 0 0
  kReflect,   ///< the image, mirrored at its outermost pixels: c b a b c b a
  kEdge,      ///< its outermost pixels: a a a b c c c
};

/// Adds so many pixels to each side: [..., H, W] to [..., top + H + bottom, left + W + right], as
/// torchvision's Pad does. Throws UsageError where a number is negative; refuses images without
/// pixels, a value that an integer dtype cannot hold (kConstant), and to mirror as many pixels as
/// the image has (kReflect).
Transform pad(std::int64_t left, std::int64_t top, std::int64_t right, std::int64_t bottom,
              double value = 0, PadMode mode = PadMode::kConstant);

/// Overwrites a random rectangle with `value` in all channels, with the given probability, as
/// torchvision's RandomErasing does. Draws whether to (uniform < probability), then up to ten times
/// a part of the area, from scale_min to scale_max, and height / width, from ratio_min to ratio_max
/// uniformly in its logarithm; the first that is smaller than the image in both directions is
/// overwritten, at a top and then a left drawn by `below`. Where none is, nothing happens. Throws
/// UsageError unless 0 <= probability <= 1, 0 <= scale_min <= scale_max <= 1 and
/// 0 < ratio_min <= ratio_max; refuses a value that an integer dtype cannot hold.
Transform random_erasing(double probability = 0.5, double scale_min = 0.02, double scale_max = 0.33,
                         double ratio_min = 0.3, double ratio_max = 3.3, double value = 0);

/// Mirrors left and right with the given probability, where uniform < probability. Throws
/// UsageError where it is not in [0, 1].
Transform random_horizontal_flip(double probability = 0.5);

/// Mirrors top and bottom with the given probability, where uniform < probability. Throws
/// UsageError where it is not in [0, 1].
Transform random_vertical_flip(double probability = 0.5);

/// The value between pixels.
enum class Interpolation {
  kNearest,   ///< that of the nearest pixel
  kBilinear,  ///< the mean of the four around it, weighted by nearness
};

/// Turns the image about its middle, ((W - 1) / 2, (H - 1) / 2) in pixels, by an angle from
/// -degrees to degrees; the size stays, and what comes from outside is 0. A positive angle turns
/// counter-clockwise as one looks at the image with row 0 on top: the pixel (x, y) to the right and
/// below the middle shows (x cos - y sin, x sin + y cos), which is where PyTorch's rot90 and
/// torchvision's RandomRotation turn it, and grid_sample(align_corners=False) with the same points
/// gives the same values. kBilinear takes numbers only and counts pixels outside as 0; integers are
/// rounded to the nearest. Draws the angle. Throws UsageError where degrees is negative or not
/// finite.
Transform random_rotation(double degrees, Interpolation interpolation = Interpolation::kNearest);

/// Resizes to [height, width] bilinearly with half-pixel centres, without smoothing when it
/// shrinks: the convention of PyTorch's interpolate(mode="bilinear", align_corners=False) and
/// OpenCV's INTER_LINEAR. Keeps the dtype; integers are rounded to the nearest. Numbers only.
/// Throws UsageError where the sides are not positive; refuses images without pixels.
Transform resize(std::int64_t height, std::int64_t width);

/// Changes the colours at random as torchvision's ColorJitter does, one after the other in random
/// order, of uint8, or of float32 or float64 in [0, 1], [..., C, H, W]. With x a value, white 1 or
/// 255, grey as in `to_grayscale`, each result within black and white, and cut off in uint8:
///   brightness  f x
///   contrast    f x + (1 - f) m, m the mean of the grey image (of all values where C is not 3)
///   saturation  f x + (1 - f) grey
///   hue         moves the hue, in [0, 1), of hue, saturation and value by f, modulo 1
/// f is from max(0, 1 - setting) to 1 + setting, for the hue from -setting to setting. A setting of
/// 0 leaves that one out. Draws the order, by shuffling the four as listed (for i = 3, 2, 1 swap i
/// with below(i + 1)), then the four f as listed, whatever is left out. Throws UsageError where a
/// setting is negative or not finite, or hue above 0.5; refuses other dtypes, and images without
/// three channels where saturation or hue is not 0.
Transform color_jitter(double brightness = 0, double contrast = 0, double saturation = 0,
                       double hue = 0);

/// 0.2989 red + 0.587 green + 0.114 blue, [..., 3, H, W] to [..., channels, H, W], 1 or 3 times the
/// same, as torchvision's Grayscale does: integers are cut off. Numbers only. Throws UsageError
/// where channels is neither 1 nor 3; refuses images without three channels.
Transform to_grayscale(std::int64_t channels = 1);

/// `to_grayscale(3)` with the given probability, where uniform < probability. Throws UsageError
/// where it is not in [0, 1].
Transform random_grayscale(double probability = 0.1);

/// Averages kernel_size x kernel_size pixels around each with the weights of a Gaussian bell,
/// exp(-d^2 / (2 sigma^2)) over their sum, as torchvision's GaussianBlur does: the image is
/// continued by PadMode::kReflect, integers are rounded to the nearest. Draws sigma, in pixels,
/// from sigma_min to sigma_max. Numbers only. Throws UsageError where kernel_size is not odd and
/// positive, or unless 0 < sigma_min <= sigma_max; refuses images of which a side is not larger
/// than kernel_size / 2.
Transform gaussian_blur(std::int64_t kernel_size, double sigma_min = 0.1, double sigma_max = 2);

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
