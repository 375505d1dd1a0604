// SPDX-License-Identifier: Apache-2.0
#include <trireme/report/progress_bar.h>

#include <trireme/report/number.h>

#include <algorithm>
#include <array>
#include <chrono>

namespace trireme::report {
namespace {

constexpr double kSecondsBetweenDrawings = 0.1;
constexpr std::int64_t kLinesPerEpoch = 10;
constexpr std::size_t kNarrowestBar = 8;
constexpr std::size_t kWidestBar = 40;

// Returns a bar `[====>    ]` with a total of `width` characters.
std::string draw_bar(std::int64_t step, std::int64_t steps, std::size_t width) {
  const std::size_t inside = width - 2;
  const auto filled = static_cast<std::size_t>(static_cast<std::int64_t>(inside) * step / steps);
  std::string bar(width, ' ');
  bar.front() = '[';
  bar.back() = ']';
  std::fill_n(bar.begin() + 1, filled, '=');
  if (filled < inside) bar[1 + filled] = '>';
  return bar;
}

}  // namespace

Clock steady_clock() {
  return [] {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration<double>(now).count();
  };
}

ProgressBar::ProgressBar(Console& console, std::string unit, Clock clock)
    : console_(console), unit_(std::move(unit)), clock_(std::move(clock)) {}

void ProgressBar::begin(std::string title, std::int64_t steps, std::int64_t done) {
  title_ = std::move(title);
  steps_ = std::max<std::int64_t>(steps, 1);
  first_step_ = done;
  samples_ = 0;
  loss_sum_ = 0;
  loss_count_ = 0;
  began_ = clock_();
  last_step_ = began_;
  last_drawn_ = began_ - 2 * kSecondsBetweenDrawings;  // the first step is drawn at once
  next_line_ = done * kLinesPerEpoch / steps_;
}

void ProgressBar::update(std::int64_t step, float loss, std::int64_t samples) {
  samples_ += samples;
  loss_sum_ += static_cast<double>(loss);
  ++loss_count_;
  const double now = clock_();
  last_step_ = now;
  if (console_.is_terminal()) {
    if (now - last_drawn_ < kSecondsBetweenDrawings && step < steps_) return;
    console_.status(describe(step, now, static_cast<std::size_t>(console_.status_width())));
  } else {
    const std::int64_t tenths = step * kLinesPerEpoch / steps_;
    if (tenths <= next_line_) return;
    next_line_ = tenths;
    console_.line(describe(step, now, 0));
  }
  last_drawn_ = now;
  loss_sum_ = 0;
  loss_count_ = 0;
}

void ProgressBar::finish(std::string_view summary) {
  console_.clear_status();
  std::string text = title_ + "  ";
  text += summary;
  console_.line(text + "  " + samples_per_second(last_step_) + "  " +
                fixed(last_step_ - began_, 1) + " s");
}

std::string ProgressBar::samples_per_second(double now) const {
  const double seconds = std::max(now - began_, 1e-9);
  return rate(static_cast<double>(samples_) / seconds) + " " + unit_ + "/s";
}

std::string ProgressBar::describe(std::int64_t step, double now, std::size_t width) const {
  // Steps that were done before a resumed run began do not count for its speed.
  const double per_step =
      (now - began_) / static_cast<double>(std::max<std::int64_t>(step - first_step_, 1));
  const std::string counts = std::to_string(step) + "/" + std::to_string(steps_);
  const std::array<std::string, 3> details = {
      std::string("  loss ") + fixed(loss_sum_ / static_cast<double>(loss_count_), 4),
      std::string("  ") + samples_per_second(now),
      std::string("  ") + clock_time(per_step * static_cast<double>(steps_ - step)) + " left"};
  if (width == 0) return title_ + "  step " + counts + details[0] + details[1] + details[2];

  std::string head = title_ + "  ";
  std::string tail = counts;
  // Details are dropped from the right until the line fits. The bar takes what is left.
  for (const auto& detail : details) {
    if (head.size() + tail.size() + detail.size() > width) break;
    tail += detail;
  }
  const std::size_t used = head.size() + tail.size() + 2;
  if (used + kNarrowestBar <= width) {
    head += draw_bar(step, steps_, std::min(width - used, kWidestBar)) + "  ";
  }
  return head + tail;
}

}  // namespace trireme::report
