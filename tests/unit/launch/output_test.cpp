// SPDX-License-Identifier: Apache-2.0
#include <trireme/launch/run/output.h>

#include <trireme/base/error.h>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <poll.h>
#include <pty.h>
#include <sys/stat.h>
#include <tests/temporary_folder.h>

#include <array>
#include <cerrno>
#include <csignal>

namespace trireme::launch {
namespace {

using test::read_file;
using test::TemporaryFolder;

std::array<UniqueFd, 2> make_pipe(int flags = 0) {
  std::array<int, 2> ends{};
  EXPECT_EQ(::pipe2(ends.data(), O_CLOEXEC | flags), 0);
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

UniqueFd open_file(const std::filesystem::path& path) {
  return UniqueFd(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
}

void put(const UniqueFd& fd, std::string_view text) {
  EXPECT_EQ(::write(fd.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
}

TEST(Relay, ShowsWholeLinesWithTheirMarkAndLogsEverythingAtOnce) {
  const TemporaryFolder folder;
  const UniqueFd log = open_file(folder.path() / "log");
  const UniqueFd shown = open_file(folder.path() / "shown");
  Console console(shown.get());
  auto [source, rank] = make_pipe(O_NONBLOCK);
  Relay relay(std::move(source), log.get(), console, "[rank 1] ");
  put(rank, "one\ntw");
  EXPECT_EQ(relay.pump(), Relay::Result::kMore);
  EXPECT_EQ(relay.pump(), Relay::Result::kNothingNow);
  EXPECT_EQ(read_file(folder.path() / "shown"), "[rank 1] one\n");
  EXPECT_EQ(read_file(folder.path() / "log"), "one\ntw");
  put(rank, "o\n\nend");
  EXPECT_EQ(relay.pump(), Relay::Result::kMore);
  rank.reset();
  EXPECT_EQ(relay.pump(), Relay::Result::kEnd);
  relay.close();
  EXPECT_EQ(read_file(folder.path() / "shown"),
            "[rank 1] one\n[rank 1] two\n[rank 1] \n[rank 1] end\n");
}

TEST(Relay, GoesOnWhenTheLogCannotBeWritten) {
  const TemporaryFolder folder;
  const UniqueFd full(::open("/dev/full", O_WRONLY | O_CLOEXEC));
  const UniqueFd shown = open_file(folder.path() / "shown");
  Console console(shown.get());
  auto [source, rank] = make_pipe(O_NONBLOCK);
  Relay relay(std::move(source), full.get(), console, "");
  put(rank, "text\n");
  EXPECT_EQ(relay.pump(), Relay::Result::kMore);
  EXPECT_EQ(read_file(folder.path() / "shown"),
            "trireme: a log file is cut short here: No space left on device (errno 28)\ntext\n");
}

TEST(Console, NeverBlocksOnASlowReaderAndLosesNothing) {
  auto [reader, writer] = make_pipe();
  Console console(writer.get());
  const std::string text(1 << 20, 'x');
  console.write(text);
  EXPECT_TRUE(console.is_congested());
  std::size_t received = 0;
  std::array<char, 1 << 16> buffer{};
  while (received < text.size()) {
    received += static_cast<std::size_t>(::read(reader.get(), buffer.data(), buffer.size()));
    console.flush();
  }
  EXPECT_TRUE(console.is_empty());
  EXPECT_EQ(::fcntl(writer.get(), F_GETFL) & O_NONBLOCK,
            0);  // other users of the pipe keep their blocking writes
}

TEST(Console, TellsALossOfTextFromAReaderThatLeft) {
  const UniqueFd full(::open("/dev/full", O_WRONLY | O_CLOEXEC));
  Console lost(full.get());
  lost.write("text");
  EXPECT_EQ(lost.lost_by(), ENOSPC);

  auto [reader, writer] = make_pipe();
  reader.reset();
  const auto before = std::signal(SIGPIPE, SIG_IGN);
  Console left(writer.get());
  left.write("text");
  std::signal(SIGPIPE, before);
  EXPECT_TRUE(left.is_empty());
  EXPECT_EQ(left.lost_by(), 0);
}

// A line of the launcher's used to be glued to a progress bar.
TEST(Say, BeginsALineOfItsOwnOnATerminal) {
  int ours = -1;
  int theirs = -1;
  ASSERT_EQ(::openpty(&ours, &theirs, nullptr, nullptr, nullptr), 0);
  const UniqueFd screen(ours);
  const UniqueFd terminal(theirs);
  Consoles consoles{.output = Console(terminal.get()), .error = Console(terminal.get())};
  say(consoles, "one");
  consoles.output.write("50 %");
  say(consoles, "two");
  say(consoles, "three");
  // What was written comes through bit by bit.
  const std::string expected = "trireme: one\r\n50 %\r\ntrireme: two\r\ntrireme: three\r\n";
  std::string shown;
  for (pollfd ready{.fd = screen.get(), .events = POLLIN, .revents = 0};
       shown.size() < expected.size() && ::poll(&ready, 1, 60'000) == 1;) {
    std::array<char, 256> buffer{};
    const ssize_t count = ::read(screen.get(), buffer.data(), buffer.size());
    if (count <= 0) break;
    shown.append(buffer.data(), static_cast<std::size_t>(count));
  }
  EXPECT_EQ(shown, expected);
}

TEST(OpenOutput, RefusesAnythingButAFile) {
  const TemporaryFolder folder;
  Consoles consoles;
  ASSERT_EQ(::mkfifo((folder / "rank_0.log").c_str(), 0600), 0);
  std::filesystem::create_directory(folder / "rank_1.log");
  std::filesystem::create_symlink("/dev/null", folder / "rank_2.log");
  for (const int rank : {0, 1, 2}) {
    EXPECT_THAT(test::message_of<ConfigError>(
                    [&] { open_output(rank, folder.path(), false, Output::kNone, consoles); }),
                testing::HasSubstr(".log: it is no regular file"));
  }
}

TEST(OpenOutput, SaysWhichLogFileCannotBeWritten) {
  Consoles consoles;
  EXPECT_THAT(
      test::message_of<ConfigError>(
          [&] { open_output(3, "/no/such/folder", false, Output::kNone, consoles); }),
      testing::StartsWith(
          "cannot write the log file /no/such/folder/rank_3.log: No such file or directory"));
}

}  // namespace
}  // namespace trireme::launch
