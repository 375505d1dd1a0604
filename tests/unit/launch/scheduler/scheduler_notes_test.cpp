// SPDX-License-Identifier: Apache-2.0
#include <trireme/launch/scheduler/scheduler_notes.h>

#include <trireme/base/unique_fd.h>

#include <gmock/gmock.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>

namespace trireme::launch {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::array<int, 2> make_pipe() {
  std::array<int, 2> ends{};
  if (::pipe(ends.data()) != 0) throw std::runtime_error("cannot make a pipe");
  return ends;
}

// Reads until all writers have closed the pipe.
std::string read_all(int fd) {
  std::string text;
  std::array<char, 4096> buffer{};
  while (true) {
    const ssize_t count = ::read(fd, buffer.data(), buffer.size());
    if (count <= 0) return text;
    text.append(buffer.data(), static_cast<std::size_t>(count));
  }
}

std::string written_by(const std::function<void(SchedulerNotes&)>& act) {
  const auto ends = make_pipe();
  const UniqueFd here(ends[0]);
  std::string text;
  {
    const std::jthread reader([&] { text = read_all(here.get()); });
    {
      SchedulerNotes notes(ends[1]);
      act(notes);
    }
    ::close(ends[1]);
  }
  return text;
}

TEST(SchedulerNotes, AreWrittenWithoutControlCharacters) {
  EXPECT_EQ(written_by([](SchedulerNotes& notes) { notes.add("one\n  t\x1bwo"); }),
            "trireme: one\n  t?wo\n");
}

TEST(SchedulerNotes, AreShortenedWhereStrangersCauseThem) {
  const std::string text = written_by(
      [](SchedulerNotes& notes) { notes.add_limited("a cause", std::string(5000, 'x')); });
  EXPECT_EQ(text, "trireme: " + std::string(200, 'x') + "...\n");
}

TEST(SchedulerNotes, AreLimitedForEachCause) {
  const std::string text = written_by([](SchedulerNotes& notes) {
    EXPECT_EQ(notes.describe_counts(), "");
    for (int i = 0; i < 300; ++i) notes.add_limited("one cause", "first");
    notes.add_limited("other cause", "second");
    EXPECT_EQ(notes.describe_counts(), "  300 connections: one cause\n  1 connection: other cause");
  });
  EXPECT_EQ(std::ranges::count(text, '\n'), SchedulerNotes::kMostOfCause + 2);
  EXPECT_THAT(text, AllOf(HasSubstr("says no more about this cause: one cause\n"),
                          HasSubstr("trireme: second\n")));
}

TEST(SchedulerNotes, NeverBlockIfNobodyReads) {
  const auto ends = make_pipe();
  const UniqueFd here(ends[0]);
  std::string text;
  std::jthread reader;
  {
    SchedulerNotes notes(ends[1]);
    for (int i = 0; i < 3000; ++i) notes.add(std::string(1000, 'x'));  // a pipe takes 64 KiB
    reader = std::jthread([&] { text = read_all(here.get()); });
  }
  ::close(ends[1]);
  reader.join();
  EXPECT_THAT(text, HasSubstr(" notes were left out, because nobody read the output\n"));
}

}  // namespace
}  // namespace trireme::launch
