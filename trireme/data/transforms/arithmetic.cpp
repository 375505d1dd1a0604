// SPDX-License-Identifier: Apache-2.0
// Transforms that compute with each element: rescale, normalize, type_cast.
#include <trireme/base/error.h>
#include <trireme/data/detail/pointwise_transforms.h>
#include <trireme/data/transform.h>
#include <trireme/data/transforms/elements.h>
#include <trireme/data/transforms/kernels.h>

#include <ATen/Dispatch.h>
#include <c10/util/TypeCast.h>

#include <algorithm>

namespace trireme::data {
namespace {

using detail::Form;
using detail::Real;

// Results have the dtype of the arithmetic.
Form real_form(const Form& input) {
  return {input.dtype == at::kDouble ? at::kDouble : at::kFloat, input.sizes};
}

class Rescale final : public detail::Pointwise {
 public:
  Rescale(double scale, double shift) : scale_(scale), shift_(shift) {}

  std::string_view name() const override { return "rescale"; }
  Form result(const Form& input) const override { return real_form(input); }

  void run_block(at::ScalarType from, std::int64_t /*channel*/, const std::byte* input,
                 std::byte* output, std::int64_t count) const override {
    const auto scale = static_cast<float>(scale_);
    const auto shift = static_cast<float>(shift_);
    if (from == at::kByte) {
      detail::kernels().rescale_bytes(reinterpret_cast<const std::uint8_t*>(input),
                                      static_cast<std::size_t>(count), scale, shift,
                                      reinterpret_cast<float*>(output));
    } else if (from == at::kFloat) {
      detail::kernels().rescale_floats(reinterpret_cast<const float*>(input),
                                       static_cast<std::size_t>(count), scale, shift,
                                       reinterpret_cast<float*>(output));
    } else {
      rescale_others(from, input, output, count);
    }
  }

 private:
  // Other dtypes, without hand-written loops.
  void rescale_others(at::ScalarType from, const std::byte* input, std::byte* output,
                      std::int64_t count) const {
    AT_DISPATCH_ALL_TYPES_AND3(at::kBool, at::kHalf, at::kBFloat16, from, "rescale", [&] {
      using Number = Real<scalar_t>;
      const auto* x = reinterpret_cast<const scalar_t*>(input);
      auto* y = reinterpret_cast<Number*>(output);
      const auto scale = static_cast<Number>(scale_);
      const auto shift = static_cast<Number>(shift_);
      for (std::int64_t i = 0; i < count; ++i) y[i] = static_cast<Number>(x[i]) * scale + shift;
    });
  }

  double scale_;
  double shift_;
};

class Normalize final : public detail::Pointwise {
 public:
  Normalize(std::vector<double> mean, std::vector<double> std)
      : mean_(std::move(mean)), std_(std::move(std)) {
    if (mean_.size() != std_.size() || mean_.empty()) {
      throw UsageError(join_message("normalize with ", mean_.size(), " means and ", std_.size(),
                                    " standard deviations"),
                       "give one of each for every channel, or one of each for all");
    }
    if (std::ranges::find(std_, 0.0) != std_.end()) {
      throw UsageError("normalize with a standard deviation of 0", "leave a constant channel at 1");
    }
  }

  std::string_view name() const override { return "normalize"; }

  Form result(const Form& input) const override {
    const std::int64_t channels = detail::channels_of(input);
    if (mean_.size() != 1 && channels != static_cast<std::int64_t>(mean_.size())) {
      throw UsageError(
          join_message("normalize has values for ", mean_.size(), " channels, but the image has ",
                       channels, ": ", detail::describe(input)),
          "give one mean and standard deviation for each channel; channels come before height and "
          "width");
    }
    return real_form(input);
  }

  void run_block(at::ScalarType from, std::int64_t channel, const std::byte* input,
                 std::byte* output, std::int64_t count) const override {
    const auto place = static_cast<std::size_t>(mean_.size() == 1 ? 0 : channel);
    const auto mean = static_cast<float>(mean_[place]);
    const auto std = static_cast<float>(std_[place]);
    if (from == at::kByte) {
      detail::kernels().normalize_bytes(reinterpret_cast<const std::uint8_t*>(input),
                                        static_cast<std::size_t>(count), mean, std,
                                        reinterpret_cast<float*>(output));
    } else if (from == at::kFloat) {
      detail::kernels().normalize_floats(reinterpret_cast<const float*>(input),
                                         static_cast<std::size_t>(count), mean, std,
                                         reinterpret_cast<float*>(output));
    } else {
      normalize_others(from, place, input, output, count);
    }
  }

 private:
  // Other dtypes, without hand-written loops.
  void normalize_others(at::ScalarType from, std::size_t place, const std::byte* input,
                        std::byte* output, std::int64_t count) const {
    AT_DISPATCH_ALL_TYPES_AND3(at::kBool, at::kHalf, at::kBFloat16, from, "normalize", [&] {
      using Number = Real<scalar_t>;
      const auto* x = reinterpret_cast<const scalar_t*>(input);
      auto* y = reinterpret_cast<Number*>(output);
      const auto mean = static_cast<Number>(mean_[place]);
      const auto std = static_cast<Number>(std_[place]);
      // Divides instead of multiplying by 1 / std, to get the same bits as torchvision.
      for (std::int64_t i = 0; i < count; ++i) y[i] = (static_cast<Number>(x[i]) - mean) / std;
    });
  }

  std::vector<double> mean_;
  std::vector<double> std_;
};

class TypeCast final : public detail::Pointwise {
 public:
  explicit TypeCast(at::ScalarType dtype) : dtype_(dtype) {}

  std::string_view name() const override { return "type_cast"; }
  Form result(const Form& input) const override { return {dtype_, input.sizes}; }

  void run_block(at::ScalarType from, std::int64_t /*channel*/, const std::byte* input,
                 std::byte* output, std::int64_t count) const override {
    // One loop for each pair of dtypes.
    AT_DISPATCH_ALL_TYPES_AND3(at::kBool, at::kHalf, at::kBFloat16, from, "type_cast", [&] {
      using From = scalar_t;
      const auto* x = reinterpret_cast<const From*>(input);
      AT_DISPATCH_ALL_TYPES_AND3(at::kBool, at::kHalf, at::kBFloat16, dtype_, "type_cast", [&] {
        auto* y = reinterpret_cast<scalar_t*>(output);
        for (std::int64_t i = 0; i < count; ++i) y[i] = c10::convert<scalar_t, From>(x[i]);
      });
    });
  }

 private:
  at::ScalarType dtype_;
};

}  // namespace

Transform rescale(double scale, double shift) {
  return Transform(std::make_shared<Rescale>(scale, shift));
}

Transform normalize(std::vector<double> mean, std::vector<double> std) {
  return Transform(std::make_shared<Normalize>(std::move(mean), std::move(std)));
}

Transform type_cast(at::ScalarType dtype) { return Transform(std::make_shared<TypeCast>(dtype)); }

}  // namespace trireme::data
