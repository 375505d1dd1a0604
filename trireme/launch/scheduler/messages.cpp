// SPDX-License-Identifier: Apache-2.0
#include <trireme/launch/scheduler/messages.h>

#include <trireme/base/error.h>
#include <trireme/base/json_depth.h>
#include <trireme/base/text.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <limits>
#include <utility>

namespace trireme::launch {
namespace {

using Json = nlohmann::json;

// The limits of texts in bytes when they are written. A byte that is no UTF-8 is replaced by three.
constexpr std::size_t kLongestName = 256;
constexpr std::size_t kLongestPath = 4096;
constexpr std::size_t kLongestText = 16 << 10;
constexpr int kMostInWorld = 1 << 20;
// The largest integer that every reader of JSON has.
constexpr std::int64_t kLargest = std::int64_t{1} << 53;

[[noreturn]] void refuse_message(const std::string& what) {
  throw CommError(join_message("a message ", what),
                  "the other side has another version of Trireme, or is no part of the run");
}

// Returns the beginning of a text of one line.
std::string one_line(std::string_view text, std::size_t most) {
  return printable(text.substr(0, most));
}

// Returns a text of several lines without characters that control a terminal.
std::string printable_lines(std::string_view text) {
  TextReader reader{std::string(text)};
  std::string all;
  for (std::string line; std::getline(reader, line);) {
    if (!all.empty()) all += '\n';
    all += printable(line);
  }
  return all;
}

// Returns the beginning of a text of several lines.
std::string many_lines(std::string_view text, std::size_t most) {
  return printable_lines(text.substr(0, most));
}

// The fields of a message that was received.
class Fields {
 public:
  Fields(const Json& json, std::string type) : json_(json), type_(std::move(type)) {}

  std::string text(const char* name, std::size_t most = kLongestName) const {
    return printable(raw_text(name, most));
  }

  std::string lines(const char* name, std::size_t most) const {
    return printable_lines(raw_text(name, most));
  }

  std::int64_t integer(const char* name, std::int64_t minimum, std::int64_t maximum) const {
    const auto found = json_.find(name);
    if (found == json_.end() || !found->is_number_integer()) missing(name, "an integer");
    // Numbers above the signed range are a type of their own.
    const bool is_huge = found->is_number_unsigned() &&
                         found->get<std::uint64_t>() >
                             static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
    const std::int64_t value =
        is_huge ? std::numeric_limits<std::int64_t>::max() : found->get<std::int64_t>();
    if (value < minimum || value > maximum || is_huge) {
      refuse_message(join_message("'", type_, "' has ", found->dump(), " in '", name,
                                  "', expected ", minimum, " to ", maximum));
    }
    return value;
  }

  int number(const char* name, int minimum, int maximum) const {
    return static_cast<int>(integer(name, minimum, maximum));
  }

  bool flag(const char* name) const {
    const auto found = json_.find(name);
    if (found == json_.end() || !found->is_boolean()) missing(name, "true or false");
    return found->get<bool>();
  }

  // Returns the elements of a list of lists of numbers, each of the given length.
  std::vector<std::vector<std::int64_t>> rows(const char* name, std::size_t most,
                                              std::size_t length) const {
    const auto found = json_.find(name);
    if (found == json_.end() || !found->is_array() || found->size() > most)
      missing(name, "a list of limited length");
    std::vector<std::vector<std::int64_t>> all;
    for (const Json& row : *found) {
      if (!row.is_array() || row.size() != length) missing(name, "lists of numbers");
      std::vector<std::int64_t>& numbers = all.emplace_back();
      for (const Json& one : row) {
        const bool is_number = one.is_number_unsigned() &&
                               one.get<std::uint64_t>() <= static_cast<std::uint64_t>(kLargest);
        if (!is_number) missing(name, "numbers from 0 to 9007199254740992");
        numbers.push_back(one.get<std::int64_t>());
      }
    }
    return all;
  }

  bool has(const char* name) const { return json_.contains(name); }

 private:
  const std::string& raw_text(const char* name, std::size_t most) const {
    const auto found = json_.find(name);
    if (found == json_.end() || !found->is_string()) missing(name, "a text");
    const auto& value = found->get_ref<const std::string&>();
    if (value.size() <= 3 * most) return value;
    refuse_message(join_message("'", type_, "' has ", value.size(), " bytes in '", name,
                                "', expected ", 3 * most, " at most"));
  }

