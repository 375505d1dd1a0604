// SPDX-License-Identifier: Apache-2.0
#include <trireme/data/csv.h>

#include <trireme/base/error.h>
#include <trireme/data/detail/dataset_checks.h>
#include <trireme/data/detail/mapped_file.h>

#include <ATen/ops/empty.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <string_view>
#include <utility>

namespace trireme::data {
namespace {

// Iterates over the lines that are not empty and splits each into fields.
class Lines {
 public:
  Lines(const std::filesystem::path& path, std::string_view text, char separator)
      : path_(path), text_(text), separator_(separator) {
    constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
    if (text_.starts_with(kByteOrderMark)) text_.remove_prefix(kByteOrderMark.size());
  }

  // Reads the next line; returns false at the end of the file.
  bool next() {
    while (!text_.empty()) {
      const std::size_t end = std::min(text_.find('\n'), text_.size());
      std::string_view line = text_.substr(0, end);
      text_.remove_prefix(std::min(end + 1, text_.size()));
      ++number_;
      if (line.ends_with('\r')) line.remove_suffix(1);
      if (trim(line).empty()) continue;
      split(line);
      return true;
    }
    return false;
  }

  // The fields of the current line, without quotes and surrounding spaces. Doubled quotes are not
  // replaced, so that a field stays a view of the file.
  const std::vector<std::string_view>& fields() const { return fields_; }

  // Throws a DataError about a field. `name` may be empty.
  [[noreturn]] void fail(std::size_t field, std::string_view name, std::string_view what,
                         std::string_view remedy) const {
    throw DataError(
        join_message(path_.string(), ": line ", number_, ", field ", field,
                     name.empty() ? "" : " ('", name, name.empty() ? "" : "')", ": ", what),
        remedy);
  }

  [[noreturn]] void fail_count(std::size_t expected) const {
    throw DataError(join_message(path_.string(), ": line ", number_, " has ", fields_.size(),
                                 " fields, but the first line has ", expected),
                    "fix the line, or give the separator of this file");
  }

 private:
  // Fields are views of the mapped file. A quoted field may contain separators, so the end of such
  // a field is searched from its closing quote on.
  void split(std::string_view line) {
    fields_.clear();
    for (;;) {
      const std::string_view rest = trim(line);
      std::size_t end = 0;  // The position of the separator in `line`.
      if (rest.starts_with('"')) {
        const auto begin = static_cast<std::size_t>(rest.data() - line.data()) + 1;
        end = closing_quote(line, begin);
        fields_.push_back(trim(line.substr(begin, end - begin)));
        const std::size_t separator = std::min(line.find(separator_, end), line.size());
        if (!trim(line.substr(end + 1, separator - end - 1)).empty())
          fail(fields_.size() - 1, "", "it goes on after its closing quote", kQuotes);
        end = separator;
      } else {
        end = std::min(line.find(separator_), line.size());
        fields_.push_back(trim(line.substr(0, end)));
      }
      if (end == line.size()) return;
      line.remove_prefix(end + 1);
    }
  }

  // Returns the position of the closing quote. Two quotes in a row stand for one quote within the
  // field.
  std::size_t closing_quote(std::string_view line, std::size_t begin) const {
    for (std::size_t place = begin;; place += 2) {
      place = line.find('"', place);
      if (place == std::string_view::npos)
        fail(fields_.size(), "", "its quotes do not end on this line", kQuotes);
      if (!line.substr(place + 1).starts_with('"')) return place;
    }
  }

  std::string_view trim(std::string_view text) const {
    const auto is_space = [this](char character) {
      return (character == ' ' || character == '\t') && character != separator_;
    };
    while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
    while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
    return text;
  }

  static constexpr std::string_view kQuotes = "quotes go around a whole field: \"1.5\"";

