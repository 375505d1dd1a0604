// SPDX-License-Identifier: Apache-2.0
#include <trireme/data/cifar10.h>

#include <trireme/data/detail/cifar.h>
#include <trireme/data/files/cifar10_layout.h>

#include <algorithm>
#include <charconv>
#include <vector>

namespace trireme::data {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "data_batch_";
constexpr std::string_view kRemedy =
    "get the binary version of CIFAR-10, or make a set in its format: trireme data "
    "fashion-mnist-to-cifar10 --to FOLDER";

// The number in `data_batch_<number>.bin`; -1 for any other name.
std::int64_t batch_number(const std::string& name) {
  std::int64_t number = -1;
  if (!name.starts_with(kPrefix)) return -1;
  const auto [end, error] =
      std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), number);
  return error == std::errc{} && std::string_view(end) == ".bin" ? number : -1;
}

std::vector<fs::path> find_files(const fs::path& folder, Split split) {
  const std::string wanted = split == Split::kTrain ? "data_batch_*.bin" : "test_batch.bin";
  detail::check_folder(folder, wanted, kRemedy);
  std::vector<fs::path> files;
  if (split == Split::kTest) {
    if (fs::exists(folder / wanted)) files.push_back(folder / wanted);
  } else {
    for (const auto& entry : fs::directory_iterator(folder)) {
      if (batch_number(entry.path().filename().string()) >= 0) files.push_back(entry.path());
    }
    std::ranges::sort(files, {},
                      [](const fs::path& file) { return batch_number(file.filename().string()); });
  }
  if (files.empty()) detail::fail_without_files(folder, wanted, kRemedy);
  return files;
}

}  // namespace

std::shared_ptr<const Dataset> cifar10(const fs::path& folder, Split split) {
  return detail::read_cifar({"CIFAR-10", {{"label", kCifar10Classes}}}, find_files(folder, split));
}

}  // namespace trireme::data
