// SPDX-License-Identifier: Apache-2.0
#include <trireme/report/console.h>

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdio>

namespace trireme::report {
namespace {

constexpr std::string_view kEraseToEnd = "\x1b[K";
constexpr int kUsualColumns = 80;  // for a terminal that does not tell its size

}  // namespace

void StandardOutput::write(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

int StandardOutput::columns() const {
  if (::isatty(STDOUT_FILENO) == 0) return 0;
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return kUsualColumns;
  return size.ws_col;
}

Console& Console::standard() {
  static StandardOutput output;
  static Console console(output);
  return console;
}

int Console::status_width() const {
  const int columns = output_.columns();
  return columns > 0 ? columns - 1 : 0;
}

void Console::line(std::string_view text) {
  std::string out;
  if (!status_.empty()) out += '\r';
  out += text;
  if (!status_.empty()) out += kEraseToEnd;
  out += '\n';
  out += status_;
  output_.write(out);
}

void Console::status(std::string_view text) {
  const auto width = static_cast<std::size_t>(status_width());
  if (width == 0) return;
  status_ = text.substr(0, width);
  std::string out = "\r";
  out += status_;
  out += kEraseToEnd;
  output_.write(out);
}

void Console::clear_status() {
  if (status_.empty()) return;
  status_.clear();
  std::string out = "\r";
  out += kEraseToEnd;
  output_.write(out);
}

}  // namespace trireme::report
