// SPDX-License-Identifier: Apache-2.0
// Lines for people, and below them one status line that is redrawn in place where the output is a
// terminal.
#pragma once

#include <string>
#include <string_view>

namespace trireme::report {

/// Where characters go. Not thread-safe.
class Output {
 public:
  virtual ~Output() = default;

  /// Writes at once, without a buffer that outlives the call.
  virtual void write(std::string_view text) = 0;

  /// Returns the width of the terminal in columns; 0 where the output is none. Asked anew before
  /// each drawing, because people change the size of their windows.
  virtual int columns() const = 0;
};

/// Standard output of this process; mixes in order with printf and std::cout.
class StandardOutput final : public Output {
 public:
  void write(std::string_view text) override;
  int columns() const override;
};

/// Prints lines and keeps a status line under them. All that print to one terminal share one
/// Console. Not thread-safe.
class Console {
 public:
  /// @param output must outlive the console.
  explicit Console(Output& output) : output_(output) {}

  /// The console on standard output, one for the whole process.
  static Console& standard();

  bool is_terminal() const { return output_.columns() > 0; }

  /// Returns how long a status may be: one column less than the terminal has, for a character in
  /// the last one makes some terminals scroll. 0 where the output is no terminal.
  int status_width() const;

  /// Prints one line, above the status if there is one.
  void line(std::string_view text);

  /// Draws `text` (one byte a column) over the status before; cut to `status_width()`. Nothing is
  /// written where the output is no terminal.
  void status(std::string_view text);

  /// Takes the status away.
  void clear_status();

 private:
  Output& output_;
  std::string status_;
};

}  // namespace trireme::report
