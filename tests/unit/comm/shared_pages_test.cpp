// SPDX-License-Identifier: Apache-2.0
#include <trireme/comm/engines/shm/shared_pages.h>

#include <trireme/base/error.h>
#include <trireme/comm/engines/shm/peer_pages.h>

#include <gmock/gmock.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <tests/temporary_folder.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

namespace trireme::shm {
namespace {

using State = SharedPages::State;
using ::testing::HasSubstr;
using trireme::test::message_of;

constexpr std::size_t kPage = 4096;
constexpr std::size_t kBytes = 64 * kPage;

// Memory of which all pages may be shared.
class Memory {
 public:
  Memory()
      : data_(static_cast<std::byte*>(
            ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))),
        pages({data_, data_ + kBytes}, [this](const void* data, std::size_t bytes) {
          const auto begin = static_cast<std::size_t>(static_cast<const std::byte*>(data) - data_);
          if (begin >= kBytes) return SharedPages::Range{};
          const std::size_t first = (begin + kPage - 1) / kPage * kPage;
          const std::size_t last = (begin + bytes) / kPage * kPage;
          return first < last ? SharedPages::Range{data_ + first, data_ + last}
                              : SharedPages::Range{};
        }) {}
  ~Memory() { ::munmap(data_, kBytes); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  // Fills pages with a value and shares them.
  SharedPages::Found share(std::size_t page, std::size_t num_pages, int value) {
    std::byte* const data = at(page);
    std::memset(data, value, num_pages * kPage);
    for (int i = 0; i < SharedPages::kNotes; ++i) pages.note(data, num_pages * kPage);
    SharedPages::Found found = pages.find(data, num_pages * kPage);
    EXPECT_EQ(found.state, State::kShared);
    return found;
  }
  std::byte* at(std::size_t page) { return data_ + page * kPage; }
  bool holds(std::size_t page, std::size_t num_pages, int value) {
    return std::all_of(at(page), at(page + num_pages),
                       [&](std::byte byte) { return byte == static_cast<std::byte>(value); });
  }

 private:
  std::byte* data_;

 public:
  SharedPages pages;
};

// The bytes at that place as another process maps them.
std::byte* map(const SharedPages::Found& found, std::size_t bytes) {
  static std::vector<std::shared_ptr<const PeerPages::Window>> windows;
  windows.push_back(PeerPages::open(found.file->address)->map(found.offset, bytes));
  return windows.back()->at(found.offset);
}

// The word with that number in the address of a file.
std::string address_part(const std::string& address, int number) {
  std::istringstream text(address);
  std::string word;
  for (int i = 0; i <= number; ++i) text >> word;
  return word;
}

bool is_mapped(const std::string& inode) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find(' ' + inode + ' ') != std::string::npos) return true;
  }
  return false;
}

TEST(SharedPages, AreThoseThatAreNotedOften) {
  Memory memory;
  for (int i = 0; i < SharedPages::kNotes; ++i) {
    EXPECT_EQ(memory.pages.find(memory.at(1), kPage).state, State::kCandidate);
    memory.pages.note(memory.at(1), kPage);
  }
  // Other bytes were not noted.
  EXPECT_EQ(memory.pages.find(memory.at(1), 2 * kPage).state, State::kCandidate);
  auto found = memory.pages.find(memory.at(1), kPage);
  EXPECT_EQ(found.state, State::kShared);
  EXPECT_EQ(found.offset, kPage);
  EXPECT_TRUE(found.is_whole);
  EXPECT_EQ(memory.pages.shared_bytes(), kPage);
  found.use.finish();
  auto part = memory.pages.find(memory.at(1) - 8, kPage + 8);
  EXPECT_EQ(part.state, State::kShared);
  EXPECT_FALSE(part.is_whole) << "the first bytes lie in a page with other data";
  EXPECT_EQ(part.offset, kPage - 8);
  part.use.finish();
  int elsewhere = 0;
  EXPECT_EQ(memory.pages.find(&elsewhere, sizeof(elsewhere)).state, State::kPrivate);
}

