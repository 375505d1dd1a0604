// SPDX-License-Identifier: Apache-2.0
// Writes an explanation as text, with repeated layers shown once.
#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/predict/explain.h>
#include <trireme/predict/explain/explain_reasons.h>
#include <trireme/report/number.h>

#include <algorithm>
#include <array>
#include <iomanip>
#include <tuple>
#include <unordered_map>

namespace trireme::predict {
namespace {

using report::bytes_as_text;
using tensor::DryRunTensor;

std::string seconds_as_text(double seconds) {
  TextWriter text;
  text << std::fixed << std::setprecision(1);
  if (seconds < 1e-3) {
    text << seconds * 1e6 << " us";
  } else if (seconds < 1) {
    text << seconds * 1e3 << " ms";
  } else {
    text << seconds << " s";
  }
  return text.str();
}

std::string short_form(const Placement& placement) {
  switch (placement.kind()) {
    case Placement::Kind::kReplicate:
      return "R";
    case Placement::Kind::kShard:
      return placement.level() > 0 ? join_message("S", placement.dim(), ".", placement.level())
                                   : join_message("S", placement.dim());
    case Placement::Kind::kPartial:
      return placement.is_partial(PartialOp::kSum) ? "P"
                                                   : join_message("P", to_string(placement.op()));
    case Placement::Kind::kFlatShard:
      return "F";
  }
  return "";
}

std::string short_form(const Layout& layout) {
  std::string text;
  for (const Placement& placement : layout.placements()) {
    if (!text.empty()) text.push_back('|');
    text.append(short_form(placement));
  }
  return text;
}

std::string short_form(const DryRunTensor& tensor) {
  TextWriter text;
  if (!tensor.name.empty()) text << tensor.name << " ";
  const bool moves = tensor.given != tensor.layout;
  text << (tensor.is_plain && !moves ? "plain" : short_form(tensor.given));
  if (moves) text << " > " << short_form(tensor.layout);
  return text.str();
}

std::string short_form(const std::vector<DryRunTensor>& tensors) {
  constexpr std::size_t kShown = 6;
  std::string text;
  for (std::size_t i = 0; i < std::min(tensors.size(), kShown); ++i) {
    if (i > 0) text.append(", ");
    text.append(short_form(tensors[i]));
  }
  if (tensors.size() > kShown) text += join_message(", and ", tensors.size() - kShown, " more");
  return text;
}

std::string line_of(const ExplainedCommunication& line) {
  TextWriter text;
  text << std::left << std::setw(15) << line.collective << std::setw(8) << line.axis << " "
       << std::right << std::setw(10) << bytes_as_text(line.bytes) << std::setw(10)
       << seconds_as_text(line.seconds) << "  " << line.tensor << (line.tensor.empty() ? "" : ": ")
       << line.asked_by;
  return text.str();
}

// Replaces numbers within names, in which layers differ: `block1.up.weight` becomes the same for
// all.
std::string without_numbers(const std::string& text) {
  std::string same;
  bool is_in_name = false;
  for (const char c : text) {
    const bool is_digit = c >= '0' && c <= '9';
    if (is_digit && is_in_name) {
      if (same.back() != '#') same += '#';
      continue;
    }
    // Placements consist of upper case letters and digits, and are not names.
    is_in_name =
        (c >= 'a' && c <= 'z') || c == '_' || (c == '.' && is_in_name) || (is_digit && is_in_name);
    same += c;
  }
  return same;
}

struct Entry {
  std::vector<std::string> lines;
  std::size_t kind;  // equal for entries that differ in numbers only
};

class Table {
 public:
  void add(const ExplainedOperator& op) {
    TextWriter first;
    first << std::left << std::setw(28) << short_name(op.call.name) << " "
          << short_form(op.call.inputs);
    if (!op.call.outputs.empty()) first << " -> " << short_form(op.call.outputs);
    std::vector<std::string> lines = {first.str()};
    for (const ExplainedCommunication& line : op.communication) {
      lines.push_back("    " + line_of(line));
    }
    add(std::move(lines));
  }

  void add(std::vector<std::string> lines) {
    // Entries that differ only in numbers within names are of one kind, as repeated layers are.
    std::string key;
    for (const std::string& line : lines) key += without_numbers(line) + "\n";
    const std::size_t kind = kinds_.emplace(key, kinds_.size()).first->second;
    entries_.push_back({std::move(lines), kind});
  }

  bool is_empty() const { return entries_.empty(); }

  void write(std::ostream& text) const {
    std::size_t at = 0;
    while (at < entries_.size()) {
      const auto [period, times] = repetition(at);
      if (times > 1) text << "  " << times << " times:\n";
      for (std::size_t i = at; i < at + period; ++i) {
        for (const std::string& line : entries_[i].lines) {
          text << (times > 1 ? "  | " : "  ") << line << "\n";
        }
      }
      at += period * times;
    }
  }

 private:
  std::size_t times_from(std::size_t at, std::size_t period) const {
    std::size_t times = 1;
    while (at + (times + 1) * period <= entries_.size()) {
      for (std::size_t i = 0; i < period; ++i) {
        if (entries_[at + i].kind != entries_[at + times * period + i].kind) return times;
      }
      ++times;
    }
    return times;
  }

  // Returns the period and the number of repetitions that leave out the most lines.
  std::pair<std::size_t, std::size_t> repetition(std::size_t at) const {
    constexpr std::size_t kWorthIt = 3;  // minimum of lines to leave out
    std::pair<std::size_t, std::size_t> best = {1, 1};
    std::size_t saved = kWorthIt - 1;
    for (std::size_t period = 1; at + 2 * period <= entries_.size(); ++period) {
      const std::size_t times = times_from(at, period);
      if (period * (times - 1) > saved) {
        saved = period * (times - 1);
        best = {period, times};
      }
    }
    return best;
  }

