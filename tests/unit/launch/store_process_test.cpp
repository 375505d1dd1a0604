// SPDX-License-Identifier: Apache-2.0
#include <trireme/launch/run/store_process.h>

#include <trireme/base/error.h>
#include <trireme/base/machine.h>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <tests/temporary_folder.h>
#include <unistd.h>

#include <csignal>

namespace trireme::launch {
namespace {

using test::TemporaryFolder;
using testing::HasSubstr;
using Kind = StoreProcess::Report::Kind;

// Writes what it is told into a file.
class Notes : public RunStore {
 public:
  Notes(std::filesystem::path path, bool is_used) : path_(std::move(path)), is_used_(is_used) {}
  void publish_exit(int rank, std::string_view how) override {
    if (rank == 13) throw CommError("the store is gone", "");
    std::ofstream(path_, std::ios::app) << rank << ": " << how << '\n';
  }
  bool is_used() override { return is_used_; }

 private:
  std::filesystem::path path_;
  bool is_used_;
};

StoreOpener opener_of_notes(const std::filesystem::path& path, bool is_used) {
  return [=](StoreAddress) { return std::make_unique<Notes>(path, is_used); };
}

// A place to serve: any descriptor stands for the socket.
StoreAddress place() {
  StoreAddress served;
  served.listening_socket.reset(::dup(0));
  return served;
}

// Ends and reaps the store's process of a test.
class StoreUnderTest : public StoreProcess {
 public:
  using StoreProcess::StoreProcess;
  StoreUnderTest(const StoreUnderTest&) = delete;
  StoreUnderTest& operator=(const StoreUnderTest&) = delete;
  ~StoreUnderTest() {
    ::kill(id(), SIGKILL);
    ::waitpid(id(), nullptr, 0);
  }

