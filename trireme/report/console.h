// SPDX-License-Identifier: Apache-2.0
// Prints lines for people and, on a terminal, one status line below them that is redrawn in place.
#pragma once

#include <string>
#include <string_view>

namespace trireme::report {

/// The destination of characters. Not thread-safe.
class Output {
 public:
  virtual ~Output() = default;

  /// Writes the text immediately; nothing stays in a buffer after the call.
  virtual void write(std::string_view text) = 0;

  /// Returns the width of the terminal in columns, or 0 if the output is not a terminal. Called
  /// before each drawing, because users resize their windows.
  virtual int columns() const = 0;
};

/// The standard output of this process. Its text appears in order with that of printf and
/// std::cout.
class StandardOutput final : public Output {
 public:
  void write(std::string_view text) override;
  int columns() const override;
};

/// Prints lines and keeps a status line below them. All code that prints to one terminal must share
/// one Console. Not thread-safe.
class Console {
 public:
  /// @param output must outlive the console.
  explicit Console(Output& output) : output_(output) {}

  /// Returns the console on standard output, which the whole process shares.
  static Console& standard();

  /// Returns true if the output is a terminal.
  bool is_terminal() const { return output_.columns() > 0; }

  /// Returns the maximum length of a status. It is one column less than the width of the terminal,
  /// because a character in the last column makes some terminals scroll. 0 if the output is not a
  /// terminal.
  int status_width() const;

  /// Prints one line, above the status if there is one.
  void line(std::string_view text);

  /// Draws `text` in place of the previous status, cut to `status_width()`. Each byte must take one
  /// column. Writes nothing if the output is not a terminal.
  void status(std::string_view text);

  /// Removes the status.
  void clear_status();

 private:
  Output& output_;
  std::string status_;
};

}  // namespace trireme::report
