// SPDX-License-Identifier: Apache-2.0
#include <trireme/schedule/schedule_text.h>

#include <trireme/base/atomic_file.h>
#include <trireme/base/error.h>
#include <trireme/base/input_file.h>
#include <trireme/base/text.h>

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

namespace trireme::schedule {
namespace {

constexpr std::string_view kFirstLine = "trireme-schedule 1";
constexpr std::size_t kWidth = 100;
constexpr std::string_view kIndent = "  ";

// The words of one line with their columns.
struct Word {
  std::string_view text;
  std::size_t column = 1;
};

struct Line {
  std::size_t number = 0;
  bool is_indented = false;
  std::vector<Word> words{};
};

Line line_of(std::string_view text, std::size_t number) {
  constexpr std::string_view kBlank = " \t\r";
  text = text.substr(0, text.find('#'));
  Line line{.number = number, .is_indented = text.starts_with(' ') || text.starts_with('\t')};
  std::size_t begin = text.find_first_not_of(kBlank);
  while (begin != std::string_view::npos) {
    const std::size_t end = std::min(text.find_first_of(kBlank, begin), text.size());
    line.words.push_back({text.substr(begin, end - begin), begin + 1});
    begin = text.find_first_not_of(kBlank, end);
  }
  return line;
}

class Parser {
 public:
  explicit Parser(std::string_view source) : source_(source) {}

  Schedule parse(std::string_view text) {
    std::size_t number = 0;
    while (!text.empty()) {
      const std::size_t end = std::min(text.find('\n'), text.size());
      const Line line = line_of(text.substr(0, end), ++number);
      text.remove_prefix(std::min(end + 1, text.size()));
      if (!line.words.empty()) read(line);
    }
    // Keys may come in any order, but all of these must be present.
    for (const char* key : {"trireme-schedule", "name", "micro-batches", "stages", "rank"}) {
      if (keys_.contains(key)) continue;
      fail(std::max<std::size_t>(number, 1), 1, join_message("the text ends without '", key, "'"),
           "docs/formats/schedule.md shows what a schedule has");
    }
    if (!keys_.contains("edges")) schedule_.edges = chain(schedule_.num_stages());
    return std::move(schedule_);
  }

 private:
  [[noreturn]] void fail(std::size_t line, std::size_t column, const std::string& what,
                         std::string_view hint) const {
    throw DataError(join_message(source_, ":", line, ":", column, ": ", what), hint);
  }

  [[noreturn]] void fail(const Line& line, const Word& word, const std::string& expected) const {
    fail(line.number, word.column, join_message("found '", word.text, "', expected ", expected),
         "docs/formats/schedule.md lists what a line may hold");
  }

  int number_of(const Line& line, const Word& word, const std::string& expected) const {
    const auto number = whole_number(word.text);
    if (!number) fail(line, word, expected);
    return *number;
  }

  static std::optional<int> whole_number(std::string_view text) {
    return text.starts_with('-') ? std::nullopt : parse_number<int>(text);
  }

  void read(const Line& line) {
    const Word& key = line.words.front();
    if (keys_.empty() && key.text != "trireme-schedule") {
      fail(line, key, join_message("the first line to be '", kFirstLine, "'"));
    }
    if (line.is_indented) {
      if (schedule_.ranks.empty()) fail(line, key, "a key at the beginning of the line");
      return add_actions(line, 0);
    }
    if (key.text == "rank") return read_rank(line);
    if (!schedule_.ranks.empty()) fail(line, key, "'rank', since keys come before the ranks");
    if (!keys_.emplace(key.text).second) {
      fail(line.number, key.column, join_message("'", key.text, "' is there twice"),
           "take one of the lines out");
    }
    if (key.text == "trireme-schedule") {
      if (value_of(line).text != "1") fail(line, value_of(line), "format 1");
    } else if (key.text == "name") {
      schedule_.name = value_of(line).text;
    } else if (key.text == "micro-batches") {
      schedule_.micro_batches = number_of(line, value_of(line), "a number of micro-batches");
    } else if (key.text == "stages") {
      for (std::size_t i = 1; i < line.words.size(); ++i) {
        schedule_.rank_of_stage.push_back(number_of(line, line.words[i], "the rank of a stage"));
      }
    } else if (key.text == "edges") {
      for (std::size_t i = 1; i < line.words.size(); ++i) read_edge(line, line.words[i]);
    } else {
      fail(line, key, "name, micro-batches, stages, edges or rank");
    }
  }

