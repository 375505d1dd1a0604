// SPDX-License-Identifier: Apache-2.0
// Ranks in different processes that meet over files of one folder.
#pragma once

#include <trireme/comm/engines/shm/communicator.h>

#include <poll.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <utility>

namespace trireme::shm::test {

class FileRendezvousStore : public RendezvousStore {
 public:
  /// With `by_name`, the first path that is offered, a descriptor of rank 0, cannot be opened.
  FileRendezvousStore(std::filesystem::path folder, bool by_name)
      : folder_(std::move(folder)), by_name_(by_name) {}

  void set(const std::string& key, const std::string& value) override {
    const std::filesystem::path file = path_of(key);
    const std::filesystem::path unfinished = file.string() + ".new";
    std::ofstream(unfinished, std::ios::binary) << value;
    std::filesystem::rename(unfinished, file);
  }

  std::string get(const std::string& key) override {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    std::ifstream file;
    while (file.open(path_of(key), std::ios::binary), !file.is_open()) {
      if (std::chrono::steady_clock::now() > deadline) {
        throw std::runtime_error("nobody has set '" + key + "'");
      }
      ::poll(nullptr, 0, 1);  // the others need the core to set it
    }
    std::string value{std::istreambuf_iterator<char>(file), {}};
    return by_name_ && key == "memory" ? "/proc/1/fd/999999 0 0 0 0 0" : value;
  }

  bool has(const std::string& key) override { return std::filesystem::exists(path_of(key)); }

 private:
  std::filesystem::path path_of(std::string key) const {
    std::replace(key.begin(), key.end(), '/', '.');
    return folder_ / key;
  }

  std::filesystem::path folder_;
  bool by_name_;
};

}  // namespace trireme::shm::test