  std::vector<Entry> entries_;
  std::unordered_map<std::string, std::size_t> kinds_;
};

struct Sum {
  std::int64_t times = 0;
  double bytes = 0;
  double seconds = 0;
};

// Sums by axis, collective and phase, in the order of their first occurrence.
class Sums {
 public:
  void add(const ExplainedCommunication& line, const char* phase) {
    const auto key = std::tuple(line.axis, line.collective, std::string(phase));
    auto found = std::ranges::find(sums_, key, &std::pair<Key, Sum>::first);
    if (found == sums_.end()) found = sums_.insert(sums_.end(), {key, Sum()});
    found->second.times += 1;
    found->second.bytes += line.bytes;
    found->second.seconds += line.seconds;
  }

  void write(std::ostream& text) const {
    if (sums_.empty()) {
      text << "  nothing\n";
      return;
    }
    for (const auto& [key, sum] : sums_) {
      const auto& [axis, collective, phase] = key;
      text << "  " << std::left << std::setw(8) << axis << std::setw(15) << collective
           << std::setw(10) << phase << std::right << std::setw(6) << sum.times
           << (sum.times == 1 ? " time  " : " times ") << std::setw(10) << bytes_as_text(sum.bytes)
           << std::setw(10) << seconds_as_text(sum.seconds) << "\n";
    }
  }

 private:
  using Key = std::tuple<std::string, std::string, std::string>;
  std::vector<std::pair<Key, Sum>> sums_;
};

std::string line_of(const ExplainedStage& stage, std::size_t number) {
  TextWriter text;
  text << "stage " << number << " on rank " << stage.rank << " along pipe: ";
  const auto module = [](const std::string& path) { return path.empty() ? "the module" : path; };
  text << module(stage.first_module);
  if (stage.last_module != stage.first_module) text << " to " << module(stage.last_module);
  text << ", " << bytes_as_text(stage.bytes) << " of parameters and buffers";
  for (const ExplainedMessage& message : stage.messages) {
    text << "; sends " << bytes_as_text(message.bytes) << " to stage " << message.to
         << " for each micro-batch";
    if (message.seconds > 0) text << ", in " << seconds_as_text(message.seconds);
  }
  return text.str();
}

// Writes what each stage does, with a title for each if there are several.
class ByStage {
 public:
  ByStage(const std::vector<ExplainedStage>& stages, bool is_backward)
      : tables_(stages.size()), is_backward_(is_backward) {}

  Table& table(int stage) { return tables_.at(static_cast<std::size_t>(stage)); }

  bool is_empty() const {
    return std::ranges::all_of(tables_, [](const Table& table) { return table.is_empty(); });
  }

  void write(std::ostream& text) const {
    for (std::size_t i = 0; i < tables_.size(); ++i) {
      const std::size_t stage = is_backward_ ? tables_.size() - 1 - i : i;
      if (tables_[stage].is_empty()) continue;
      if (tables_.size() > 1) text << " stage " << stage << "\n";
      tables_[stage].write(text);
    }
  }

 private:
  std::vector<Table> tables_;
  bool is_backward_;
};

}  // namespace

std::string to_string(const Explanation& explanation) {
  TextWriter text;
  std::array<ByStage, 2> tables = {ByStage(explanation.stages, false),
                                   ByStage(explanation.stages, true)};
  ByStage gradients(explanation.stages, true);
  std::array<double, 2> flops = {};
  Sums sums;
  for (const bool is_backward : {false, true}) {
    for (const ExplainedOperator& op : explanation.operators) {
      if (op.is_backward != is_backward) continue;
      tables.at(is_backward ? 1 : 0).table(op.stage).add(op);
      flops.at(is_backward ? 1 : 0) += op.flops();
      for (const ExplainedCommunication& line : op.communication) {
        sums.add(line, is_backward ? "backward" : "forward");
      }
    }
  }
  for (const ExplainedCommunication& line : explanation.gradients) {
    sums.add(line, "gradients");
    gradients.table(line.stage).add(std::vector<std::string>{line_of(line)});
  }

  text << "mesh " << to_string(explanation.axes) << "; layouts over "
       << explanation.mesh.to_string() << ": R whole, S0 cut along dim 0, P a sum still to be "
       << "made; > is moved to\n";
  const bool has_stages = explanation.stages.size() > 1;
  if (has_stages) {
    text << "\nstages\n";
    for (std::size_t i = 0; i < explanation.stages.size(); ++i) {
      text << "  " << line_of(explanation.stages[i], i) << "\n";
    }
  }
  text << "\nforward\n";
  tables[0].write(text);
  if (!tables[1].is_empty()) {
    text << "\nbackward\n";
    tables[1].write(text);
  }
  if (!gradients.is_empty()) {
    text << "\ngradients of parameters\n";
    gradients.write(text);
  }
  text << "\nwhat one rank" << (has_stages ? " of each stage" : "") << " sends\n";
  sums.write(text);
  text << "\none rank has " << (has_stages ? "at most " : "")
       << bytes_as_text(static_cast<double>(explanation.bytes_of_rank)) << " of "
       << bytes_as_text(static_cast<double>(explanation.bytes))
       << " of parameters and buffers, and "
       << (has_stages ? "a rank of each stage together do" : "does") << " about "
       << report::count_as_text(flops[0]) << " floating-point operations forward";
  if (!tables[1].is_empty()) text << ", " << report::count_as_text(flops[1]) << " backward";
  text << "\n";
  return text.str();
}

}  // namespace trireme::predict