  // Returns the only word after the key.
  const Word& value_of(const Line& line) const {
    if (line.words.size() == 1) {
      const Word& key = line.words.front();
      fail(line.number, key.column + key.text.size(),
           join_message("the value of '", key.text, "' is missing"),
           "docs/formats/schedule.md lists what a line may hold");
    }
    if (line.words.size() > 2) fail(line, line.words[2], "the end of the line");
    return line.words[1];
  }

  void read_edge(const Line& line, const Word& word) {
    const std::size_t arrow = word.text.find('>');
    const auto from = whole_number(word.text.substr(0, arrow));
    const auto to =
        arrow == std::string_view::npos ? std::nullopt : whole_number(word.text.substr(arrow + 1));
    if (!from || !to) fail(line, word, "two stages such as 0>1");
    schedule_.edges.push_back({*from, *to});
  }

  void read_rank(const Line& line) {
    keys_.emplace("rank");
    const std::string expected = join_message(schedule_.ranks.size(), ":");
    if (line.words.size() < 2 || line.words[1].text != expected) {
      const Word& word = line.words.size() < 2 ? line.words[0] : line.words[1];
      fail(line, word, join_message("'rank ", expected, "', as ranks come in their order"));
    }
    schedule_.ranks.emplace_back();
    add_actions(line, 2);
  }

  void add_actions(const Line& line, std::size_t first) {
    for (std::size_t i = first; i < line.words.size(); ++i) {
      const auto action = parse_action(line.words[i].text);
      if (!action) {
        fail(line, line.words[i],
             "an action such as F0.3, B0.3, I0.3, W0.3, S0.3>1, R1.3<0, gather0, free0, reduce0, "
             "recompute0.3, offload0.3, load0.3 or step0");
      }
      schedule_.ranks.back().push_back(*action);
    }
  }

  std::string source_;
  Schedule schedule_;
  std::set<std::string, std::less<>> keys_;
};

// Appends words, and breaks lines that would become too long.
void add_wrapped(std::string& text, const std::vector<std::string>& words) {
  std::size_t begin = text.rfind('\n') + 1;
  for (const std::string& word : words) {
    if (text.size() - begin + 1 + word.size() > kWidth) {
      text += "\n" + std::string(kIndent.substr(1));
      begin = text.rfind('\n') + 1;
    }
    text += ' ' + word;
  }
  text += '\n';
}

}  // namespace

std::string to_text(const Schedule& schedule) {
  if (schedule.name.empty() || schedule.name.find_first_of(" \t\r\n#") != std::string::npos) {
    throw UsageError(join_message("a schedule is called '", schedule.name, "'"),
                     "as text its name has to be one word without #");
  }
  TextWriter head;
  head << kFirstLine << "\nname " << schedule.name << "\nmicro-batches " << schedule.micro_batches
       << "\nstages";
  for (const int rank : schedule.rank_of_stage) head << ' ' << rank;
  if (schedule.edges != chain(schedule.num_stages())) {
    head << "\nedges";
    for (const Edge& edge : schedule.edges) head << ' ' << edge.from << '>' << edge.to;
  }
  std::string text = head.str() + "\n";
  for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
    text += join_message("rank ", rank, ":");
    std::vector<std::string> words;
    for (const Action& action : item(schedule.ranks, rank)) words.push_back(to_text(action));
    add_wrapped(text, words);
  }
  return text;
}

Schedule parse_schedule(std::string_view text, std::string_view source) {
  return Parser(source).parse(text);
}

Schedule read_schedule(const std::filesystem::path& file) {
  const auto text = read_any_file(file);
  if (!text) {
    throw DataError(join_message(file.string(), " cannot be read"),
                    "name a file that `trireme schedule --output` or write_schedule made");
  }
  return parse_schedule(*text, file.string());
}

void write_schedule(const Schedule& schedule, const std::filesystem::path& file) {
  write_file_or_throw<DataError>(file, to_text(schedule));
}

}  // namespace trireme::schedule