  // The next report, or none when the process has ended.
  std::optional<Report> await() {
    while (true) {
      if (auto report = receive()) return report;
      if (is_closed()) return std::nullopt;
      pollfd there{.fd = fd(), .events = POLLIN, .revents = 0};
      ::poll(&there, 1, -1);
    }
  }
};

TEST(StoreProcess, PublishesExitsThatCameBeforeItWasOpenAndSaysWhetherItWasUsed) {
  for (const bool is_used : {true, false}) {
    const TemporaryFolder folder;
    StoreUnderTest store(opener_of_notes(folder / "notes", is_used), place());
    store.publish_exit(3, "exited with code 1");
    store.publish_exit(13, "exited with code 2");
    store.publish_exit(4, "was killed by SIGKILL");
    store.finish(0);
    EXPECT_EQ(store.await()->kind, Kind::kOpen);
    const auto complaint = store.await();
    EXPECT_EQ(complaint->kind, Kind::kComplaint);
    EXPECT_EQ(complaint->text, "cannot tell the other ranks that rank 13 ended: the store is gone");
    EXPECT_EQ(store.await()->kind, is_used ? Kind::kUsed : Kind::kUnused);
    EXPECT_FALSE(store.await());
    EXPECT_EQ(test::read_file(folder / "notes"),
              "3: exited with code 1\n4: was killed by SIGKILL\n");
  }
}

TEST(StoreProcess, SaysWhyItCouldNotBeOpened) {
  StoreUnderTest store(
      [](StoreAddress) -> std::unique_ptr<RunStore> {
        throw ConfigError("no network", "make one");
      },
      place());
  const auto failure = store.await();
  EXPECT_EQ(failure->kind, Kind::kFailed);
  EXPECT_EQ(failure->text, "no network\n  hint: make one");
  EXPECT_FALSE(store.await());
}

TEST(StoreProcess, NeverBlocksItsOwnerWhileItIsOpened) {
  StoreUnderTest store(
      [](StoreAddress) -> std::unique_ptr<RunStore> {
        while (true) ::pause();
      },
      place());
  for (int rank = 0; rank < 20'000; ++rank) store.publish_exit(rank, "exited with code 1");
  EXPECT_TRUE(store.wants_to_write());
  store.finish(0);
  EXPECT_FALSE(store.receive());
  EXPECT_FALSE(store.is_closed());
}

// Asks for more memory than a store may take, and writes down whether there was any.
class Greedy : public RunStore {
 public:
  explicit Greedy(std::filesystem::path path) : path_(std::move(path)) {}
  void publish_exit(int, std::string_view) override {
    const auto much = static_cast<std::size_t>(free_memory()) / 2 + (std::size_t{1} << 30);
    // Not malloc, where sanitizers end the process instead of returning nothing.
    void* const memory =
        ::mmap(nullptr, much, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    test::write_file(path_, memory == MAP_FAILED ? "refused" : "taken");
  }
  bool is_used() override { return true; }

 private:
  std::filesystem::path path_;
};

TEST(StoreProcess, TakesOnlyAPartOfTheMemoryWhateverClientsSend) {
  // 129 values of 8 MiB used to take 1.1 GB, and so on until the machine had none.
  const TemporaryFolder folder;
  const auto path = folder / "memory";
  StoreUnderTest store([=](StoreAddress) { return std::make_unique<Greedy>(path); }, place());
  store.publish_exit(0, "exited with code 1");
  store.finish(0);
  while (store.await()) {
  }
  EXPECT_EQ(test::read_file(path), "refused");
}

// `run` in a process of its own, which it may fork and whose signals it may take. Its logs are in
// a folder that it makes in `temporary`, where that is given.
int run_with(const StoreOpener& open, const std::string& script, std::string& text,
             const std::string& temporary = "") {
  const TemporaryFolder folder;
  const std::string file = (folder / "text").string();
  const pid_t process = ::fork();
  if (process == 0) {
    const int shown = ::open(file.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    ::dup2(shown, 1);
    ::dup2(shown, 2);
    RunOptions options;
    options.command = {"sh", "-c", script};
    options.processes = 2;
    if (temporary.empty()) options.log_folder = folder / "logs";
    if (!temporary.empty()) ::setenv("TMPDIR", temporary.c_str(), 1);
    options.open_store = open;
    int code = 2;
    try {
      code = run(options);
    } catch (const ConfigError& error) {
      std::ofstream(file, std::ios::app) << error.what() << '\n';
    }
    ::_exit(code);
  }
  int status = 0;
  ::waitpid(process, &status, 0);
  text = test::read_file(file);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

std::unique_ptr<RunStore> open_for_ever(StoreAddress /*place*/) {
  while (true) ::pause();
}

// The launcher used to wait for the store, and to notice neither ranks nor signals meanwhile.
TEST(Run, NoticesARankThatFailsWhileTheStoreIsOpened) {
  std::string text;
  EXPECT_EQ(run_with(open_for_ever, "[ $RANK = 0 ] || exec sleep 1000; exit 3", text), 3) << text;
  EXPECT_THAT(text, HasSubstr("rank 0 failed first"));
}

TEST(Run, EndsOnASignalWhileTheStoreIsOpened) {
  std::string text;
  const std::string script = "[ $RANK = 0 ] && kill -TERM $(ps -o ppid= -p $PPID); exec sleep 1000";
  EXPECT_EQ(run_with(open_for_ever, script, text), 128 + SIGTERM) << text;
}

TEST(Run, SaysWhyTheStoreCouldNotBeOpenedAndEndsTheRanks) {
  std::string text;
  const auto open = [](StoreAddress) -> std::unique_ptr<RunStore> {
    throw ConfigError("no network", "make one");
  };
  EXPECT_EQ(run_with(open, "exec sleep 1000", text), 2);
  EXPECT_THAT(text, HasSubstr("no network\n  hint: make one"));
}

TEST(Run, KeepsWhatRanksHavePrintedWhereTheStoreCouldNotBeOpened) {
  const TemporaryFolder folder;
  const std::filesystem::path said = folder / "said";
  const auto open = [=](StoreAddress) -> std::unique_ptr<RunStore> {
    while (!std::filesystem::exists(said)) {
    }
    throw ConfigError("no network", "");
  };
  std::filesystem::create_directory(folder / "temporary");
  std::string text;
  EXPECT_EQ(
      run_with(open, "[ $RANK = 1 ] && echo results && : > " + said.string() + "; exec sleep 1000",
               text, folder / "temporary"),
      2);
  EXPECT_THAT(text, HasSubstr("no network"));
  std::filesystem::directory_iterator logs(folder / "temporary");
  ASSERT_NE(logs, std::filesystem::directory_iterator());
  EXPECT_EQ(test::read_file(logs->path() / "rank_1.log"), "results\n");
}

TEST(Run, EndsTheRanksWhenTheStoreBreaks) {
  std::string text;
  const auto open = [](StoreAddress) -> std::unique_ptr<RunStore> {
    return std::make_unique<Notes>("", true);
  };
  // The rank kills the store's process, a child of its own parent.
  const std::string script =
      "[ $RANK = 0 ] || exec sleep 1000; until [ -n \"$p\" ]; do "
      "p=$(ps -o pid=,comm= --ppid $PPID | sed -n 's/trireme-store//p'); done; kill -KILL $p; "
      "exec sleep 1000";
  EXPECT_EQ(run_with(open, script, text), 1) << text;
  EXPECT_THAT(text, HasSubstr("the process that serves the store was killed by SIGKILL"));
}

TEST(Run, WarnsWhereTheRanksNeverMet) {
  std::string text;
  const TemporaryFolder folder;
  EXPECT_EQ(run_with(opener_of_notes(folder / "notes", false), "exit 0", text), 0);
  EXPECT_THAT(text, HasSubstr("warning: the ranks ended without meeting: 2 processes ran"));
}

TEST(Run, DoesNotWarnWhereTheRanksUsedTheStore) {
  std::string text;
  const TemporaryFolder folder;
  EXPECT_EQ(run_with(opener_of_notes(folder / "notes", true), "exit 0", text), 0);
  EXPECT_THAT(text, testing::Not(HasSubstr("without meeting")));
}

}  // namespace
}  // namespace trireme::launch
