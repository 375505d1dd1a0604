// SPDX-License-Identifier: Apache-2.0
// The way of a rank's output: always whole into its log file, and for ranks that are shown to the
// console as well, through pipes, or through a pseudo-terminal where the console is a terminal, so
// that progress bars work.
#pragma once

#include <trireme/base/unique_fd.h>
#include <trireme/launch/run/run.h>
#include <trireme/launch/run/supervisor_console.h>

#include <filesystem>
#include <string>
#include <vector>

namespace trireme::launch {

/// Our standard output and error.
struct Consoles {
  Console output{1};
  Console error{2};
};

/// Writes a line of the launcher's own to standard error: on a terminal not behind what a rank has
/// left unfinished there.
void say(Consoles& consoles, const std::string& line);

/// One stream of one rank, read by the launcher. Not thread-safe.
class Relay {
 public:
  /// @param prefix put before each line, of which then only whole ones are shown; empty to hand
  /// bytes through as they come.
  Relay(UniqueFd source, int log, Console& console, std::string prefix);

  /// What `pump` met.
  enum class Result { kMore, kNothingNow, kEnd };
  /// Moves up to 64 KiB without waiting.
  Result pump();
  /// Shows a last line that has no end, and closes the stream.
  void close();

  bool is_open() const { return static_cast<bool>(source_); }
  int fd() const { return source_.get(); }
  const Console& console() const { return *console_; }
  /// Whether the log lacks something.
  bool is_log_cut() const { return is_log_cut_; }

 private:
  void show(std::string_view text);

  UniqueFd source_;
  int log_;
  bool is_log_cut_ = false;
  Console* console_;
  std::string prefix_;
  std::string unfinished_line_;
};

/// Everything about one rank's output. The rank's own ends are `output` and `error`, to be closed
/// once it runs.
struct RankOutput {
  std::filesystem::path log_path;
  UniqueFd log;
  UniqueFd output;
  UniqueFd error;
  std::vector<Relay> relays;
};

/// Opens the log file `rank_<rank>.log` in `folder`, empty, and what `mode` asks for. Throws
/// ConfigError where the file cannot be made, or is something other than a file.
RankOutput open_output(int rank, const std::filesystem::path& folder, Output mode,
                       Consoles& consoles);

/// Gives a pseudo-terminal the size of our own terminal.
void copy_window_size(int pseudo_terminal);

}  // namespace trireme::launch
