// SPDX-License-Identifier: Apache-2.0
#include <trireme/data/detail/cifar.h>

#include <trireme/base/error.h>
#include <trireme/data/files/cifar10_layout.h>

#include <ATen/ops/empty.h>

#include <cstring>
#include <fstream>
#include <utility>

namespace trireme::data::detail {
namespace {

namespace fs = std::filesystem;

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

}  // namespace

void check_folder(const fs::path& folder, const std::string& wanted, std::string_view remedy) {
  if (fs::is_directory(folder)) return;
  throw DataError(join_message("no folder ", folder.string(), " (looked there for ", wanted, ")"),
                  remedy);
}

void fail_without_files(const fs::path& folder, const std::string& wanted,
                        std::string_view remedy) {
  throw DataError(join_message("no data set in ", folder.string(), ": looked for ", wanted),
                  remedy);
}

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

}  // namespace trireme::data::detail
