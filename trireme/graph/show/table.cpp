// SPDX-License-Identifier: Apache-2.0
#include <trireme/graph/show/table.h>

#include <trireme/graph/show/aggregate.h>
#include <trireme/graph/show/names.h>
#include <trireme/report/number.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string_view>
#include <utility>

namespace trireme::graph {
namespace {

using detail::letters_in;
using detail::plain_text;
using detail::printable;
using detail::shortened;
using detail::Sums;

constexpr std::size_t kWidth = 120;
constexpr std::size_t kLeastName = 16;  // least width of a name, however wide the numbers are
constexpr std::string_view kGap = "  ";

using Row = std::vector<std::string>;

// Rows of cells, aligned in columns.
class Columns {
 public:
  // @param sides for each column `l` or `r`, the side to which its cells are aligned.
  Columns(std::string_view sides, Row titles) : sides_(sides) { add(std::move(titles)); }

  void add(Row row) {
    widths_.resize(row.size(), 0);
    for (std::size_t i = 0; i < row.size(); ++i)
      widths_[i] = std::max(widths_[i], letters_in(row[i]));
    rows_.push_back(std::move(row));
  }

  // Shortens the columns of names, which are left-aligned, until a row fits; the widest one first.
  void fit() {
    std::size_t whole = kGap.size() * (widths_.size() - 1);
    for (const std::size_t width : widths_) whole += width;
    for (; whole > kWidth; --whole) {
      std::size_t* widest = nullptr;
      for (std::size_t i = 0; i < widths_.size(); ++i) {
        if (sides_[i] != 'l' || widths_[i] <= kLeastName) continue;
        if (widest == nullptr || widths_[i] > *widest) widest = &widths_[i];
      }
      if (widest == nullptr) return;
      --*widest;
    }
  }

