// SPDX-License-Identifier: Apache-2.0
// The communication benchmark over the shared-memory engine alone, without LibTorch. Starts its
// other ranks itself. With --memcpy it is one process that copies instead: the peer for memory that
// nobody has to copy. With --record only what the recorder does is timed; with --wait what ranks
// use of their cores while they wait for one that is late.
#include <trireme/comm/engines/shm/communicator.h>

#include <CLI/CLI.hpp>
#include <bench/multi/comm_loop.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace {

namespace shm = trireme::shm;

/// A folder in which the ranks leave each other notes; removed at the end by who made it.
class Folder final : public shm::RendezvousStore {
 public:
  Folder() : is_mine_(true) {
    std::string name = (std::filesystem::temp_directory_path() / "bench_comm_XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("cannot make " + name);
    path_ = name;
  }
  explicit Folder(std::filesystem::path path) : path_(std::move(path)) {}
  ~Folder() override {
    std::error_code ignored;
    if (is_mine_) std::filesystem::remove_all(path_, ignored);
  }
  const std::filesystem::path& path() const { return path_; }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  void set(const std::string& key, const std::string& value) override {
    const std::filesystem::path unfinished = place(key) + ".new";
    std::ofstream(unfinished) << value;
    std::filesystem::rename(unfinished, place(key));
  }
  std::string get(const std::string& key) override {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (!std::filesystem::exists(place(key))) {
      if (std::chrono::steady_clock::now() > deadline) {
        throw std::runtime_error("no rank has set '" + key + "' within 30 s");
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    std::ifstream file(place(key));
    return {std::istreambuf_iterator<char>(file), {}};
  }
  bool has(const std::string& key) override { return std::filesystem::exists(place(key)); }

 private:
  std::string place(std::string key) const {
    for (char& letter : key) letter = letter == '/' ? '_' : letter;
    return (path_ / key).string();
  }

  std::filesystem::path path_;
  bool is_mine_ = false;
};

class ShmEngine final : public bench::Engine {
 public:
  ShmEngine(int rank, int size, shm::RendezvousStore& store)
      : group_(shm::Communicator::connect(rank, size, store, {})),
        pieces_(static_cast<std::size_t>(size)),
        inputs_(pieces_.size()),
        outputs_(pieces_.size()) {}
  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }

  void run(const bench::Operation& operation, const bench::Buffers& buffers,
           std::size_t /*index*/) override {
    const std::size_t size = pieces_.size();
    constexpr auto kType = shm::DataType::kFloat32;
    switch (operation.collective) {
      case bench::Collective::kAllReduce:
        group_->all_reduce(buffers.input, buffers.output, operation.output_count, kType);
        return;
      case bench::Collective::kBroadcast:
        group_->broadcast(buffers.output, operation.output_count * sizeof(float), 0);
        return;
      case bench::Collective::kAllGather:
        cut(buffers, operation.output_count / size);
        group_->all_gather(buffers.input, outputs_, pieces_);
        return;
      case bench::Collective::kReduceScatter:
        std::ranges::fill(pieces_, operation.output_count);
        group_->reduce_scatter(buffers.input, buffers.output, pieces_, kType);
        return;
      case bench::Collective::kAllToAll:
        cut(buffers, operation.output_count / size);
        group_->all_to_all(inputs_, pieces_, outputs_, pieces_);
        return;
    }
  }

  void barrier() override { group_->barrier(); }

  void maximum(std::span<double> values) override {
    group_->all_reduce(values.data(), values.data(), values.size(), shm::DataType::kFloat64,
                       {.op = shm::ReduceOp::kMaximum});
  }

 private:
  // Where each rank's piece begins.
  void cut(const bench::Buffers& buffers, std::size_t count) {
    for (std::size_t i = 0; i < pieces_.size(); ++i) {
      pieces_[i] = count * sizeof(float);
      inputs_[i] = buffers.input + i * count;
      outputs_[i] = buffers.output + i * count;
    }
  }

  std::shared_ptr<shm::Communicator> group_;
  std::vector<std::size_t> pieces_;
  std::vector<const void*> inputs_;
  std::vector<void*> outputs_;
};

/// One rank whose all_gather is memcpy.
class CopyEngine final : public bench::Engine {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  void run(const bench::Operation& operation, const bench::Buffers& buffers,
           std::size_t /*index*/) override {
    std::memcpy(buffers.output, buffers.input, operation.output_count * sizeof(float));
  }
  void barrier() override {}
  void maximum(std::span<double> /*values*/) override {}
};

// Prints the microseconds that recording an operation and showing it to the others takes; what
// comparing the heads of slots takes cannot be told from reading them.
void measure_recorder(shm::RendezvousStore& store) {
  constexpr int kOperations = 2'000'000;
  const auto group = shm::Communicator::connect(0, 1, store, {});
  shm::Member& member = group->member();
  const auto began = std::chrono::steady_clock::now();
  for (int i = 0; i < kOperations; ++i) {
    shm::Call call = member.begin({.kind = shm::Kind::kAllReduce,
                                   .sequence = static_cast<std::uint32_t>(i + 1),
                                   .count = 16'384},
                                  {});
    call.history = static_cast<std::uint64_t>(i) * 0x9e3779b97f4a7c15U;
    member.show_history(call);
    member.end(call);
  }
  const std::chrono::duration<double, std::micro> time = std::chrono::steady_clock::now() - began;
  std::cout << "{\"record\": " << time.count() / kOperations << "}" << std::endl;
}

double processor_seconds() {
  timespec used;
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) + static_cast<double>(used.tv_nsec) * 1e-9;
}

// All ranks wait a second for rank 0, again and again; prints how many microseconds they waited and
// how many of those the busiest used a core.
void measure_waiting(int rank, int size, shm::RendezvousStore& store) {
  constexpr int kTimes = 3;
  const auto group = shm::Communicator::connect(rank, size, store, {});
  group->barrier();
  const auto began = std::chrono::steady_clock::now();
  double used = -processor_seconds();
  for (int i = 0; i < kTimes; ++i) {
    if (rank == 0) std::this_thread::sleep_for(std::chrono::seconds(1));
    group->barrier();
  }
  used += processor_seconds();
  const std::chrono::duration<double, std::micro> waited = std::chrono::steady_clock::now() - began;
  group->all_reduce(&used, &used, 1, shm::DataType::kFloat64, {.op = shm::ReduceOp::kMaximum});
  if (rank == 0) {
    std::cout << "{\"used\": " << used * 1e6 << ", \"waited\": " << waited.count() << "}"
              << std::endl;
  }
}

// Starts this program again as the other ranks: by fork alone they would share what the first has
// laid out already, which no launcher's ranks do.
void start_ranks(int size, int argc, char** argv, const std::filesystem::path& folder) {
  const pid_t first = ::getpid();
  for (int rank = 1; rank < size; ++rank) {
    std::vector<std::string> words(argv, argv + argc);
    for (const char* word : {"--rank", "RANK", "--folder", "FOLDER"}) words.emplace_back(word);
    words[words.size() - 3] = std::to_string(rank);
    words.back() = folder.string();
    std::vector<char*> pointers;
    for (std::string& word : words) pointers.push_back(word.data());
    pointers.push_back(nullptr);
    const pid_t child = ::fork();
    if (child < 0) throw std::runtime_error("cannot start a process");
    if (child > 0) continue;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() == first) ::execv("/proc/self/exe", pointers.data());
    ::_exit(EXIT_FAILURE);
  }
}

// Returns whether all of them ended well.
bool wait_for_children() {
  bool is_good = true;
  for (int status = 0; ::wait(&status) > 0;) is_good = is_good && status == 0;
  return is_good;
}

}  // namespace

int main(int argc, char** argv) try {
  int size = 2;
  int rank = 0;
  std::string place;
  bool copies = false;
  bool records = false;
  bool waits = false;
  const bench::Plan plan = bench::parse(argc, argv, [&](CLI::App& app) {
    app.add_option("--ranks", size, "processes");
    app.add_option("--rank", rank, "of this process, where another has started it");
    app.add_option("--folder", place, "where the ranks meet, likewise");
    app.add_flag("--memcpy", copies, "copy in one process instead");
    app.add_flag("--record", records, "time the recorder instead");
    app.add_flag("--wait", waits, "wait instead");
  });
  if (copies) {
    CopyEngine engine;
    bench::measure(plan, engine);
    return 0;
  }
  const auto folder = place.empty() ? std::make_unique<Folder>() : std::make_unique<Folder>(place);
  if (records) {
    measure_recorder(*folder);
    return 0;
  }
  if (place.empty()) start_ranks(size, argc, argv, folder->path());
  if (waits) {
    measure_waiting(rank, size, *folder);
  } else {
    ShmEngine engine(rank, size, *folder);
    bench::measure(plan, engine);
  }
  return wait_for_children() ? 0 : 1;
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
