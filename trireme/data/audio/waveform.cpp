// SPDX-License-Identifier: Apache-2.0
#include <trireme/data/audio/waveform.h>

#include <trireme/base/error.h>
#include <trireme/data/audio/resampler.h>
#include <trireme/data/detail/operation.h>

#include <ATen/Dispatch.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <memory>
#include <numbers>
#include <numeric>

namespace trireme::data {
namespace detail {
namespace {

constexpr std::int64_t kMaximumRate = 1'000'000;

// Returns sin(pi t) / (pi t), where t counts zero crossings from the middle.
double sinc(double t) {
  const double angle = std::numbers::pi * t;
  return angle == 0 ? 1 : std::sin(angle) / angle;
}

// Returns the value of the window at `part`, from -1 to 1.
double window_at(double part, const ResampleOptions& options) {
  if (options.window == ResampleWindow::kHann) {
    const double cosine = std::cos(std::numbers::pi * part / 2);
    return cosine * cosine;
  }
  return std::cyl_bessel_i(0.0, options.beta * std::sqrt(1 - part * part)) /
         std::cyl_bessel_i(0.0, options.beta);
}

// Keeps four independent sums, because each addition has to wait for the one before it in the same
// sum.
template <typename Number>
double dot(const Number* x, const double* taps, std::int64_t count) {
  std::array<double, 4> sums{};
  std::int64_t i = 0;
  for (; i + 4 <= count; i += 4) {
    for (std::size_t lane = 0; lane < 4; ++lane)
      sums[lane] += static_cast<double>(x[i + static_cast<std::int64_t>(lane)]) *
                    taps[i + static_cast<std::int64_t>(lane)];
  }
  for (; i < count; ++i) sums[0] += static_cast<double>(x[i]) * taps[i];
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

void check_resampling(std::int64_t from_rate, std::int64_t to_rate,
                      const ResampleOptions& options) {
  if (std::min(from_rate, to_rate) < 1 || std::max(from_rate, to_rate) > kMaximumRate) {
    throw UsageError(join_message("resample from ", from_rate, " to ", to_rate),
                     "give rates from 1 to 1000000 frames per second");
  }
  if (options.lowpass_filter_width < 1 || !(options.rolloff > 0 && options.rolloff <= 1) ||
      !(options.beta >= 0 && std::isfinite(options.beta))) {
    throw UsageError(
        join_message("resample with a width of ", options.lowpass_filter_width, ", a rolloff of ",
                     options.rolloff, " and a beta of ", options.beta),
        "give a width of at least 1, 0 < rolloff <= 1 and a beta of at least 0");
  }
}

}  // namespace

Resampler::Resampler(std::int64_t from_rate, std::int64_t to_rate, const ResampleOptions& options)
    : from_(from_rate), to_(to_rate) {
  check_resampling(from_rate, to_rate, options);
  const std::int64_t divisor = std::gcd(from_rate, to_rate);
  from_ /= divisor;
  to_ /= divisor;
  if (from_ != to_) make_taps(options);
}

// Output frame j is at position j * from / to of the input. The sinc has `rate` zero crossings in
// `from` input frames. Positions repeat after `to` output frames, so `to` filters suffice.
void Resampler::make_taps(const ResampleOptions& options) {
  const auto from = static_cast<double>(from_);
  const auto to = static_cast<double>(to_);
  const double rate = std::min(from, to) * options.rolloff;
  const auto crossings = static_cast<double>(options.lowpass_filter_width);
  const double reach = crossings * from / rate;  // In frames, to each side.
  width_ = static_cast<std::int64_t>(std::floor(2 * reach)) + 1;
  taps_.resize(static_cast<std::size_t>(to_ * width_));
  double* tap = taps_.data();
  for (std::int64_t phase = 0; phase < to_; ++phase) {
    const double middle = static_cast<double>(phase) * from / to;
    first_.push_back(static_cast<std::int64_t>(std::ceil(middle - reach)));
    for (std::int64_t i = 0; i < width_; ++i) {
      const double t = (static_cast<double>(first_.back() + i) - middle) * rate / from;
      const bool is_inside = std::abs(t) < crossings;
      *tap++ = is_inside ? sinc(t) * window_at(t / crossings, options) * rate / from : 0;
    }
  }
}

std::int64_t Resampler::frames(std::int64_t from_frames) const {
  // Divides first, so that the products stay small: both factors of the second one are below the
  // rates.
  return from_frames / from_ * to_ + (from_frames % from_ * to_ + from_ - 1) / from_;
}

template <typename Number>
void Resampler::run(const Number* from, std::int64_t from_frames, Number* to) const {
  if (from_ == to_) {
    std::copy_n(from, from_frames, to);
    return;
  }
  const std::int64_t count = frames(from_frames);
  std::int64_t period = 0;  // The input frame at which phase 0 lies.
  for (std::int64_t j = 0, phase = 0; j < count; ++j) {
    const std::int64_t begin = period + first_[static_cast<std::size_t>(phase)];
    const double* const taps = taps_.data() + phase * width_;
    const std::int64_t low = std::max<std::int64_t>(0, -begin);
    const std::int64_t high = std::min(width_, from_frames - begin);
    to[j] = static_cast<Number>(low < high ? dot(from + begin + low, taps + low, high - low) : 0);
    if (++phase == to_) {
      phase = 0;
      period += from_;
    }
  }
}

template void Resampler::run(const float*, std::int64_t, float*) const;
template void Resampler::run(const double*, std::int64_t, double*) const;

}  // namespace detail

namespace {

using detail::Form;

void check_frames(std::string_view name, const Form& form) {
  if (!form.sizes.empty()) return;
  throw UsageError(join_message(name, " of ", detail::describe(form)),
                   "give sound [..., frames], with one dimension at least");
}

Form with_frames(const Form& input, std::int64_t frames) {
  Form output = input;
  output.sizes.back() = frames;
  return output;
}

// Returns the number of rows [frames] in a sample.
std::int64_t rows_of(const Form& form) {
  return form.sizes.back() == 0 ? 0 : form.elements() / form.sizes.back();
}

class Resample final : public detail::Operation {
 public:
  Resample(std::int64_t from_rate, std::int64_t to_rate, const ResampleOptions& options)
      : resampler_(from_rate, to_rate, options) {}

