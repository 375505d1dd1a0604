// SPDX-License-Identifier: Apache-2.0
#include <trireme/data/cifar10.h>

#include <trireme/base/error.h>
#include <trireme/data/files/cifar10_layout.h>

#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <fstream>
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
  if (!fs::is_directory(folder)) {
    throw DataError(join_message("no folder ", folder.string(), " (looked there for ", wanted, ")"),
                    kRemedy);
  }
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
  if (files.empty()) {
    throw DataError(join_message("no data set in ", folder.string(), ": looked for ", wanted),
                    kRemedy);
  }
  return files;
}

std::int64_t count_records(const fs::path& file) {
  const auto bytes = static_cast<std::int64_t>(fs::file_size(file));
  const std::int64_t rest = bytes % kCifar10RecordBytes;
  if (rest == 0) return bytes / kCifar10RecordBytes;
  throw DataError(join_message(file.string(), ": offset ", bytes - rest, ": the last record has ",
                               rest, " bytes, expected ", kCifar10RecordBytes),
                  "the file is cut short or not in CIFAR-10's binary format: get it anew");
}

void read_records(const fs::path& file, std::int64_t count, std::uint8_t* images,
                  std::int64_t* labels) {
  std::ifstream stream(file, std::ios::binary);
  std::array<char, kCifar10RecordBytes> record;
  for (std::int64_t i = 0; i < count; ++i) {
    if (!stream.read(record.data(), kCifar10RecordBytes)) {
      throw DataError(
          join_message(file.string(), ": offset ", i * kCifar10RecordBytes, ": cannot be read"),
          "check the permissions of the file and the disk");
    }
    labels[i] = static_cast<std::uint8_t>(record[0]);
    if (labels[i] >= kCifar10Classes) {
      throw DataError(join_message(file.string(), ": offset ", i * kCifar10RecordBytes, ": label ",
                                   labels[i], ", expected 0 to ", kCifar10Classes - 1),
                      "the file is damaged or not in CIFAR-10's binary format: get it anew");
    }
    std::memcpy(images + i * kCifar10ImageBytes, record.data() + 1, kCifar10ImageBytes);
  }
}

}  // namespace

std::shared_ptr<const Dataset> cifar10(const fs::path& folder, Split split) {
  const std::vector<fs::path> files = find_files(folder, split);
  std::vector<std::int64_t> counts;
  std::int64_t total = 0;
  for (const fs::path& file : files) total += counts.emplace_back(count_records(file));

  at::Tensor images = at::empty({total, 3, kCifar10Side, kCifar10Side}, at::kByte);
  at::Tensor labels = at::empty({total}, at::kLong);
  auto* image = images.mutable_data_ptr<std::uint8_t>();
  auto* label = labels.mutable_data_ptr<std::int64_t>();
  for (std::size_t i = 0; i < files.size(); ++i) {
    read_records(files[i], counts[i], image, label);
    image += counts[i] * kCifar10ImageBytes;
    label += counts[i];
  }
  return tensors({{"image", std::move(images)}, {"label", std::move(labels)}});
}

}  // namespace trireme::data
