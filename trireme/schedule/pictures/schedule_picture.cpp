// SPDX-License-Identifier: Apache-2.0
#include <trireme/schedule/pictures/schedule_picture.h>

#include <trireme/base/error.h>
#include <trireme/schedule/pictures/svg_text.h>
#include <trireme/schedule/verifier/memory.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <string_view>
#include <vector>

namespace trireme::schedule {
namespace {

constexpr double kLeft = 64;
constexpr double kRight = 20;
constexpr double kTop = 92;
constexpr double kRow = 30;
constexpr double kBox = 26;
constexpr double kLeastWidth = 860;
constexpr double kMostWidth = 6000;
constexpr double kBoxWidth = 17;  // of the shortest forward or backward, if the width permits
constexpr double kDigit = 6.2;    // the width of a digit
constexpr double kLetter = 6.6;
constexpr int kShades = 4;

struct Look {
  std::string_view style;
  ActionKind kind;
};

// The kinds in the order of the legend; other kinds are drawn as `other`.
constexpr std::array<Look, 9> kLooks = {{
    {"forward", ActionKind::kForward},
    {"backward", ActionKind::kBackward},
    {"input", ActionKind::kBackwardInput},
    {"weight", ActionKind::kBackwardWeight},
    {"recompute", ActionKind::kRecompute},
    {"message", ActionKind::kSend},
    {"message", ActionKind::kReceive},
    {"reduce", ActionKind::kReduce},
    {"step", ActionKind::kStep},
}};

// Colours close to those of Okabe and Ito, on which text is readable. They are concrete values,
// because few programs other than browsers support CSS variables.
constexpr std::string_view kStyle = R"css(<style>
  svg { font-family: system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; }
  .back { fill: #ffffff; } .row { fill: #f0f2f5; } .grid { stroke: #d9dde3; }
  text { fill: #1b1f24; font-size: 12px; } .title { font-size: 16px; font-weight: 600; }
  .soft { fill: #5b6470; } .number { font-size: 10.5px; text-anchor: middle; fill: #10141a; }
  .tick { fill: #5b6470; font-size: 11px; text-anchor: middle; } .rank { text-anchor: end; }
  .forward { fill: #6bb5ec; } .backward { fill: #35b38a; } .input { fill: #5fc9a4; } .weight { fill: #f0b445; }
  .recompute { fill: #a9b1bb; } .message { fill: #d58bb8; } .reduce { fill: #c9a2e0; } .step { fill: #e8795a; }
  .other { fill: #cdb891; } .chunk1 { opacity: 0.68; } .chunk2 { opacity: 0.5; } .chunk3 { opacity: 0.36; }
  @media (prefers-color-scheme: dark) {
    .back { fill: #1d2126; } .row { fill: #262b31; } .grid { stroke: #3a414a; }
    text { fill: #e7eaee; } .soft, .tick { fill: #a3acb8; } .number { fill: #10141a; } .later { fill: #e7eaee; }
  }
</style>
)css";

std::string_view style_of(ActionKind kind) {
  const auto look = std::ranges::find(kLooks, kind, &Look::kind);
  return look == kLooks.end() ? "other" : look->style;
}

class Picture {
 public:
  Picture(const Schedule& schedule, const Timeline& timeline)
      : schedule_(schedule), timeline_(timeline), chunks_(schedule.rank_of_stage.size(), 0) {
    std::vector<int> stages_of_rank(schedule.ranks.size(), 0);
    for (int stage = 0; stage < schedule.num_stages(); ++stage) {
      item(chunks_, stage) = item(stages_of_rank, schedule.rank_of(stage))++;
    }
    set_scale();
  }

  std::string svg() const {
    const double height = kTop + kRow * schedule_.num_ranks() + 34;
    const double width = kLeft + plot_ + kRight;
    std::string svg;
    svg += svg_text("title", kLeft, 26, heading());
    svg += svg_text("soft", kLeft, 46, summary());
    svg += legend();
    svg += axis();
    for (int rank = 0; rank < schedule_.num_ranks(); ++rank) svg += row(rank);
    return svg_document(width, height, heading(), kStyle, svg);
  }

 private:
  void set_scale() {
    double shortest = std::numeric_limits<double>::infinity();
    for (const auto& spans : timeline_.ranks) {
      for (const Span& span : spans) {
        end_ = std::max(end_, span.end);
        const bool has_number = computes(span.action.kind) && span.end > span.begin;
        if (has_number) shortest = std::min(shortest, span.end - span.begin);
      }
    }
    if (end_ <= 0) end_ = 1;
    const double wanted = std::isfinite(shortest) ? end_ * kBoxWidth / shortest : kLeastWidth;
    plot_ = std::clamp(wanted, kLeastWidth, kMostWidth) - kLeft - kRight;
    scale_ = plot_ / end_;
  }

  std::string heading() const {
    std::string text = join_message(schedule_.name, ": ", schedule_.num_ranks(), " ranks, ",
                                    schedule_.micro_batches, " micro-batches");
    if (schedule_.num_stages() != schedule_.num_ranks()) {
      text += join_message(", ", schedule_.num_stages(), " stages");
    }
    return text;
  }

  std::string summary() const {
    const std::vector<StageBytes> counts{StageBytes{}};
    int most = 0;
    for (const RankMemory& rank : peak_memory(schedule_, counts)) {
      most = std::max(most, rank.peak_unfinished);
    }
    const double chunks = static_cast<double>(schedule_.num_stages()) / schedule_.num_ranks();
    return join_message("step ", svg_number(timeline_.step_time), " ms, bubble ",
                        svg_number(100 * timeline_.bubble_rate()), " %, a rank keeps at most ",
                        svg_number(most / chunks), " micro-batches");
  }

  bool has(ActionKind kind) const {
    return std::ranges::any_of(timeline_.ranks, [kind](const std::vector<Span>& spans) {
      return std::ranges::any_of(spans, [kind](const Span& span) {
        return span.action.kind == kind && span.end > span.begin;
      });
    });
  }

  std::string legend() const {
    std::string svg;
    double x = kLeft;
    const auto entry = [&](const std::string& style, std::string_view name) {
      svg += join_message("<rect class=\"", style, "\" x=\"", svg_number(x),
                          "\" y=\"60\" width=\"14\" height=\"14\" rx=\"2\"/>\n");
      svg += svg_text("soft", x + 20, 71.5, name);
      x += 40 + kLetter * static_cast<double>(name.size());
    };
    for (std::size_t kind = 0; kind < kNumActionKinds; ++kind) {
      const auto action = static_cast<ActionKind>(kind);
      if (has(action)) entry(std::string(style_of(action)), name_of(action));
    }
    const int num_chunks = chunks_.empty() ? 1 : std::ranges::max(chunks_) + 1;
    for (int chunk = 0; num_chunks > 1 && chunk < std::min(num_chunks, kShades); ++chunk) {
      const bool stands_for_more = chunk + 1 == kShades && num_chunks > kShades;
      entry(join_message("forward", shade(chunk)),
            join_message("chunk ", chunk, stands_for_more ? " and later" : ""));
    }
    return svg;
  }

  static std::string shade(int chunk) {
    return chunk == 0 ? "" : join_message(" chunk", std::min(chunk, kShades - 1));
  }

  std::string axis() const {
    std::string svg;
    const double bottom = kTop + kRow * schedule_.num_ranks();
    const double distance = tick_distance(end_, plot_ / 70);
    for (int tick = 0; tick * distance <= end_ * (1 + 1e-9); ++tick) {
      const double x = kLeft + tick * distance * scale_;
      svg += join_message("<path class=\"grid\" d=\"M", svg_number(x), " ", svg_number(kTop - 4),
                          "V", svg_number(bottom + 4), "\"/>\n");
      svg +=
          svg_text("tick", x, bottom + 18, svg_number(tick * distance) + (tick == 0 ? " ms" : ""));
    }
    return svg;
  }

  std::string row(int rank) const {
    const double y = kTop + kRow * rank;
    std::string svg = svg_text("rank", kLeft - 10, y + kBox / 2 + 4, join_message("rank ", rank));
    svg +=
        join_message("<rect class=\"row\" x=\"", svg_number(kLeft), "\" y=\"", svg_number(y),
                     "\" width=\"", svg_number(plot_), "\" height=\"", svg_number(kBox), "\"/>\n");
    for (const Span& span : item(timeline_.ranks, rank)) {
      if (span.end > span.begin) svg += box(span, y);
    }
    return svg;
  }

  std::string box(const Span& span, double y) const {
    const Action& action = span.action;
    const double x = kLeft + span.begin * scale_;
    const double width = (span.end - span.begin) * scale_;
    const double gap = width > 4 ? 1 : 0;
    const int chunk = item(chunks_, action.stage);
    std::string svg = join_message(
        "<g><title>", svg_escaped(describe(action)), ", ", svg_number(span.begin), " to ",
        svg_number(span.end), " ms</title><rect class=\"", style_of(action.kind), shade(chunk),
        "\" x=\"", svg_number(x), "\" y=\"", svg_number(y), "\" width=\"", svg_number(width - gap),
        "\" height=\"", svg_number(kBox), "\"/>");
    const std::string label =
        action.micro_batch == Action::kNone ? "" : std::to_string(action.micro_batch);
    if (!label.empty() && width - gap >= kDigit * static_cast<double>(label.size())) {
      svg += join_message("<text class=\"number", chunk == 0 ? "" : " later", "\" x=\"",
                          svg_number(x + (width - gap) / 2), "\" y=\"",
                          svg_number(y + kBox / 2 + 4), "\">", label, "</text>");
    }
    return svg + "</g>\n";
  }

  const Schedule& schedule_;
  const Timeline& timeline_;
  std::vector<int> chunks_;  // for each stage, the number of earlier stages on its rank
  double end_ = 0;
  double plot_ = 0;   // the width of the plot
  double scale_ = 1;  // pixels per millisecond
};

using Json = nlohmann::ordered_json;

enum Row : int { kSteps, kPhases };

constexpr double kMicroseconds = 1000;  // per millisecond

Json name_of_row(const char* kind, std::size_t rank, int row, const std::string& name) {
  return {{"name", kind}, {"ph", "M"}, {"pid", rank}, {"tid", row}, {"args", {{"name", name}}}};
}

Json event(std::string_view name, std::size_t rank, int row, double begin, double end,
           Json arguments) {
  return {{"name", name},
          {"ph", "X"},
          {"ts", begin * kMicroseconds},
          {"dur", (end - begin) * kMicroseconds},
          {"pid", rank},
          {"tid", row},
          {"args", std::move(arguments)}};
}

Json arguments_of(const Action& action) {
  Json arguments = {{"stage", action.stage}};
  if (action.micro_batch != Action::kNone) arguments["micro_batch"] = action.micro_batch;
  if (action.peer != Action::kNone) arguments["peer"] = action.peer;
  return arguments;
}

}  // namespace

std::string to_svg(const Schedule& schedule, const Timeline& timeline) {
  return Picture(schedule, timeline).svg();
}

std::string to_trace(const Timeline& timeline) {
  std::string text;
  const auto add = [&text](const Json& json) {
    text += (text.empty() ? "[\n" : ",\n") + json.dump();
  };
  for (std::size_t rank = 0; rank < timeline.ranks.size(); ++rank) {
    const auto& spans = timeline.ranks[rank];
    add(name_of_row("process_name", rank, kSteps, "rank " + std::to_string(rank)));
    add(name_of_row("thread_name", rank, kSteps, "steps"));
    add(name_of_row("thread_name", rank, kPhases, "phases"));
    if (spans.empty()) continue;
    add(event("step", rank, kSteps, spans.front().begin, spans.back().end, Json::object()));
    for (const Span& span : spans) {
      if (span.end <= span.begin) continue;
      add(event(name_of(span.action.kind), rank, kPhases, span.begin, span.end,
                arguments_of(span.action)));
    }
  }
  return text.empty() ? "[]\n" : text + "\n]\n";
}

}  // namespace trireme::schedule
