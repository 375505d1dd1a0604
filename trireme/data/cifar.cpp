// SPDX-License-Identifier: Apache-2.0
// Reads CIFAR-10 and CIFAR-100: records of one byte for each label, followed by an image.
#include <trireme/data/cifar.h>

#include <trireme/base/error.h>
#include <trireme/data/dataset_views.h>
#include <trireme/data/files/cifar10_layout.h>

#include <ATen/ops/empty.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

namespace trireme::data {
namespace {

namespace fs = std::filesystem;

struct CifarLabel {
  std::string column;    // the name of the column
  std::int64_t classes;  // the number of classes; a label must be below it
};

// The layout of a file: records of one byte for each label, followed by an image.
struct CifarFormat {
  std::string name;                // the name of the data set in error messages
  std::vector<CifarLabel> labels;  // the labels in the order of the bytes of a record
};

std::int64_t record_bytes(const CifarFormat& format) {
  return static_cast<std::int64_t>(format.labels.size()) + kCifar10ImageBytes;
}

std::int64_t count_records(const CifarFormat& format, const fs::path& file) {
  if (!fs::is_regular_file(file)) {
    throw DataError(join_message(file.string(), " is not a file"),
                    "take it away, and get the data set anew");
  }
  const auto bytes = static_cast<std::int64_t>(fs::file_size(file));
  const std::int64_t rest = bytes % record_bytes(format);
  if (rest == 0) return bytes / record_bytes(format);
  throw DataError(join_message(file.string(), ": offset ", bytes - rest, ": the last record has ",
                               rest, " bytes, expected ", record_bytes(format)),
                  join_message("the file is cut short or not in ", format.name,
                               "'s binary format: get it anew"));
}

// The position in each column where the next record is written.
struct Destination {
  std::uint8_t* image;
  std::vector<std::int64_t*> labels;
};

void read_records(const CifarFormat& format, const fs::path& file, std::int64_t count,
                  Destination& to) {
  std::ifstream stream(file, std::ios::binary);
  std::vector<char> record(static_cast<std::size_t>(record_bytes(format)));
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t offset = i * record_bytes(format);
    if (!stream.read(record.data(), record_bytes(format))) {
      throw DataError(join_message(file.string(), ": offset ", offset, ": cannot be read"),
                      "check the permissions of the file and the disk");
    }
    for (std::size_t j = 0; j < format.labels.size(); ++j) {
      const auto label = static_cast<std::uint8_t>(record[j]);
      const auto& [column, classes] = format.labels[j];
      if (label >= classes) {
        throw DataError(
            join_message(file.string(), ": offset ", offset + static_cast<std::int64_t>(j), ": ",
                         column, " ", int{label}, ", expected 0 to ", classes - 1),
            join_message("the file is damaged or not in ", format.name,
                         "'s binary format: get it anew"));
      }
      *to.labels[j]++ = label;
    }
    std::memcpy(to.image, record.data() + format.labels.size(), kCifar10ImageBytes);
    to.image += kCifar10ImageBytes;
  }
}

// Throws unless the folder exists, in which the `wanted` files are expected.
void check_folder(const fs::path& folder, const std::string& wanted, std::string_view remedy) {
  if (fs::is_directory(folder)) return;
  throw DataError(join_message("no folder ", folder.string(), " (looked there for ", wanted, ")"),
                  remedy);
}

[[noreturn]] void fail_without_files(const fs::path& folder, const std::string& wanted,
                                     std::string_view remedy) {
  throw DataError(join_message("no data set in ", folder.string(), ": looked for ", wanted),
                  remedy);
}

// Reads the records of all files into memory. The columns are "image", uint8 [3, 32, 32], followed
// by one int64 [] for each label.
std::shared_ptr<const Dataset> read_cifar(const CifarFormat& format,
                                          const std::vector<fs::path>& files) {
  std::vector<std::int64_t> counts;
  std::int64_t total = 0;
  // The columns are allocated once, so all files are counted first.
  for (const fs::path& file : files) total += counts.emplace_back(count_records(format, file));

  std::vector<std::pair<std::string, at::Tensor>> columns;
  columns.emplace_back("image", at::empty({total, 3, kCifar10Side, kCifar10Side}, at::kByte));
  Destination to{columns[0].second.mutable_data_ptr<std::uint8_t>(), {}};
  for (const CifarLabel& label : format.labels) {
    columns.emplace_back(label.column, at::empty({total}, at::kLong));
    to.labels.push_back(columns.back().second.mutable_data_ptr<std::int64_t>());
  }
  for (std::size_t i = 0; i < files.size(); ++i) read_records(format, files[i], counts[i], to);
  return tensors(std::move(columns));
}

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
  check_folder(folder, wanted, kRemedy);
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
  if (files.empty()) fail_without_files(folder, wanted, kRemedy);
  return files;
}

}  // namespace

std::shared_ptr<const Dataset> cifar10(const fs::path& folder, Split split) {
  return read_cifar({"CIFAR-10", {{"label", kCifar10Classes}}}, find_files(folder, split));
}

std::shared_ptr<const Dataset> cifar100(const std::filesystem::path& folder, Split split) {
  constexpr std::string_view kCifar100Remedy =
      "get the binary version of CIFAR-100, whose folder is cifar-100-binary";
  const std::string wanted = split == Split::kTrain ? "train.bin" : "test.bin";
  check_folder(folder, wanted, kCifar100Remedy);
  if (!std::filesystem::exists(folder / wanted))
    fail_without_files(folder, wanted, kCifar100Remedy);
  const CifarFormat format{"CIFAR-100", {{"coarse_label", 20}, {"label", 100}}};
  // As in CIFAR-10, the label to be learnt comes second.
  return select_columns(read_cifar(format, {folder / wanted}), {"image", "label", "coarse_label"});
}

}  // namespace trireme::data
