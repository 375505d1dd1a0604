// SPDX-License-Identifier: Apache-2.0
#include <trireme/report/page/pipeline_pictures.h>

#include <trireme/base/error.h>
#include <trireme/base/input_file.h>
#include <trireme/base/json_depth.h>
#include <trireme/base/text.h>
#include <trireme/report/number.h>
#include <trireme/report/page/markup.h>
#include <trireme/schedule/action.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <string_view>

namespace trireme::report {
namespace {

constexpr std::size_t kMostPictures = 4;
constexpr std::int64_t kMostPictureBytes = std::int64_t{1} << 20U;
constexpr std::int64_t kMostTraceBytes = std::int64_t{1} << 24U;
constexpr std::string_view kPicture = "pipeline-step";
constexpr std::string_view kPictureEnd = ".svg";

// Returns the step in the name of a picture, or std::nullopt for other files.
std::optional<std::int64_t> step_of_picture(std::string_view file) {
  if (!file.starts_with(kPicture) || !file.ends_with(kPictureEnd)) return std::nullopt;
  if (file.size() <= kPicture.size() + kPictureEnd.size()) return std::nullopt;
  file.remove_prefix(kPicture.size());
  file.remove_suffix(kPictureEnd.size());
  const auto step = parse_number<std::int64_t>(file);
  return step && *step >= 1 ? step : std::nullopt;
}

bool computes(std::string_view name) {
  for (std::size_t kind = 0; kind < schedule::kNumActionKinds; ++kind) {
    const auto action = static_cast<schedule::ActionKind>(kind);
    if (schedule::name_of(action) == name) return schedule::computes(action);
  }
  return false;
}

// The times of one rank in a trace, in microseconds.
struct RankTimes {
  double total = 0;    // of its step
  double compute = 0;  // of its actions that compute
};

// Returns a number of a trace. Throws json::exception if it is none that a clock or a rank can
// have.
double trace_number(const nlohmann::json& event, const char* key) {
  constexpr double kMost = 1e15;
  const auto number = event.at(key).get<double>();
  if (std::abs(number) <= kMost) return number;
  throw nlohmann::json::out_of_range::create(406, "no time and no rank", &event);
}

// Sets the times of a step from its trace. Leaves them unset if the text is no such trace.
void set_times(PipelinePicture& step, const std::string& text) {
  using nlohmann::json;
  if (json_depth(text) > kDeepestJson) return;
  const json events = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!events.is_array()) return;
  std::map<std::int64_t, RankTimes> ranks;
  double first = std::numeric_limits<double>::infinity();
  double last = -first;
  try {
    for (const json& event : events) {
      RankTimes& rank = ranks[static_cast<std::int64_t>(trace_number(event, "pid"))];
      if (event.at("ph").get<std::string>() != "X") continue;
      const double begin = trace_number(event, "ts");
      const double duration = trace_number(event, "dur");
      if (duration < 0) return;
      if (trace_number(event, "tid") == 0) {  // the row of the whole step
        rank.total = duration;
        first = std::min(first, begin);
        last = std::max(last, begin + duration);
      } else if (computes(event.at("name").get<std::string>())) {
        rank.compute += duration;
      }
    }
  } catch (const json::exception&) {  // an event without a key, or with a value of another type
    return;
  }
  double longest = 0;
  double compute = 0;
  for (const auto& [number, rank] : ranks) {
    longest = std::max(longest, rank.total);
    compute += rank.compute / static_cast<double>(ranks.size());
  }
  if (longest <= 0 || compute > longest) return;
  step.milliseconds = (last - first) / 1000;
  step.bubble = 1 - compute / longest;
}

// Returns why a file is no picture, or an empty text.
std::string problem_of(const std::optional<std::string>& svg, const InputFile& file) {
  if (!svg) return file.problem;
  if (svg->starts_with("<svg ") && svg->ends_with("</svg>\n")) return {};
  return "is no complete SVG";
}

}  // namespace

PipelinePictures read_pipeline_pictures(const std::filesystem::path& folder,
                                        std::vector<std::string>& notes) {
  std::set<std::int64_t> steps;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (const auto step = step_of_picture(entry.path().filename().string())) steps.insert(*step);
  }
  PipelinePictures read{.num_pictures = steps.size()};
  for (auto step = steps.rbegin(); step != steps.rend() && read.shown.size() < kMostPictures;
       ++step) {
    const std::string name = join_message(kPicture, *step);
    InputFile picture = open_input(folder / (name + std::string(kPictureEnd)));
    const auto svg = read_text(picture, kMostPictureBytes);
    if (const std::string problem = problem_of(svg, picture); !problem.empty()) {
      notes.push_back(join_message(name, kPictureEnd, " ", problem, "; it is not shown"));
      continue;
    }
    PipelinePicture& shown = read.shown.emplace_back(PipelinePicture{.step = *step, .svg = *svg});
    InputFile trace = open_input(folder / (name + ".json"));
    if (const auto text = read_text(trace, kMostTraceBytes)) set_times(shown, *text);
  }
  std::ranges::reverse(read.shown);
  return read;
}

std::string pipeline_section(const PipelinePictures& steps) {
  if (steps.shown.empty()) return {};
  std::string html = "<section>\n<h2>Pipeline</h2>\n";
  for (const PipelinePicture& step : steps.shown) {
    const std::string name = "step " + with_thousands(step.step);
    std::string times;
    if (step.milliseconds && step.bubble) {
      times = fixed(*step.milliseconds, 1) + " ms, bubble " + fixed(100 * *step.bubble, 1) + " %";
    }
    html += "<figure class=\"card picture\"><figcaption>S" + name.substr(1) + " <small>" + times +
            "</small></figcaption>\n<div class=\"scroll\"><img alt=\"Timeline of " + name +
            (times.empty() ? "" : ": " + times) + "\" src=\"data:image/svg+xml;base64," +
            base64(step.svg) + "\"></div></figure>\n";
  }
  html +=
      "<p class=\"soft\">The actions of rank 0's pipeline, from the first forward of a step to the "
      "last "
      "backward. The bubble is the share of this time in which a rank does not compute.";
  if (steps.num_pictures > steps.shown.size()) {
    html += " Shown are " + std::to_string(steps.shown.size()) + " of " +
            std::to_string(steps.num_pictures) + " pictures.";
  }
  return html + "</p>\n</section>\n";
}

}  // namespace trireme::report
