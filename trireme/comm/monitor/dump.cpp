// SPDX-License-Identifier: Apache-2.0
#include <trireme/comm/monitor/dump.h>

#include <trireme/base/atomic_file.h>
#include <trireme/base/error.h>
#include <trireme/base/format_ranks.h>
#include <trireme/base/input_file.h>
#include <trireme/base/text.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <limits>
#include <map>
#include <mutex>
#include <set>
#include <stdexcept>

namespace trireme::comm {
namespace {

using nlohmann::json;

constexpr std::string_view kPrefix = "trireme-dump-";

std::string file_name(const Dump& dump) {
  std::string group = dump.group;
  std::replace_if(
      group.begin(), group.end(), [](char letter) { return !is_ascii_alphanumeric(letter); }, '-');
  return join_message(kPrefix, group, "-rank", dump.rank, ".json");
}

json to_json(const Dump& dump) {
  json operations = json::array();
  for (const OperationRecord& record : dump.operations) {
    operations.push_back({{"number", record.number},
                          {"collective", record.is_collective},
                          {"what", record.what},
                          {"label", record.label},
                          {"started_ns", record.started.count()},
                          {"finished_ns", record.finished.count()}});
  }
  return {{"group", dump.group},
          {"rank", dump.rank},
          {"size", dump.size},
          {"error", dump.error},
          {"operations", std::move(operations)}};
}

// Checks numbers of a file against their range before anything is allocated or converted by them.
std::int64_t integer_at(const json& object, const char* name, std::int64_t smallest,
                        std::int64_t largest) {
  const json& found = object.at(name);
  if (found.is_number_unsigned()) {
    const auto number = found.get<std::uint64_t>();
    if (number <= static_cast<std::uint64_t>(largest) &&
        static_cast<std::int64_t>(number) >= smallest) {
      return static_cast<std::int64_t>(number);
    }
  }
  // Structured values are not printed: printing nested lists is recursive, and may overflow the
  // stack.
  const std::string what = found.is_structured() ? found.type_name() : found.dump();
  throw std::out_of_range(join_message("'", name, "' is ", what, ", expected an integer from ",
                                       smallest, " to ", largest));
}

Dump from_json(const json& text) {
  constexpr std::int64_t kMostRanks = 1 << 20;
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  const std::int64_t size = integer_at(text, "size", 1, kMostRanks);
  Dump dump = {.group = text.at("group"),
               .rank = static_cast<int>(integer_at(text, "rank", 0, size - 1)),
               .size = static_cast<int>(size),
               .error = text.at("error"),
               .operations = {}};
  for (const json& operation : text.at("operations")) {
    dump.operations.push_back(
        {.number = static_cast<std::uint64_t>(integer_at(operation, "number", 0, kMost)),
         .is_collective = operation.at("collective"),
         .what = operation.at("what"),
         .label = operation.at("label"),
         .started = std::chrono::nanoseconds(integer_at(operation, "started_ns", 0, kMost)),
         .finished = std::chrono::nanoseconds(integer_at(operation, "finished_ns", 0, kMost))});
  }
  return dump;
}

const OperationRecord* find_collective(const Dump& dump, std::uint64_t number) {
  const auto found = std::find_if(
      dump.operations.begin(), dump.operations.end(),
      [&](const auto& record) { return record.is_collective && record.number == number; });
  return found == dump.operations.end() ? nullptr : &*found;
}

const OperationRecord* last_collective(const Dump& dump) {
  const auto found = std::find_if(dump.operations.rbegin(), dump.operations.rend(),
                                  [](const auto& record) { return record.is_collective; });
  return found == dump.operations.rend() ? nullptr : &*found;
}

std::string lines_of(const std::vector<Dump>& ranks, std::uint64_t number) {
  std::string lines;
  for (const Dump& dump : ranks) {
    const OperationRecord* record = find_collective(dump, number);
    lines += join_message("    rank ", dump.rank, ": ",
                          record != nullptr ? describe(*record) : std::string("did not come to it"),
                          record != nullptr && record->finished.count() == 0 ? ", unfinished" : "",
                          '\n');
  }
  return lines;
}

std::string compare_group(const std::vector<Dump>& ranks) {
  TextWriter text;
  const int size = ranks.front().size;
  text << "group '" << ranks.front().group << "' of " << size << " ranks\n";
  std::set<int> present;
  for (const Dump& dump : ranks) present.insert(dump.rank);
  std::vector<int> missing;
  for (int rank = 0; rank < size; ++rank) {
    if (!present.contains(rank)) missing.push_back(rank);
  }
  if (!missing.empty()) {
    text << "  no dump of " << format_ranks(missing)
         << ": it was killed, or never saw the failure\n";
  }
  std::uint64_t first = 1;          // from here on every rank's records reach
  std::set<std::uint64_t> numbers;  // that any rank has: there may be gaps of any size
  for (const Dump& dump : ranks) {
    const OperationRecord* newest = last_collective(dump);
    text << "  rank " << dump.rank << ": ";
    if (newest == nullptr) {
      text << "no collective";
    } else {
      text << (newest->finished.count() == 0 ? "is in " : "finished ") << describe(*newest);
    }
    for (const OperationRecord& record : dump.operations) {
      if (record.is_collective) numbers.insert(record.number);
    }
    text << '\n';
    const auto oldest = std::find_if(dump.operations.begin(), dump.operations.end(),
                                     [](const auto& record) { return record.is_collective; });
    if (oldest != dump.operations.end()) first = std::max(first, oldest->number);
  }
  for (auto place = numbers.lower_bound(first); place != numbers.end(); ++place) {
    const std::uint64_t number = *place;
    const OperationRecord* reference = find_collective(ranks.front(), number);
    const bool same = std::all_of(ranks.begin(), ranks.end(), [&](const Dump& dump) {
      const OperationRecord* record = find_collective(dump, number);
      return record != nullptr && reference != nullptr && record->what == reference->what;
    });
    if (same) continue;
    text << "  the ranks part at number " << number << ":\n" << lines_of(ranks, number);
    return text.str();
  }
  text << "  all ranks made the same calls, as far as the records reach back\n";
  return text.str();
}

}  // namespace

std::string describe(const OperationRecord& record) {
  return join_message(record.what, ", number ", record.number, record.label.empty() ? "" : " ('",
                      record.label, record.label.empty() ? "" : "')");
}

std::filesystem::path write_dump(const std::filesystem::path& folder, const Dump& dump) noexcept {
  // A signal and a failure may come together. The second writer must wait, because it may end the
  // process.
  static std::mutex writing;
  const std::lock_guard lock(writing);
  try {
    std::filesystem::create_directories(folder);
    const std::filesystem::path path = folder / file_name(dump);
    // A label that was truncated may end within a UTF-8 character.
    write_file(
        path,
        to_json(dump).dump(1, ' ', /*ensure_ascii=*/false, json::error_handler_t::replace) + "\n");
    return path;
  } catch (const std::exception&) {
    return {};
  }
}

std::vector<Dump> read_dumps(const std::filesystem::path& folder) {
  constexpr std::int64_t kMostBytes = std::int64_t{64} << 20;  // ours have a hundredth of it
  std::vector<Dump> dumps;
  std::error_code unreadable;
  for (const auto& entry : std::filesystem::directory_iterator(folder, unreadable)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(kPrefix) || !name.ends_with(".json")) continue;
    try {
      InputFile file = open_input(entry.path());
      const auto text = read_text(file, kMostBytes);
      if (!text) throw std::runtime_error("it " + file.problem);
      dumps.push_back(from_json(json::parse(*text)));
    } catch (const std::exception& error) {
      throw ConfigError(
          join_message("dump ", entry.path().string(), " cannot be read: ", error.what()),
          "delete it, or give a folder that only this version of Trireme wrote to");
    }
  }
  if (dumps.empty()) {
    throw ConfigError(join_message("no dump in folder '", folder.string(), "'",
                                   unreadable ? ": " + unreadable.message() : std::string()),
                      "run with TRIREME_DUMP=<folder>; ranks write there when a group fails");
  }
  return dumps;
}

std::string compare_dumps(const std::vector<Dump>& dumps) {
  std::map<std::string, std::vector<Dump>> groups;
  for (const Dump& dump : dumps) groups[dump.group].push_back(dump);
  std::string text;
  for (auto& [name, ranks] : groups) {
    std::sort(ranks.begin(), ranks.end(),
              [](const Dump& a, const Dump& b) { return a.rank < b.rank; });
    text += compare_group(ranks);
  }
  return text;
}

}  // namespace trireme::comm