  std::string_view name() const override { return "resample"; }

  Form result(const Form& input) const override {
    check_frames("resample", input);
    if (input.dtype != at::kFloat && input.dtype != at::kDouble) {
      throw UsageError(join_message("resample cannot compute with ", detail::describe(input)),
                       "type_cast the column to float32 first");
    }
    return with_frames(input, resampler_.frames(input.sizes.back()));
  }

  void run(const Form& from, const std::byte* input, std::byte* output,
           Random& /*random*/) const override {
    AT_DISPATCH_FLOATING_TYPES(from.dtype, "resample",
                               [&] { run_rows<scalar_t>(from, input, output); });
  }

 private:
  template <typename Number>
  void run_rows(const Form& from, const std::byte* input, std::byte* output) const {
    const std::int64_t frames = from.sizes.back();
    const auto* x = reinterpret_cast<const Number*>(input);
    auto* y = reinterpret_cast<Number*>(output);
    for (std::int64_t row = rows_of(from); row > 0; --row) {
      resampler_.run(x, frames, y);
      x += frames;
      y += resampler_.frames(frames);
    }
  }

  detail::Resampler resampler_;
};

class FixLength final : public detail::Operation {
 public:
  explicit FixLength(std::int64_t frames) : frames_(frames) {
    if (frames >= 1) return;
    throw UsageError(join_message("fix_length to ", frames, " frames"), "give at least 1");
  }

  std::string_view name() const override { return "fix_length"; }

  Form result(const Form& input) const override {
    check_frames("fix_length", input);
    return with_frames(input, frames_);
  }

  void run(const Form& from, const std::byte* input, std::byte* output,
           Random& /*random*/) const override {
    const Form to = with_frames(from, frames_);
    // Zeros are the same bits in every dtype.
    if (to.bytes() > 0) std::memset(output, 0, to.bytes());
    const std::int64_t kept = std::min(from.sizes.back(), frames_) * from.element_bytes();
    for (std::int64_t row = 0; row < rows_of(from); ++row) {
      std::memcpy(output + row * frames_ * from.element_bytes(),
                  input + row * from.sizes.back() * from.element_bytes(),
                  static_cast<std::size_t>(kept));
    }
  }

 private:
  std::int64_t frames_;
};

}  // namespace

Transform resample(std::int64_t from_rate, std::int64_t to_rate, const ResampleOptions& options) {
  return Transform(std::make_shared<Resample>(from_rate, to_rate, options));
}

at::Tensor resample(const at::Tensor& waveform, std::int64_t from_rate, std::int64_t to_rate,
                    const ResampleOptions& options) {
  Random unused(0, 0, 0, 0);
  return resample(from_rate, to_rate, options)(waveform.detach(), unused);
}

Transform fix_length(std::int64_t frames) { return Transform(std::make_shared<FixLength>(frames)); }

}  // namespace trireme::data
