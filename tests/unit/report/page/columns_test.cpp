// SPDX-License-Identifier: Apache-2.0
#include <trireme/report/page/axis.h>

#include <gmock/gmock.h>

#include <cmath>
#include <limits>
#include <vector>

namespace trireme::report {
namespace {

using testing::SizeIs;

TEST(Columns, FewPointsKeepTheirPlacesAndValues) {
  const std::vector<Point> points = {{1, 5, 1}, {4, 2, 3}, {10, 1.1, 1}};
  const auto columns = to_columns(points, {1, 10}, 400);
  ASSERT_THAT(columns, SizeIs(3));
  for (std::size_t index = 0; index < 3; ++index) {
    EXPECT_EQ(columns[index].x, points[index].x);
    EXPECT_EQ(columns[index].mean, points[index].value);
    EXPECT_EQ(columns[index].low, points[index].value);
    EXPECT_EQ(columns[index].high, points[index].value);
  }
  EXPECT_EQ(columns.back().index, 399U);
}

TEST(Columns, ManyPointsKeepMeanAndExtremes) {
  std::vector<Point> points;
  for (int step = 0; step < 1'000'000; ++step) {
    points.push_back({static_cast<double>(step), step == 123'456 ? 1000.0 : 1.0});
  }
  const auto columns = to_columns(points, {0, 999'999}, 100);
  ASSERT_THAT(columns, SizeIs(100));
  EXPECT_EQ(columns[12].high, 1000);
  EXPECT_EQ(columns[12].low, 1);
  EXPECT_NEAR(columns[12].mean, 1.0999, 1e-4);
  EXPECT_EQ(columns[13].high, 1);
  EXPECT_EQ(columns[99].x, 999'999);
}

TEST(Columns, WeighPointsByTheStepsTheyStandFor) {
  const std::vector<Point> points = {{1, 0, 3}, {2, 4, 1}};
  const auto columns = to_columns(points, {0, 10}, 1);
  ASSERT_THAT(columns, SizeIs(1));
  EXPECT_EQ(columns[0].mean, 1);
}

TEST(Columns, LeaveOutWhatIsNotFinite) {
  const std::vector<Point> points = {
      {1, std::nan("")}, {2, std::numeric_limits<double>::infinity()}, {3, 7}};
  EXPECT_THAT(to_columns(points, {1, 3}, 1), SizeIs(1));
  EXPECT_EQ(to_columns(points, {1, 3}, 1)[0].mean, 7);
  EXPECT_THAT(to_columns({}, {1, 3}, 10), SizeIs(0));
}

TEST(Columns, ARangeOfOneStepIsOneColumn) {
  const std::vector<Point> points = {{5, 1}, {5, 3}};
  const auto columns = to_columns(points, {5, 5}, 10);
  ASSERT_THAT(columns, SizeIs(1));
  EXPECT_EQ(columns[0].mean, 2);
}

}  // namespace
}  // namespace trireme::report
