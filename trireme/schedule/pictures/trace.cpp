// SPDX-License-Identifier: Apache-2.0
#include <trireme/schedule/pictures/trace.h>

#include <nlohmann/json.hpp>

#include <cstddef>

namespace trireme::schedule {
namespace {

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
