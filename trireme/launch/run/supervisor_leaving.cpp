// SPDX-License-Identifier: Apache-2.0
// Leaving in time: asks the ranks to, waits for them, and says how the run goes on.
#include <trireme/base/error.h>
#include <trireme/base/leaving.h>
#include <trireme/base/text.h>
#include <trireme/launch/run/exit_report.h>
#include <trireme/launch/run/run_plan.h>
#include <trireme/launch/run/supervisor.h>

#include <algorithm>
#include <csignal>
#include <fstream>
#include <iterator>

namespace trireme::launch {
namespace {

constexpr std::string_view kSaid = "trireme: asked to leave by ";

// Returns the line of a log in which rank 0 says what it has saved, without its beginning.
std::string saved_line(const std::filesystem::path& log) {
  std::ifstream stream(log, std::ios::binary);
  std::string found;
  for (std::string line; std::getline(stream, line);) {
    if (line.starts_with(kSaid)) found = line.substr(kSaid.size());
  }
  return found.substr(0, found.find("; exit code"));
}

// Returns the command line of this process with --resume, or an empty text if it is another
// program that uses the launcher as a library.
std::string command_to_resume() {
  std::ifstream stream("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> words;
  for (std::string word; std::getline(stream, word, '\0');) words.push_back(word);
  const bool is_launcher =
      words.size() > 1 && (words[1] == "run" || words[1] == "worker") &&
      std::filesystem::path(words[0]).filename().string().starts_with("trireme");
  if (!is_launcher) return {};
  if (std::ranges::find(words, "--resume") == words.end()) {
    words.insert(words.begin() + 2, "--resume");
  }
  TextWriter text;
  for (const std::string& word : words)
    text << (&word == words.data() ? "" : " ") << shell_quoted(word);
  return text.str();
}

}  // namespace

// SIGUSR1 is passed on to the ranks alone: their programs know what it means.
void Supervisor::pass_on_user_signal() {
  if (phase_ != Phase::kRunning) return;
  say(join_message("got ", describe_signal(SIGUSR1), ", passing it on to ",
                   describe_count(count_running(), "rank")));
  for (const Rank& rank : ranks_) {
    if (rank.process > 0 && !rank.status) ::kill(rank.process, SIGUSR1);
  }
}

// Returns true for the second SIGTERM of the same sender. A job manager that signals every process
// of a job sends one to this process, and one through the front.
bool Supervisor::is_second_request(int sender) { return !requests_.insert(sender).second; }

// Called when a rank has ended. The first one that has left in time shows that all of them do: the
// others are given the rest of the time.
void Supervisor::note_leaving(Rank& rank) {
  const bool has_left = exit_code(*rank.status) == kLeaveExitCode && !first_failure_;
  if (has_left && phase_ == Phase::kRunning) wait_for_leaving();
  if (waits_for_leaving_ && !has_left && exit_code(*rank.status) != 0 && !first_failure_) {
    first_failure_ = static_cast<std::size_t>(&rank - ranks_.data());
  }
  if (!waits_for_leaving_ || count_running() > 0) return;
  waits_for_leaving_ = false;
  ask_all_to_end();  // what the ranks have left behind
}

void Supervisor::wait_for_leaving() {
  waits_for_leaving_ = is_leaving_ = true;
  phase_ = Phase::kEnding;
  deadline_ = Clock::now() + options_.leave_grace + kBeyondLeaveGrace;
}

// Returns the exit code of a run whose ranks have left, after saying how it goes on.
std::optional<int> Supervisor::report_leaving() {
  const auto left = numbers_of(
      [](const Rank& rank) { return rank.status && exit_code(*rank.status) == kLeaveExitCode; });
  if (!is_leaving_ || left.empty()) return std::nullopt;
  const auto others = numbers_of([](const Rank& rank) {
    return rank.status && exit_code(*rank.status) != kLeaveExitCode && *rank.status != 0;
  });
  if (!others.empty()) {
    say(join_message("the ranks were asked to leave, and rank", left.size() == 1 ? " " : "s ",
                     describe_ranks(left), " left in time (exit code ", kLeaveExitCode,
                     "), but not rank", others.size() == 1 ? " " : "s ", describe_ranks(others)));
    return std::nullopt;
  }
  std::string what;
  for (const Rank& rank : ranks_) {
    if (what.empty()) what = saved_line(rank.output.log_path);
  }
  const std::string command = options_.place ? "" : command_to_resume();
  say(join_message("asked to leave", what.empty() ? "" : " by ", what, "; exit code ",
                   kLeaveExitCode,
                   command.empty() ? std::string("; start the same command again to resume")
                                   : "\n  to resume: " + command));
  return kLeaveExitCode;
}

}  // namespace trireme::launch