  std::string line(std::size_t index) const {
    std::string line;
    for (std::size_t i = 0; i < widths_.size(); ++i) {
      const std::string cell = shortened(rows_[index][i], widths_[i]);
      const std::string blank(widths_[i] - letters_in(cell), ' ');
      if (i > 0) line += kGap;
      line += sides_[i] == 'l' ? cell + blank : blank + cell;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    return line + "\n";
  }

 private:
  std::string sides_;
  std::vector<Row> rows_;
  std::vector<std::size_t> widths_;
};

Row cells(const Sums& sums) {
  return {report::count_as_text(sums.flops), report::count_as_text(sums.backward_flops),
          report::bytes_as_text(static_cast<double>(sums.bytes)),
          report::bytes_as_text(static_cast<double>(sums.kept_bytes))};
}

Row joined(Row first, const Row& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

Row with_cost_titles(Row first) {
  return joined(std::move(first), {"FLOPs", "in backward", "results", "kept"});
}

std::string name_of(const detail::Group& group) {
  if (group.is_mark) return printable(group.path) + " (mark)";
  return group.path.empty() ? "(outermost)" : printable(group.path);
}

Row row_of(const std::string& name, const Sums& sums, bool has_stages) {
  Row row = {name};
  if (has_stages) row.push_back(detail::stages_of(sums));
  row.push_back(report::with_thousands(sums.operators));
  row.push_back(report::count_as_text(static_cast<double>(sums.parameters)));
  return joined(std::move(row), cells(sums));
}

// Returns the name shortened so that two of them and ` is ` fit in a line.
std::string half_line(const std::string& name) {
  return shortened(printable(name), (kWidth - 4) / 2);
}

// Returns the row of a mark after which its module's own code has no operators.
Row with_name_alone(Row row) {
  std::fill(std::next(row.begin()), row.end(), "");
  return row;
}

// Returns the notes below a table.
std::string notes(const Graph& graph) {
  std::int64_t bytes = 0;
  for (const ValueId id : graph.inputs) bytes += graph.value(id).bytes();
  std::string text =
      plain_text("inputs take ", report::bytes_as_text(static_cast<double>(bytes)), ", of which ",
                 report::bytes_as_text(static_cast<double>(detail::kept_bytes_of_inputs(graph))),
                 " are kept\n");
  for (const ValueId id : graph.parameters) {
    const std::vector<std::string>& names = graph.value(id).names;
    for (std::size_t i = 1; i < names.size(); ++i) {
      text += half_line(names[i]) + " is " + half_line(names[0]) + "\n";
    }
  }
  return text;
}

// Returns texts separated by commas, on lines that are not too long; `begin` is before the first
// one.
std::string wrapped(const std::vector<std::string>& texts, std::string_view begin) {
  std::string all(begin);
  std::size_t width = begin.size();
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const std::string text =
        shortened(texts[i], kWidth - begin.size() - 1) + (i + 1 < texts.size() ? "," : "");
    if (i > 0 && width + 1 + letters_in(text) > kWidth) {
      all += '\n';
      all.append(begin.size(), ' ');
      width = begin.size();
    } else if (i > 0) {
      all += ' ';
      ++width;
    }
    all += text;
    width += letters_in(text);
  }
  return all + "\n";
}

std::string named(const Graph& graph, ValueId id) {
  const std::string name = printable(detail::short_name(graph, id));
  return id == kNoValue ? name : plain_text(name, " ", detail::shape_of(graph.value(id)));
}

// Returns what an operator reads, returns and writes to.
std::string inputs_and_outputs(const Graph& graph, int index) {
  const Node& node = graph.node(index);
  std::vector<std::string> texts;
  for (const ValueId id : graph.inputs_of(index)) texts.push_back(named(graph, id));
  std::string text = texts.empty() ? "" : wrapped(texts, "           ");
  texts.clear();
  for (const ValueId id : node.outputs) texts.push_back(named(graph, id));
  for (const Write& write : node.writes) {
    texts.push_back(plain_text(printable(detail::short_name(graph, write.before)),
                               " written to as ",
                               printable(detail::short_name(graph, write.after))));
  }
  if (!texts.empty()) text += wrapped(texts, "        -> ");
  return text;
}

}  // namespace

std::string module_table(const Graph& graph, const TableOptions& options) {
  const bool has_stages = !options.boundaries.empty();
  const Row titles = has_stages ? Row{"module", "stage", "operators", "parameters"}
                                : Row{"module", "operators", "parameters"};
  Columns columns(has_stages ? "lrrrrrrr" : "lrrrrrr", with_cost_titles(titles));
  Sums total;
  const auto groups = detail::fold(graph, options.depth, options.boundaries);
  for (const detail::Group& group : groups) {
    const bool is_empty = group.is_mark && group.sums.operators == 0;
    const Row row = row_of(name_of(group), group.sums, has_stages);
    columns.add(is_empty ? with_name_alone(row) : row);
    total += group.sums;
  }
  columns.add(row_of("total", total, has_stages));
  columns.fit();
  std::string text;
  for (std::size_t i = 0; i < groups.size() + 2; ++i) text += columns.line(i);
  return text + notes(graph);
}

std::string operator_table(const Graph& graph, const std::vector<int>& boundaries) {
  if (!boundaries.empty()) detail::check_boundaries(graph, boundaries);
  Columns columns("rllrrrr", with_cost_titles({"", "operator", "module"}));
  Sums total;
  int number = 0;
  for (const Sums& sums : detail::sums_of_operators(graph, boundaries)) {
    const Node& node = graph.node(number);
    columns.add(joined({std::to_string(number++), printable(node.name()), printable(node.module)},
                       cells(sums)));
    total += sums;
  }
  columns.add(joined({"", "total", ""}, cells(total)));
  columns.fit();
  std::string text = columns.line(0);
  auto mark = graph.marks.begin();
  const auto add_marks_before = [&](int index) {
    for (; mark != graph.marks.end() && mark->node <= index; ++mark) {
      text += plain_text("-- mark ", shortened(printable(mark->name), kWidth - 8), "\n");
    }
  };
  for (int index = 0; index < graph.num_nodes(); ++index) {
    add_marks_before(index);
    const auto boundary = std::ranges::find(boundaries, index);
    if (boundary != boundaries.end()) {
      text += plain_text("-- stage ", boundary - boundaries.begin(), "\n");
    }
    text += columns.line(static_cast<std::size_t>(index) + 1) + inputs_and_outputs(graph, index);
  }
  add_marks_before(graph.num_nodes());
  return text + columns.line(graph.nodes.size() + 1) + notes(graph);
}

}  // namespace trireme::graph
