// SPDX-License-Identifier: Apache-2.0
// An output that keeps what was written, and a small model of a terminal that shows what a person
// would see.
#pragma once

#include <trireme/report/console.h>

#include <string>
#include <vector>

namespace trireme::report {

class RecordedOutput final : public Output {
 public:
  explicit RecordedOutput(int columns) : columns_(columns) {}

  void write(std::string_view text) override { written_ += text; }
  int columns() const override { return columns_; }

  const std::string& written() const { return written_; }

  /// The lines on the screen, the one with the cursor last; understands \r, \n and "erase to the
  /// end of the line".
  std::vector<std::string> screen() const {
    std::vector<std::string> lines(1);
    std::size_t column = 0;
    for (std::size_t i = 0; i < written_.size(); ++i) {
      std::string& line = lines.back();
      if (written_.compare(i, 3, "\x1b[K") == 0) {
        line.resize(column);
        i += 2;
      } else if (written_[i] == '\r') {
        column = 0;
      } else if (written_[i] == '\n') {
        lines.emplace_back();
        column = 0;
      } else {
        if (line.size() <= column) line.resize(column + 1);
        line[column++] = written_[i];
      }
    }
    return lines;
  }

 private:
  int columns_;
  std::string written_;
};

}  // namespace trireme::report
