// SPDX-License-Identifier: Apache-2.0
#include <trireme/report/trace_file.h>

#include <trireme/base/error.h>
#include <trireme/report/number.h>
#include <trireme/report/trace_text.h>

#include <nlohmann/json.hpp>

#include <cstddef>
#include <utility>

namespace trireme::report {
namespace {

using Json = nlohmann::ordered_json;

Json to_json(const TraceEvent& event, int rank) {
  return {{"name", event.name},
          {"ph", "X"},
          {"ts", event.begin},
          {"dur", event.duration},
          {"pid", rank},
          {"tid", static_cast<int>(event.row)},
          {"args", {{"epoch", event.epoch}, {"step", event.global_step}}}};
}

// Returns a mark over the rank's rows for events that are missing, because the disk was full.
Json lost_before(const TraceEvent& event, std::int64_t writes, int rank) {
  return {{"name", join_message("events of ", writes, " writes lost")},
          {"ph", "i"},
          {"s", "p"},
          {"ts", event.begin},
          {"pid", rank},
          {"tid", 0}};
}

// Returns a label, which viewers show beside the name of the process.
Json label_of(double clock_error, std::ptrdiff_t rank) {
  return {{"name", "process_labels"},
          {"ph", "M"},
          {"pid", rank},
          {"tid", 0},
          {"args",
           {{"labels", join_message("clock within ", fixed(clock_error, 1), " us of rank 0's")},
            {"clock_error", clock_error}}}};
}

}  // namespace

TraceFile::TraceFile(std::filesystem::path path, int rank)
    : file_(std::move(path), /*starts_anew=*/true), rank_(rank) {
  TraceText names;
  names.add_rank(rank);
  file_.begin(names.open());
}

void TraceFile::add(std::span<const TraceEvent> events) {
  std::string text;
  if (file_.lost() > 0 && !events.empty()) {
    text += ",\n" + lost_before(events.front(), file_.lost(), rank_).dump();
  }
  for (const TraceEvent& event : events) text += ",\n" + to_json(event, rank_).dump();
  file_.append(text);
}

void TraceFile::close() { file_.append("\n]\n"); }

std::string merge_traces(std::span<const RankTrace> ranks) {
  std::string merged;
  for (const RankTrace& rank : ranks) {
    // If the disk was full, a rank may have written nothing.
    if (rank.text.find_first_not_of("]\n") == std::string::npos) continue;
    const Json events = Json::parse(rank.text, nullptr, /*allow_exceptions=*/false);
    if (!events.is_array()) {
      throw DataError(
          join_message("the trace of rank ", &rank - ranks.data(), " is no array of events"),
          "the file was changed or cut while the training ran");
    }
    for (Json event : events) {
      const auto time = event.is_object() ? event.find("ts") : event.end();
      if (time != event.end() && time->is_number()) *time = rank.align(time->get<double>());
      merged += (merged.empty() ? "[\n" : ",\n") + event.dump();
    }
    if (rank.clock_error) {
      merged += (merged.empty() ? "[\n" : ",\n") +
                label_of(*rank.clock_error, &rank - ranks.data()).dump();
    }
  }
  return merged.empty() ? "[]\n" : merged + "\n]\n";
}

}  // namespace trireme::report
