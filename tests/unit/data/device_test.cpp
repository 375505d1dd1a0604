// SPDX-License-Identifier: Apache-2.0
// Batches on a device. With a GPU they are compared there too; the meta device, which has shapes
// alone, stands for others everywhere.
#include "batches.h"
#include <trireme/base/error.h>

#include <ATen/Context.h>
#include <gmock/gmock.h>

namespace trireme::data {
namespace {

using test::message_of;
using testing::all_of;
using testing::count_to;
using ::testing::HasSubstr;
using testing::Numbers;

std::vector<at::Device> devices_with_values() {
  std::vector<at::Device> devices{at::Device(at::kCPU)};
  if (at::globalContext().hasCUDA()) devices.emplace_back(at::kCUDA, 0);
  return devices;
}

TEST(ToDevice, GivesTheSameValuesOnEveryDevice) {
  const auto loader = DataLoader(count_to(11))
                          .shuffle(1)
                          .map("x", rescale(2))
                          .map_batch([](Batch batch) {
                            batch.names.emplace_back("y");
                            batch.columns.push_back(batch["x"].clone());
                            return batch;
                          })
                          .batch(3, LastBatch::kPad);
  const auto expected = all_of(*loader.open(0));
  for (const at::Device device : devices_with_values()) {
    for (const int workers : {0, 2}) {
      DataLoader other = DataLoader(loader).to(device);
      if (workers > 0) other.prefetch(3, workers);
      const auto batches = all_of(*other.open(0));
      ASSERT_EQ(batches.size(), expected.size());
      for (std::size_t i = 0; i < batches.size(); ++i) {
        Batch back{batches[i].names, {}, batches[i].padded_rows};
        for (const at::Tensor& column : batches[i].columns) {
          EXPECT_EQ(column.device(), device);
          back.columns.push_back(column.cpu());
        }
        EXPECT_TRUE(testing::is_same(back, expected[i]));
        EXPECT_EQ(batches[i].mask().device(), device);
      }
    }
  }
}

TEST(ToDevice, MovesEveryColumn) {
  for (const int workers : {0, 2}) {
    DataLoader loader = DataLoader(count_to(5)).batch(2).to(at::Device(at::kMeta));
    if (workers > 0) loader.prefetch(2, workers);
    const auto batches = all_of(*loader.open(0));
    ASSERT_EQ(batches.size(), 3U);
    EXPECT_TRUE(batches[0]["x"].is_meta());
    EXPECT_EQ(batches[2].rows(), 1);
    EXPECT_TRUE(batches[2].mask().is_meta());
  }
}

TEST(ToDevice, IsUndoneByTheCpu) {
  const auto loader =
      DataLoader(count_to(2)).to(at::Device(at::kMeta)).to(at::Device(at::kCPU)).batch(2);
  EXPECT_EQ(testing::rows_of(loader), (Numbers{0, 1}));
}

TEST(ToDevice, RefusesOneThatIsNotThere) {
  EXPECT_THAT(message_of<UsageError>([] { DataLoader(count_to(2)).to(at::Device(at::kCUDA, 99)); }),
              HasSubstr("batches cannot go to cuda:99, which is not there"));
}

}  // namespace
}  // namespace trireme::data
