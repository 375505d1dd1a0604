// SPDX-License-Identifier: Apache-2.0
#include <trireme/data/files/convert_dataset.h>

#include <trireme/base/atomic_file.h>
#include <trireme/base/error.h>
#include <trireme/data/files/cifar10_layout.h>
#include <trireme/data/files/idx.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <system_error>
#include <vector>

namespace trireme::data {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kTrainFiles = 5;
constexpr std::int64_t kGreySide = 28;
constexpr std::int64_t kBorder = (kCifar10Side - kGreySide) / 2;
constexpr std::string_view kClassNames =
    "t-shirt/top\ntrouser\npullover\ndress\ncoat\nsandal\nshirt\nsneaker\nbag\nankle boot\n";

void check(const ImageSet& set, const fs::path& folder) {
  if (set.height != kGreySide || set.width != kGreySide) {
    throw DataError(join_message("the images in ", folder.string(), " have ", set.height, " x ",
                                 set.width, " pixels, expected 28 x 28"),
                    "give a folder with Fashion-MNIST or MNIST");
  }
  const auto label =
      std::ranges::find_if(set.labels, [](std::uint8_t value) { return value >= kCifar10Classes; });
  if (label == set.labels.end()) return;
  throw DataError(join_message("label ", int{*label}, " of image ", label - set.labels.begin(),
                               " in ", folder.string(), ", expected 0 to 9"),
                  "give a folder with Fashion-MNIST or MNIST");
}

void write_records(const ImageSet& set, std::int64_t begin, std::int64_t end,
                   const fs::path& destination) {
  std::vector<std::uint8_t> records(static_cast<std::size_t>((end - begin) * kCifar10RecordBytes),
                                    0);
  std::uint8_t* record = records.data();
  for (std::int64_t i = begin; i < end; ++i, record += kCifar10RecordBytes) {
    record[0] = set.labels[static_cast<std::size_t>(i)];
    const std::uint8_t* grey = set.pixels.data() + i * kGreySide * kGreySide;
    for (std::int64_t channel = 0; channel < 3; ++channel) {
      // The three channels are equal; the border stays 0.
      std::uint8_t* plane = record + 1 + channel * kCifar10PlaneBytes;
      for (std::int64_t row = 0; row < kGreySide; ++row) {
        std::memcpy(plane + (row + kBorder) * kCifar10Side + kBorder, grey + row * kGreySide,
                    kGreySide);
      }
    }
  }
  AtomicFile file(destination);
  file.write(std::as_bytes(std::span(records)));
  file.commit();
}

}  // namespace

Conversion fashion_mnist_to_cifar10(const fs::path& from, const fs::path& to, std::int64_t limit) {
  if (limit < 1) throw UsageError(join_message("a limit of ", limit, " images"), "give at least 1");
  const ImageSet train = read_mnist(from, Split::kTrain);
  const ImageSet test = read_mnist(from, Split::kTest);
  check(train, from);
  check(test, from);
  std::error_code error;
  fs::create_directories(to, error);
  if (error) {
    throw DataError(join_message("cannot make the folder ", to.string(), ": ", error.message()),
                    "choose another folder, or check the permissions of this one");
  }

  const Conversion written{std::min(limit, train.count()), std::min(limit, test.count())};
  // Always writes all files, so that none of an earlier, larger conversion is left.
  const std::int64_t share = (written.train + kTrainFiles - 1) / kTrainFiles;
  for (std::int64_t i = 0; i < kTrainFiles; ++i) {
    write_records(train, std::min(i * share, written.train),
                  std::min((i + 1) * share, written.train),
                  to / join_message("data_batch_", i + 1, ".bin"));
  }
  write_records(test, 0, written.test, to / "test_batch.bin");
  write_file(to / "batches.meta.txt", kClassNames);
  return written;
}

}  // namespace trireme::data