TEST(SharedPages, KeepTheirContentAndAreSeenByOthers) {
  Memory memory;
  auto found = memory.share(2, 10, 7);
  EXPECT_TRUE(memory.holds(2, 10, 7));
  std::byte* const theirs = map(found, 10 * kPage);
  EXPECT_NE(theirs, memory.at(2));
  std::memset(theirs + kPage, 8, kPage);
  EXPECT_TRUE(memory.holds(2, 1, 7));
  EXPECT_TRUE(memory.holds(3, 1, 8));
  found.use.finish();
  // A range around them takes the pages that lack.
  auto wider = memory.share(0, 20, 9);
  EXPECT_EQ(memory.pages.shared_bytes(), 20 * kPage);
  const std::byte* const all = map(wider, 20 * kPage);
  EXPECT_TRUE(
      std::all_of(all, all + 20 * kPage, [](std::byte byte) { return byte == std::byte{9}; }));
  wider.use.finish();
}

TEST(SharedPages, OfAFailedOperationGetMemoryOfTheirOwn) {
  Memory memory;
  memory.share(0, 1, 1).use.finish();
  std::byte* theirs = nullptr;
  {
    const auto found = memory.share(2, 10, 7);
    theirs = map(found, 10 * kPage);
  }
  EXPECT_EQ(memory.pages.shared_bytes(), kPage);
  std::memset(theirs, 8, 10 * kPage);  // a rank that is late
  EXPECT_TRUE(memory.holds(2, 10, 7));
  EXPECT_TRUE(memory.holds(0, 1, 1));
  // Nor does it reach the pages when they are shared again.
  auto again = memory.share(2, 10, 3);
  std::memset(theirs, 8, 10 * kPage);
  EXPECT_TRUE(memory.holds(2, 10, 3));
  again.use.finish();
}

TEST(SharedPages, GoBackToTheSystem) {
  Memory memory;
  auto found = memory.share(0, 40, 7);
  found.use.finish();
  struct stat before = {};
  ASSERT_EQ(::fstat(found.file->segment.descriptor(), &before), 0);
  memory.pages.discard({memory.at(10), memory.at(64)});
  struct stat after = {};
  ASSERT_EQ(::fstat(found.file->segment.descriptor(), &after), 0);
  EXPECT_EQ(before.st_blocks - after.st_blocks, static_cast<blkcnt_t>(30 * kPage / 512));
  EXPECT_EQ(memory.pages.shared_bytes(), 10 * kPage);
  EXPECT_TRUE(memory.holds(0, 10, 7));
  EXPECT_TRUE(memory.holds(10, 54, 0));
  std::memset(memory.at(10), 5, kPage);
  EXPECT_TRUE(memory.holds(10, 1, 5));
}

blkcnt_t blocks_of(const SharedPages::File& file) {
  struct stat status = {};
  EXPECT_EQ(::fstat(file.segment.descriptor(), &status), 0);
  return status.st_blocks;
}

constexpr blkcnt_t kBlocks = kPage / 512;  // of a page

TEST(SharedPages, MoveFromAnEarlierFileToTheCurrentOne) {
  Memory memory;
  auto first = memory.share(0, 10, 7);
  first.use.finish();
  {
    const auto failed = memory.share(20, 10, 8);
  }  // later pages get another file
  auto second = memory.share(30, 10, 9);
  second.use.finish();
  ASSERT_NE(first.file->number, second.file->number);
  const blkcnt_t before = blocks_of(*first.file);
  auto moved = memory.pages.find(memory.at(0), 10 * kPage);
  EXPECT_EQ(moved.state, State::kShared);
  EXPECT_EQ(moved.file->number, second.file->number);
  EXPECT_TRUE(memory.holds(0, 10, 7));
  EXPECT_EQ(before - blocks_of(*first.file), 10 * kBlocks);
  moved.use.finish();
}

