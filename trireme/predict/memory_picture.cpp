// SPDX-License-Identifier: Apache-2.0
// The picture of the memory over a simulated step: one diagram for each rank along `pipe`, with the
// parts of the memory on top of each other.
#include <trireme/base/error.h>
#include <trireme/cluster/units.h>
#include <trireme/predict/simulated_step.h>
#include <trireme/report/number.h>
#include <trireme/schedule/pictures/svg_text.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <functional>
#include <string_view>
#include <vector>

namespace trireme::predict {
namespace {

using report::bytes_as_text;
using schedule::svg_escaped;
using schedule::svg_number;
using schedule::svg_text;
using schedule::tick_distance;

constexpr double kLeft = 76;
constexpr double kPlot = 780;
constexpr double kRight = 24;
constexpr double kTop = 98;
constexpr double kHeight = 150;  // of a diagram
constexpr double kGap = 58;      // between two, with the axis of time
constexpr double kLetter = 6.6;
constexpr std::size_t kColumns = 780;

// Colours close to those of Okabe and Ito, as in pictures of schedules.
constexpr std::string_view kStyle = R"css(<style>
  svg { font-family: system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; }
  .back { fill: #ffffff; } .plot { fill: #f0f2f5; } .grid { stroke: #d9dde3; }
  text { fill: #1b1f24; font-size: 12px; } .title { font-size: 16px; font-weight: 600; }
  .soft { fill: #5b6470; } .tick { fill: #5b6470; font-size: 11px; text-anchor: middle; }
  .bytes { fill: #5b6470; font-size: 11px; text-anchor: end; } .left { text-anchor: end; }
  .parameters { fill: #6bb5ec; } .gradients { fill: #35b38a; } .optimizer { fill: #f0b445; }
  .buckets { fill: #c9a2e0; } .inputs { fill: #cdb891; } .activations { fill: #e8795a; } .temporary { fill: #a9b1bb; }
  .limit { stroke: #c0392b; stroke-dasharray: 6 4; } .limit-text { fill: #c0392b; }
  .peak { fill: #1b1f24; } .peak-line { stroke: #1b1f24; stroke-dasharray: 2 3; }
  @media (prefers-color-scheme: dark) {
    .back { fill: #1d2126; } .plot { fill: #262b31; } .grid { stroke: #3a414a; } text { fill: #e7eaee; }
    .soft, .tick, .bytes { fill: #a3acb8; } .limit { stroke: #ff8a7a; } .limit-text { fill: #ff8a7a; }
    .peak { fill: #ffffff; } .peak-line { stroke: #ffffff; }
  }
</style>
)css";

struct Unit {
  double size;
  const char* name;
};

Unit unit_of_bytes(double largest) {
  constexpr double kKiB = 1024;
  if (largest >= kKiB * kKiB * kKiB) return {kKiB * kKiB * kKiB, "GiB"};
  return largest >= kKiB * kKiB ? Unit{kKiB * kKiB, "MiB"} : Unit{kKiB, "KiB"};
}

Unit unit_of_time(double largest) {
  if (largest >= 1) return {1, "s"};
  return largest >= cluster::kMilli ? Unit{cluster::kMilli, "ms"} : Unit{cluster::kMicro, "us"};
}

// A part of the memory that stays the same during the step.
struct Part {
  const char* name;
  double RankMemoryPrediction::* bytes;
};

constexpr std::array<Part, 5> kParts = {{{"parameters", &RankMemoryPrediction::parameters},
                                         {"gradients", &RankMemoryPrediction::gradients},
                                         {"optimizer", &RankMemoryPrediction::optimizer},
                                         {"buckets", &RankMemoryPrediction::buckets},
                                         {"inputs", &RankMemoryPrediction::inputs}}};

class Picture {
 public:
  explicit Picture(const SimulatedStep& step) : step_(step) {
    for (const SimulatedRank& rank : step.ranks) end_ = std::max(end_, rank.end());
    if (end_ <= 0) end_ = 1;
    const double peak = step.prediction.peak_memory();
    const double limit = step.prediction.device_memory;
    // A limit far above would leave no height for the memory.
    constexpr double kFar = 3;
    shows_limit_ = limit <= kFar * peak;
    top_ = std::max(1.0, shows_limit_ ? std::max(peak, limit) : peak) * 1.08;
  }

  std::string svg() const {
    const double height = kTop + (kHeight + kGap) * static_cast<double>(step_.ranks.size());
    const double width = kLeft + kPlot + kRight;
    std::string svg;
    svg += svg_text("title", kLeft, 26, heading());
    svg += svg_text("soft", kLeft, 46, summary());
    svg += legend();
    for (std::size_t i = 0; i < step_.ranks.size(); ++i) {
      svg += diagram(i, kTop + (kHeight + kGap) * static_cast<double>(i));
    }
    return schedule::svg_document(width, height, heading(), kStyle, svg);
  }

 private:
  std::string heading() const {
    return join_message("Memory over a step: ", step_.prediction.ranks,
                        step_.prediction.ranks == 1 ? " rank on " : " ranks on ",
                        step_.prediction.cluster);
  }

  std::string summary() const {
    const Prediction& prediction = step_.prediction;
    return join_message("peak ", bytes_as_text(prediction.peak_memory()),
                        prediction.fits() ? " of " : ", which DOES NOT FIT into ",
                        bytes_as_text(prediction.device_memory));
  }

  std::string legend() const {
    std::string svg;
    double x = kLeft;
    const auto entry = [&](std::string_view name) {
      svg += join_message("<rect class=\"", name, "\" x=\"", svg_number(x),
                          "\" y=\"60\" width=\"14\" height=\"14\" rx=\"2\"/>\n");
      svg += svg_text("soft", x + 20, 71.5, name);
      x += 40 + kLetter * static_cast<double>(name.size());
    };
    for (const Part& part : kParts) {
      const bool is_used = std::ranges::any_of(
          step_.prediction.memory,
          [&](const RankMemoryPrediction& memory) { return memory.*part.bytes > 0; });
      if (is_used) entry(part.name);
    }
    entry("activations");
    entry("temporary");
    return svg;
  }

  double x_of(double time) const { return kLeft + kPlot * time / end_; }
  double y_of(double bytes, double y) const { return y + kHeight * (1 - bytes / top_); }

  std::string diagram(std::size_t number_of_rank, double y) const {
    const SimulatedRank& rank = step_.ranks[number_of_rank];
    const RankMemoryPrediction& memory = step_.prediction.memory[number_of_rank];
    std::string svg = join_message("<rect class=\"plot\" x=\"", svg_number(kLeft), "\" y=\"",
                                   svg_number(y), "\" width=\"", svg_number(kPlot), "\" height=\"",
                                   svg_number(kHeight), "\"/>\n");
    svg += axes(y);
    double below = 0;
    for (const Part& part : kParts) {
      const double bytes = memory.*part.bytes;
      const bool is_curve =
          part.bytes == &RankMemoryPrediction::gradients && rank.makes_gradients();
      if (bytes <= 0 || is_curve) continue;
      svg +=
          layer(part.name, join_message(part.name, ": ", bytes_as_text(bytes)),
                join_message("M", svg_number(kLeft), " ", svg_number(y_of(below, y)), "V",
                             svg_number(y_of(below + bytes, y)), "H", svg_number(x_of(rank.end())),
                             "V", svg_number(y_of(below, y)), "Z"));
      below += bytes;
    }
    svg += curves(rank, below, y);
    if (shows_limit_) svg += limit(y);
    svg += peak(rank, memory, y);
    return svg + svg_text("soft", kLeft, y - 6, join_message("rank ", rank.rank));
  }

  static std::string layer(std::string_view style, std::string_view title, std::string_view path) {
    return join_message("<path class=\"", style, "\" d=\"", path, "\"><title>", svg_escaped(title),
                        "</title></path>\n");
  }

  std::string axes(double y) const {
    std::string svg;
    const Unit bytes = unit_of_bytes(top_);
    const double rows = tick_distance(top_ / bytes.size, 5);
    for (int tick = 0; tick * rows * bytes.size <= top_; ++tick) {
      const double at = y_of(tick * rows * bytes.size, y);
      svg += join_message("<path class=\"grid\" d=\"M", svg_number(kLeft), " ", svg_number(at), "H",
                          svg_number(kLeft + kPlot), "\"/>\n");
      svg += svg_text("bytes", kLeft - 8, at + 4,
                      join_message(svg_number(tick * rows), " ", bytes.name));
    }
    const Unit time = unit_of_time(end_);
    const double columns = tick_distance(end_ / time.size, 10);
    for (int tick = 0; tick * columns * time.size <= end_ * (1 + 1e-9); ++tick) {
      svg += svg_text("tick", x_of(tick * columns * time.size), y + kHeight + 16,
                      join_message(svg_number(tick * columns), tick == 0 ? " " : "",
                                   tick == 0 ? time.name : ""));
    }
    return svg;
  }

  // The largest moment in each column of the picture.
  std::vector<MemoryMoment> columns(const SimulatedRank& rank) const {
    std::vector<MemoryMoment> columns;
    MemoryMoment last;
    std::size_t next = 0;
    for (std::size_t i = 0; i < kColumns; ++i) {
      const double right = end_ * static_cast<double>(i + 1) / static_cast<double>(kColumns);
      MemoryMoment largest = last;
      while (next < rank.memory.size() && rank.memory[next].time < right) {
        last = rank.memory[next++];
        if (last.total() > largest.total()) largest = last;
      }
      columns.push_back(largest);
    }
    return columns;
  }

  // Activations and what is temporary, on top of the parts that stay the same.
  std::string curves(const SimulatedRank& rank, double below, double y) const {
    const std::vector<MemoryMoment> moments = columns(rank);
    const double bottom = y_of(below, y);
    const auto path = [&](auto bytes_of) {
      std::string path = join_message("M", svg_number(kLeft), " ", svg_number(bottom));
      double height = bottom;
      for (std::size_t i = 0; i < moments.size(); ++i) {
        const double at = y_of(below + std::invoke(bytes_of, moments[i]), y);
        if (at == height) continue;
        path += join_message("H", svg_number(kLeft + static_cast<double>(i)), "V", svg_number(at));
        height = at;
      }
      return path + join_message("H", svg_number(kLeft + kPlot), "V", svg_number(bottom), "Z");
    };
    const std::string gradients =
        rank.makes_gradients()
            ? layer("gradients", "gradients that have been made", path(&MemoryMoment::total))
            : std::string();
    return gradients +
           layer("temporary", "temporary: results and gradients in use",
                 path([](const MemoryMoment& moment) {
                   return moment.activations + moment.temporary;
                 })) +
           layer("activations", "activations kept for backward",
                 path([](const MemoryMoment& moment) { return moment.activations; }));
  }

  std::string limit(double y) const {
    const double at = y_of(step_.prediction.device_memory, y);
    return join_message("<path class=\"limit\" d=\"M", svg_number(kLeft), " ", svg_number(at), "H",
                        svg_number(kLeft + kPlot), "\"/>\n") +
           svg_text("limit-text left", kLeft + kPlot - 4, at - 4,
                    join_message("memory of the device: ",
                                 bytes_as_text(step_.prediction.device_memory)));
  }

  std::string peak(const SimulatedRank& rank, const RankMemoryPrediction& memory, double y) const {
    if (rank.memory.empty()) return {};
    const MemoryMoment& moment = rank.peak();
    const double x = x_of(moment.time);
    const double at = y_of(memory.total(), y);
    std::string text = join_message(
        "peak ", bytes_as_text(memory.total()), " in ",
        moment.module.empty() ? "code outside of modules" : moment.module,
        moment.is_backward ? ", backward" : ", forward", " of micro-batch ", moment.micro_batch);
    const bool is_right = x > kLeft + kPlot / 2;
    return join_message("<path class=\"peak-line\" d=\"M", svg_number(x), " ", svg_number(at), "V",
                        svg_number(y + kHeight), "\"/>\n<circle class=\"peak\" cx=\"",
                        svg_number(x), "\" cy=\"", svg_number(at), "\" r=\"3.5\"/>\n") +
           svg_text(is_right ? "left" : "right", x + (is_right ? -8 : 8), at - 5, text);
  }

  const SimulatedStep& step_;
  double end_ = 0;
  double top_ = 1;
  bool shows_limit_ = false;
};

}  // namespace

std::string to_svg(const SimulatedStep& step) { return Picture(step).svg(); }

}  // namespace trireme::predict