  [[noreturn]] void missing(const char* name, const char* expected) const {
    refuse_message(join_message("'", type_, "' has no '", name, "', expected ", expected));
  }

  const Json& json_;
  std::string type_;
};

constexpr int kMostInt = std::numeric_limits<int>::max();
constexpr std::int64_t kMostInteger = std::numeric_limits<std::int64_t>::max();

Json json_of(const Challenge& message) {
  return {{"type", "challenge"},
          {"protocol", message.protocol},
          {"version", message.version},
          {"nonce", message.nonce},
          {"secret", message.needs_secret}};
}

Json json_of(const Hello& message) {
  Json json = {{"type", "hello"},
               {"protocol", message.protocol},
               {"version", message.version},
               {"nonce", message.nonce},
               {"host", one_line(message.host, kLongestName)},
               {"machine", one_line(message.machine, kLongestName)},
               {"process", message.process},
               {"node_id", one_line(message.node_id, kLongestName)},
               {"ranks", message.ranks},
               {"run", message.run},
               {"program", one_line(message.program.path, kLongestPath)},
               {"program_bytes", message.program.bytes},
               {"program_checksum", message.program.checksum}};
  if (message.workers) json["workers"] = *message.workers;
  return json;
}

Json json_of(const Accepted& message) {
  return {{"type", "accepted"}, {"wait_ms", message.wait_ms}, {"returns", message.returns}};
}

Json json_of(const Assignment& message) {
  Json json = {{"type", "assigned"},
               {"rank", message.first_rank},
               {"world_size", message.world_size},
               {"local_rank", message.first_local_rank},
               {"local_world_size", message.local_world_size},
               {"node_rank", message.node_rank},
               {"nodes", message.nodes},
               {"store_port", message.store_port},
               {"run_id", message.run_id},
               {"restart", message.restart},
               {"restarts", message.restarts},
               {"returns", message.returns}};
  if (!message.secret.empty()) json["secret"] = message.secret;
  return json;
}

Json json_of(const Refused& message) {
  return {{"type", "refused"},
          {"reason", many_lines(message.reason, kLongestText)},
          {"hint", many_lines(message.hint, kLongestPath)}};
}

Json json_of(const RankEnded& message) {
  Json json = {{"type", "ended"},
               {"rank", message.rank},
               {"process", message.process},
               {"code", message.code},
               {"how", many_lines(message.how, kLongestPath)},
               {"log", one_line(message.log, kLongestPath)}};
  const FailureReport& report = message.report;
  if (report.faulty_rank) json["faulty_rank"] = *report.faulty_rank;
  if (report.is_of_unknown_rank) json["unknown_rank"] = true;
  if (report.is_final) json["final"] = true;
  return json;
}

Json json_of(const Progress& message) {
  Json ranks = Json::array();
  const auto most = [](std::int64_t value) { return std::clamp<std::int64_t>(value, 0, kLargest); };
  for (const RankProgress& one : message.ranks) {
    ranks.push_back({one.rank, most(one.process), most(one.step), most(one.of_steps),
                     most(one.epoch), most(one.reports), most(one.samples), most(one.tokens),
                     most(one.own_microseconds), most(one.age_ms), most(one.memory_bytes)});
  }
  return {{"type", "progress"}, {"ranks", std::move(ranks)}};
}

Json json_of(const EndRequest& message) {
  return {{"type", "end"},
          {"reason", many_lines(message.reason, kLongestText)},
          {"code", message.code},
          {"grace_ms", message.grace_ms},
          {"restarts", message.restarts}};
}

Challenge challenge_of(const Fields& fields) {
  return {.protocol = fields.number("protocol", 0, kMostInt),
          .version = fields.text("version"),
          .nonce = fields.text("nonce"),
          .needs_secret = fields.flag("secret")};
}

Hello hello_of(const Fields& fields) {
  Hello message{.protocol = fields.number("protocol", 0, kMostInt),
                .version = fields.text("version"),
                .nonce = fields.text("nonce"),
                .host = fields.text("host"),
                .machine = fields.text("machine"),
                .process = fields.number("process", 1, kMostInt),
                .node_id = fields.text("node_id"),
                .ranks = fields.number("ranks", 1, kMostRanksOfWorker),
                .workers = std::nullopt,
                .run = fields.text("run"),
                .program = {.path = fields.text("program", kLongestPath),
                            .bytes = fields.integer("program_bytes", 0, kMostInteger),
                            .checksum = fields.text("program_checksum")}};
  if (fields.has("workers")) message.workers = fields.number("workers", 1, kMostInWorld);
  return message;
}

Assignment assignment_of(const Fields& fields) {
  const int world_size = fields.number("world_size", 1, kMostInWorld);
  const int local_world_size = fields.number("local_world_size", 1, world_size);
  const int nodes = fields.number("nodes", 1, world_size);
  return {.first_rank = fields.number("rank", 0, world_size - 1),
          .world_size = world_size,
          .first_local_rank = fields.number("local_rank", 0, local_world_size - 1),
          .local_world_size = local_world_size,
          .node_rank = fields.number("node_rank", 0, nodes - 1),
          .nodes = nodes,
          .store_port = fields.number("store_port", 1, 65535),
          .run_id = fields.text("run_id"),
          .secret = fields.has("secret") ? fields.text("secret") : "",
          .restart = fields.number("restart", 0, kMostInt),
          .restarts = fields.number("restarts", 0, kMostInt),
          .returns = fields.flag("returns")};
}

RankEnded rank_ended_of(const Fields& fields) {
  RankEnded message{
      .rank = fields.number("rank", 0, kMostInWorld - 1),
      .process = fields.number("process", 0, kMostInt),
      .code = fields.number("code", 0, 255),
      .how = fields.lines("how", kLongestPath),
      .log = fields.text("log", kLongestPath),
      .report = {.faulty_rank = std::nullopt,
                 .is_of_unknown_rank = fields.has("unknown_rank") && fields.flag("unknown_rank"),
                 .is_final = fields.has("final") && fields.flag("final")}};
  if (fields.has("faulty_rank"))
    message.report.faulty_rank = fields.number("faulty_rank", 0, kMostInWorld - 1);
  return message;
}

Progress progress_of(const Fields& fields) {
  constexpr std::size_t kNumbers = 11;
  Progress message;
  for (const auto& row : fields.rows("ranks", kMostRanksOfProgress, kNumbers)) {
    if (row[0] >= kMostInWorld) refuse_message("'progress' has a rank that is too large");
    message.ranks.push_back({.rank = static_cast<int>(row[0]),
                             .process = row[1],
                             .step = row[2],
                             .of_steps = row[3],
                             .epoch = row[4],
                             .reports = row[5],
                             .samples = row[6],
                             .tokens = row[7],
                             .own_microseconds = row[8],
                             .age_ms = row[9],
                             .memory_bytes = row[10]});
  }
  return message;
}

EndRequest end_request_of(const Fields& fields) {
  return {.reason = fields.lines("reason", kLongestText),
          .code = fields.number("code", 1, 255),
          .grace_ms = fields.integer("grace_ms", 0, kMostInt),
          .restarts = fields.flag("restarts")};
}

}  // namespace

std::string encode(const Message& message) {
  const Json json = std::visit([](const auto& one) { return json_of(one); }, message);
  return json.dump(/*indent=*/-1, /*indent_char=*/' ', /*ensure_ascii=*/false,
                   Json::error_handler_t::replace);
}

Message decode(std::string_view json) {
  constexpr std::size_t kDeepest = 4;
  if (json_depth(json) > kDeepest) refuse_message("is nested too deeply");
  const Json parsed = Json::parse(json, /*cb=*/nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_object()) refuse_message("is no JSON object");
  const std::string type = Fields(parsed, "").text("type");
  const Fields fields(parsed, type);
  if (type == "challenge") return challenge_of(fields);
  if (type == "hello") return hello_of(fields);
  if (type == "accepted") {
    return Accepted{.wait_ms = fields.integer("wait_ms", 0, kMostInt),
                    .returns = fields.flag("returns")};
  }
  if (type == "progress") return progress_of(fields);
  if (type == "assigned") return assignment_of(fields);
  if (type == "refused") {
    return Refused{.reason = fields.lines("reason", kLongestText),
                   .hint = fields.lines("hint", kLongestPath)};
  }
  if (type == "ended") return rank_ended_of(fields);
  if (type == "end") return end_request_of(fields);
  refuse_message(join_message("has the unknown type '", type, "'"));
}

}  // namespace trireme::launch