TEST(SharedPages, StayInAnEarlierFileWhileAnOperationUsesThem) {
  Memory memory;
  auto first = memory.share(0, 10, 7);
  {
    const auto failed = memory.share(20, 10, 8);
  }
  auto again = memory.pages.find(memory.at(0), 10 * kPage);
  EXPECT_EQ(again.file->number, first.file->number);
  first.use.finish();
  again.use.finish();
}

TEST(SharedPages, ThatAreReleasedAfterAForkDoNotKeepTheirFile) {
  Memory memory;
  auto found = memory.share(0, 10, 7);
  found.use.finish();
  const std::string inode = address_part(found.file->address, 2);
  found.file.reset();
  const pid_t child = ::fork();
  if (child == 0) ::_exit(memory.holds(0, 10, 7) ? 0 : 1);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(is_mapped(inode));
  memory.pages.drop_frozen({memory.at(0), memory.at(4)});
  EXPECT_TRUE(is_mapped(inode));
  EXPECT_TRUE(memory.holds(4, 6, 7)) << "the other pages keep their content";
  memory.pages.drop_frozen({memory.at(4), memory.at(64)});
  EXPECT_FALSE(is_mapped(inode));
  std::memset(memory.at(0), 5, 10 * kPage);
  EXPECT_TRUE(memory.holds(0, 10, 5));
}

// A child that opens a file which its parent has mapped gets windows of its own.
TEST(SharedPages, OfAPeerAreOpenedAfreshInAForkedChild) {
  int answer[2];
  ASSERT_EQ(::pipe(answer), 0);
  Memory memory;
  const pid_t peer = ::fork();
  if (peer == 0) {
    auto found = memory.share(0, 4, 7);
    const std::string address = found.file->address + '\n';
    if (::write(answer[1], address.data(), address.size()) < 0) ::_exit(1);
    ::pause();
  }
  std::string address;
  for (char next = 0; ::read(answer[0], &next, 1) == 1 && next != '\n';) address += next;
  const auto pages = PeerPages::open(address);
  const auto window = pages->map(0, kPage);
  EXPECT_EQ(*window->at(0), std::byte{7});
  const pid_t child = ::fork();
  if (child == 0) {
    const auto own = PeerPages::open(address);
    ::_exit(own != pages && *own->map(0, kPage)->at(0) == std::byte{7} ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  ::kill(peer, SIGKILL);
  ::waitpid(peer, &status, 0);
  ::close(answer[0]);
  ::close(answer[1]);
}

TEST(SharedPages, OfFilesThatAreForeignAreRefused) {
  Memory memory;
  auto found = memory.share(0, 4, 7);
  const std::string address = found.file->address;
  EXPECT_THAT(message_of<ConfigError>([] { PeerPages::open("/etc/passwd 1 2 3 4 5"); }),
              HasSubstr("is no address of shared memory"));
  const std::string path = address.substr(0, address.find(' '));
  EXPECT_THAT(message_of<ConfigError>([&] { PeerPages::open(path + " 1 2 262144 4 5"); }),
              HasSubstr("it is another one"));
  const auto pages = PeerPages::open(address);
  EXPECT_THAT(message_of<ConfigError>([&] { pages->map(kBytes - kPage, 2 * kPage); }),
              HasSubstr("another rank says that its tensor lies in bytes 258048 to 266240 of a "
                        "file of 262144 bytes"));
  found.use.finish();
}

// A system call makes a child without the handlers of fork(). Changing the parent's tensors without
// notice would be worse than the signal.
TEST(SharedPages, AreNotInAChildMadeByASystemCall) {
  Memory memory;
  auto found = memory.share(0, 4, 7);
  found.use.finish();
  const auto child = static_cast<pid_t>(::syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0));
  if (child == 0) {
    ::signal(SIGSEGV, SIG_DFL);
    std::memset(memory.at(0), 8, kPage);
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
  EXPECT_TRUE(memory.holds(0, 4, 7));
}

}  // namespace
}  // namespace trireme::shm
