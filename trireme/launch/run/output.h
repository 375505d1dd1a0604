// SPDX-License-Identifier: Apache-2.0
// Carries the output of ranks. All output goes to the rank's log file. Ranks that are shown on the
// console write through pipes, or through a pseudo-terminal if the console is a terminal, so that
// progress bars work.
#pragma once

#include <trireme/base/unique_fd.h>
#include <trireme/launch/run/run.h>
#include <trireme/launch/run/supervisor_console.h>

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::launch {

/// The standard output and standard error of this process.
struct Consoles {
  Console output{1};  ///< standard output
  Console error{2};   ///< standard error
};

/// Writes a line of the launcher itself to standard error. On a terminal it starts on a new line,
/// even if a rank has left an unfinished line there.
void say(Consoles& consoles, const std::string& line);

/// One output stream of one rank, read by the launcher. Not thread-safe.
class Relay {
 public:
  /// Reads from `source` and copies everything to the log and the console.
  /// @param source the read end of a pipe or pseudo-terminal.
  /// @param log the descriptor of the log file.
  /// @param console the console that shows the output.
  /// @param prefix a text before each line, which is then shown only when it is complete. If empty,
  /// bytes are passed on as they arrive.
  Relay(UniqueFd source, int log, Console& console, std::string prefix);

  /// The result of `pump`: data was moved, there is none at the moment, or the stream has ended.
  enum class Result { kMore, kNothingNow, kEnd };
  /// Moves up to 64 KiB without blocking.
  Result pump();
  /// Shows an unfinished last line, and closes the stream.
  void close();

  /// Returns true until close().
  bool is_open() const { return static_cast<bool>(source_); }
  /// Returns the descriptor to poll for input.
  int fd() const { return source_.get(); }
  /// Returns the console that shows the output.
  const Console& console() const { return *console_; }
  /// Returns true if a part of the output could not be written to the log.
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

/// The output of one rank. The rank's own ends are `output` and `error`; close them when the rank
/// has started.
struct RankOutput {
  std::filesystem::path log_path;  ///< the path of the log file
  UniqueFd log;                    ///< the log file
  UniqueFd output;                 ///< the rank's standard output
  UniqueFd error;                  ///< the rank's standard error
  std::vector<Relay> relays;       ///< the streams that the launcher reads
};

/// Opens the log file `rank_<rank>.log` in `folder`, and connects the rank as `mode` asks for.
/// Throws ConfigError if the file cannot be created or is not a regular file.
/// @param keeps_log true if the log continues an existing one; otherwise the file is emptied.
RankOutput open_output(int rank, const std::filesystem::path& folder, bool keeps_log, Output mode,
                       Consoles& consoles);

/// Writes a line of the launcher to the log of a rank. A failure is ignored.
void write_to_log(const RankOutput& output, std::string_view line);

/// Gives a pseudo-terminal the window size of the real terminal.
void copy_window_size(int pseudo_terminal);

}  // namespace trireme::launch
