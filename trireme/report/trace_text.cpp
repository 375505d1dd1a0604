// SPDX-License-Identifier: Apache-2.0
#include <trireme/report/trace_text.h>

#include <nlohmann/json.hpp>

namespace trireme::report {
namespace {

using Json = nlohmann::ordered_json;

// Names may contain bytes of a user's module that are not UTF-8.
void append(std::string& text, const Json& event) {
  text += text.empty() ? "[\n" : ",\n";
  text += event.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Json name_of(const char* kind, std::int64_t rank, int row, std::string_view name) {
  return {{"name", kind}, {"ph", "M"}, {"pid", rank}, {"tid", row}, {"args", {{"name", name}}}};
}

Json json_of(const TraceArguments& arguments) {
  Json json = Json::object();
  for (const auto& argument : arguments) {
    std::visit([&](const auto& value) { json[argument.first] = value; }, argument.second);
  }
  return json;
}

}  // namespace

void TraceText::add_rank(std::int64_t rank) {
  append(text_, name_of("process_name", rank, 0, "rank " + std::to_string(rank)));
  name_row(rank, 0, "steps");
  name_row(rank, 1, "phases");
}

void TraceText::name_row(std::int64_t rank, int row, std::string_view name) {
  append(text_, name_of("thread_name", rank, row, name));
}

void TraceText::label_rank(std::int64_t rank, std::string_view label) {
  append(text_, {{"name", "process_labels"},
                 {"ph", "M"},
                 {"pid", rank},
                 {"tid", 0},
                 {"args", {{"labels", label}}}});
}

void TraceText::add(const TraceSpan& span) {
  append(text_, {{"name", span.name},
                 {"ph", "X"},
                 {"ts", span.begin},
                 {"dur", span.end - span.begin},
                 {"pid", span.rank},
                 {"tid", span.row},
                 {"args", json_of(span.arguments)}});
}

void TraceText::add_overlapping(std::string_view kind, const TraceSpan& span) {
  const std::int64_t id = next_id_++;
  append(text_, {{"name", span.name},
                 {"cat", kind},
                 {"ph", "b"},
                 {"id", id},
                 {"ts", span.begin},
                 {"pid", span.rank},
                 {"tid", span.row},
                 {"args", json_of(span.arguments)}});
  append(text_, {{"name", span.name},
                 {"cat", kind},
                 {"ph", "e"},
                 {"id", id},
                 {"ts", span.end},
                 {"pid", span.rank},
                 {"tid", span.row}});
}

void TraceText::add_values(std::int64_t rank, std::string_view graph, double time,
                           const std::vector<std::pair<std::string, double>>& values) {
  Json arguments = Json::object();
  for (const auto& [name, value] : values) arguments[name] = value;
  append(text_, {{"name", graph},
                 {"ph", "C"},
                 {"ts", time},
                 {"pid", rank},
                 {"tid", 0},
                 {"args", std::move(arguments)}});
}

std::string TraceText::closed() const { return text_.empty() ? "[]\n" : text_ + "\n]\n"; }

}  // namespace trireme::report