  const std::filesystem::path& path_;
  std::string_view text_;  // The rest of the file.
  char separator_;
  std::int64_t number_ = 0;
  std::vector<std::string_view> fields_;
};

// Parses the whole text as a number. Accepts a leading plus sign, which from_chars does not.
template <typename Number>
std::errc parse(std::string_view text, Number& number) {
  if (text.starts_with('+') && !text.starts_with("+-")) text.remove_prefix(1);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc{} && end != text.data() + text.size()) return std::errc::invalid_argument;
  // Underflow loses a value as overflow does, but from_chars reports only the latter reliably. A
  // result of 0 from digits that are not all 0 is underflow.
  const std::string_view digits = text.substr(0, text.find_first_of("eE"));
  if (error == std::errc{} && number == 0 &&
      digits.find_first_of("123456789") != std::string_view::npos)
    return std::errc::result_out_of_range;
  return error;
}

// Parses float64 and rounds it, like NumPy. Rounding may overflow or underflow as well.
std::errc parse(std::string_view text, float& number) {
  double wide = 0;
  const std::errc error = parse(text, wide);
  number = static_cast<float>(wide);
  const bool is_lost = (std::isinf(number) && !std::isinf(wide)) || (number == 0 && wide != 0);
  return error == std::errc{} && is_lost ? std::errc::result_out_of_range : error;
}

// A column of the data set that is being read.
struct Target {
  std::string name;
  std::vector<std::size_t> fields;  // The positions of its fields in a line.
  at::Tensor rows;
};

template <typename Number>
void read_fields(const Lines& lines, const std::vector<std::string>& names, const Target& target,
                 std::int64_t row) {
  const auto width = static_cast<std::int64_t>(target.fields.size());
  Number* number = target.rows.mutable_data_ptr<Number>() + row * width;
  for (const std::size_t field : target.fields) {
    const std::string_view text = lines.fields()[field];
    if (text.empty())
      lines.fail(field, names[field], "it is empty", "leave out the line, or fill in a number");
    const std::errc error = parse(text, *number++);
    if (error == std::errc{}) continue;
    const bool is_integer = target.rows.scalar_type() == at::kLong;
    lines.fail(
        field, names[field],
        error == std::errc::result_out_of_range
            ? join_message(text, " does not fit into ", target.rows.scalar_type())
            : join_message("'", text, is_integer ? "' is not an integer" : "' is not a number"),
        error == std::errc::result_out_of_range
            ? "read the column as at::kDouble, or write 0 where it may as well be 0"
        : is_integer ? "read it as at::kFloat where it has fractions"
                     : "ask for the columns that hold numbers");
  }
}

void read_row(const Lines& lines, const std::vector<std::string>& names,
              const std::vector<Target>& targets, std::int64_t row) {
  for (const Target& target : targets) {
    if (target.rows.scalar_type() == at::kFloat) {
      read_fields<float>(lines, names, target, row);
    } else if (target.rows.scalar_type() == at::kDouble) {
      read_fields<double>(lines, names, target, row);
    } else {
      read_fields<std::int64_t>(lines, names, target, row);
    }
  }
}

std::size_t field_index(const std::filesystem::path& path, const std::vector<std::string>& names,
                        const std::string& name) {
  const auto found = std::ranges::find(names, name);
  const auto count = std::ranges::count(names, name);
  if (count == 1) return static_cast<std::size_t>(found - names.begin());
  if (count > 1) {
    throw DataError(
        join_message(path.string(), ": the header has the field '", name, "' ", count, " times"),
        "give each field its own name");
  }
  throw DataError(join_message(path.string(), ": no field '", name, "'; the fields are ",
                               detail::quoted(names)),
                  "use one of these names");
}

// Allocates the columns for at most `most_rows` lines; the caller shortens them at the end.
std::vector<Target> targets_of(const std::filesystem::path& path,
                               const std::vector<std::string>& names,
                               const std::vector<CsvColumn>& columns, std::int64_t most_rows) {
  std::vector<Target> targets;
  for (const CsvColumn& column : columns) {
    Target target{column.name, {}, {}};
    for (const std::string& field : column.fields)
      target.fields.push_back(field_index(path, names, field));
    at::DimVector sizes{most_rows};
    if (column.fields.empty()) {
      target.fields.push_back(field_index(path, names, column.name));
    } else {
      sizes.push_back(static_cast<std::int64_t>(column.fields.size()));
    }
    target.rows = at::empty(sizes, column.dtype);
    targets.push_back(std::move(target));
  }
  return targets;
}

void check_columns(const std::vector<CsvColumn>& columns) {
  std::vector<std::string> names;
  for (const CsvColumn& column : columns) {
    names.push_back(column.name);
    if (column.dtype == at::kFloat || column.dtype == at::kDouble || column.dtype == at::kLong)
      continue;
    throw UsageError(join_message("the column '", column.name, "' of a CSV file as ", column.dtype),
                     "give at::kFloat, at::kDouble or at::kLong, and convert with type_cast");
  }
  if (!names.empty()) detail::check_names(names);
}

std::vector<std::string> names_of(const std::vector<std::string_view>& fields, bool has_header) {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < fields.size(); ++i) {
    std::string& name = names.emplace_back(has_header ? std::string(fields[i]) : std::to_string(i));
    for (std::size_t place = 0; (place = name.find("\"\"", place)) != std::string::npos; ++place)
      name.erase(place, 1);
  }
  return names;
}

}  // namespace

std::shared_ptr<const Dataset> csv(const std::filesystem::path& path,
                                   std::vector<CsvColumn> columns, CsvOptions options) {
  check_columns(columns);
  const at::Tensor bytes = detail::map_file(path);
  const std::string_view text(static_cast<const char*>(bytes.const_data_ptr()),
                              static_cast<std::size_t>(bytes.numel()));
  Lines lines(path, text, options.separator);
  if (!lines.next()) {
    throw DataError(join_message(path.string(), " has no line"),
                    options.has_header ? "a header and a line for each sample were expected"
                                       : "a line for each sample was expected");
  }
  const std::vector<std::string> names = names_of(lines.fields(), options.has_header);
  if (columns.empty())
    for (const std::string& name : names) columns.push_back({name});
  // An upper limit, because empty lines are not samples.
  const std::int64_t most_rows = std::ranges::count(text, '\n') + 1;
  std::vector<Target> targets = targets_of(path, names, columns, most_rows);

  std::int64_t rows = 0;
  if (!options.has_header) read_row(lines, names, targets, rows++);
  while (lines.next()) {
    if (lines.fields().size() != names.size()) lines.fail_count(names.size());
    read_row(lines, names, targets, rows++);
  }
  std::vector<std::pair<std::string, at::Tensor>> read;
  for (Target& target : targets)
    read.emplace_back(std::move(target.name), target.rows.narrow(0, 0, rows));
  return tensors(std::move(read));
}

}  // namespace trireme::data
