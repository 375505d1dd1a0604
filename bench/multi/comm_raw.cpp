// SPDX-License-Identifier: Apache-2.0
// The communication benchmark over the shared-memory engine alone, without LibTorch. Starts its
// other ranks itself, by fork. With --memcpy it is one process that copies instead: the peer for
// memory that nobody has to copy.
#include <trireme/comm/shm/communicator.h>

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

/// A folder in which the ranks leave each other notes; removed at the end.
class Folder final : public shm::Meeting {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "bench_comm_XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("cannot make " + name);
    path_ = name;
  }
  ~Folder() override {
    std::error_code ignored;
    if (::getpid() == maker_) std::filesystem::remove_all(path_, ignored);
  }
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

 private:
  std::string place(std::string key) const {
    for (char& letter : key) letter = letter == '/' ? '_' : letter;
    return (path_ / key).string();
  }

  std::filesystem::path path_;
  pid_t maker_ = ::getpid();
};

class ShmEngine final : public bench::Engine {
 public:
  ShmEngine(int rank, int size, shm::Meeting& meeting)
      : group_(shm::Communicator::connect(rank, size, meeting, {})),
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

// Forks the other ranks; returns the number of the process that returns.
int become_ranks(int size) {
  const pid_t first = ::getpid();
  for (int rank = 1; rank < size; ++rank) {
    const pid_t child = ::fork();
    if (child < 0) throw std::runtime_error("cannot start a process");
    if (child > 0) continue;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != first) std::exit(EXIT_FAILURE);  // it ended before that
    return rank;
  }
  return 0;
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
  bool copies = false;
  const bench::Plan plan = bench::parse(argc, argv, [&](CLI::App& app) {
    app.add_option("--ranks", size, "processes");
    app.add_flag("--memcpy", copies, "copy in one process instead");
  });
  if (copies) {
    CopyEngine engine;
    bench::measure(plan, engine);
    return 0;
  }
  Folder folder;
  const int rank = become_ranks(size);
  {
    ShmEngine engine(rank, size, folder);
    bench::measure(plan, engine);
  }
  return wait_for_children() ? 0 : 1;
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
