// SPDX-License-Identifier: Apache-2.0
// amplitude_to_decibel.
#include <trireme/base/error.h>
#include <trireme/data/audio/spectrogram.h>
#include <trireme/data/detail/operation.h>

#include <ATen/Dispatch.h>

#include <algorithm>
#include <cmath>
#include <memory>

namespace trireme::data {
namespace {

using detail::Form;

class AmplitudeToDecibel final : public detail::Operation {
 public:
  AmplitudeToDecibel(DecibelOf of, std::optional<double> range)
      : factor_(of == DecibelOf::kPower ? 10 : 20), range_(range) {
    if (range.value_or(0) >= 0) return;
    throw UsageError(join_message("amplitude_to_decibel with a range of ", *range),
                     "give how many decibel below the loudest are kept, 80 for example");
  }

  std::string_view name() const override { return "amplitude_to_decibel"; }

  Form result(const Form& input) const override {
    if (input.dtype == at::kFloat || input.dtype == at::kDouble) return input;
    throw UsageError(
        join_message("amplitude_to_decibel cannot compute with ", detail::describe(input)),
        "give a spectrogram with a power; type_cast the column to float32 first");
  }

  void run(const Form& from, const std::byte* input, std::byte* output,
           Random& /*random*/) const override {
    AT_DISPATCH_FLOATING_TYPES(from.dtype, "amplitude_to_decibel",
                               [&] { convert<scalar_t>(from, input, output); });
  }

 private:
  template <typename Number>
  void convert(const Form& from, const std::byte* input, std::byte* output) const {
    const auto* x = reinterpret_cast<const Number*>(input);
    auto* y = reinterpret_cast<Number*>(output);
    const std::int64_t count = from.elements();
    const auto factor = static_cast<Number>(factor_);
    const auto least = static_cast<Number>(1e-10);
    // std::max(x, least) with x first returns NaN for NaN.
    for (std::int64_t i = 0; i < count; ++i) y[i] = factor * std::log10(std::max(x[i], least));
    if (!range_ || count == 0) return;
    // The range applies to each group of the last three dimensions.
    std::int64_t group = 1;
    for (std::size_t back = 1; back <= std::min<std::size_t>(from.sizes.size(), 3); ++back)
      group *= from.sizes[from.sizes.size() - back];
    for (Number* end = y + count; y < end; y += group) {
      const Number floor = *std::max_element(y, y + group) - static_cast<Number>(*range_);
      for (std::int64_t i = 0; i < group; ++i) y[i] = std::max(y[i], floor);
    }
  }

  double factor_;
  std::optional<double> range_;
};

}  // namespace

Transform amplitude_to_decibel(DecibelOf of, std::optional<double> range) {
  return Transform(std::make_shared<AmplitudeToDecibel>(of, range));
}

at::Tensor amplitude_to_decibel(const at::Tensor& spectrogram, DecibelOf of,
                                std::optional<double> range) {
  Random unused(0, 0, 0, 0);
  return amplitude_to_decibel(of, range)(spectrogram.detach(), unused);
}

}  // namespace trireme::data
