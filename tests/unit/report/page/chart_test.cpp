// SPDX-License-Identifier: Apache-2.0
#include <trireme/report/page/chart.h>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

namespace trireme::report {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

Chart two_curves() {
  Chart chart;
  chart.title = "Loss";
  chart.steps = {1, 4};
  chart.num_columns = 4;
  const auto add = [&](const char* name, const char* style, const std::vector<Point>& points) {
    chart.series.push_back({name, style, to_columns(points, chart.steps, chart.num_columns)});
  };
  add("rank 0", "c0", {{1, 4}, {2, 3}, {3, 2}, {4, 1}});
  add("rank 1", "c1", {{1, 2}, {4, 2}});
  return chart;
}

json numbers_of(const std::string& html) {
  const std::string mark = "<script type=\"application/json\">";
  const std::size_t begin = html.find(mark) + mark.size();
  return json::parse(html.substr(begin, html.find("</script>", begin) - begin));
}

std::size_t count_of(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1))
    ++count;
  return count;
}

TEST(Chart, DrawsEachSeriesBetweenItsAxes) {
  const std::string html = to_html(two_curves());
  // Values from 1 to 4, so the axis too: the first point is at the top left, the last below right.
  EXPECT_THAT(html, HasSubstr("<path class=\"line c0\" data-series=\"rank 0\" "
                              "d=\"M0 0L333.3 100L666.7 200L1000 300\"/>"));
  EXPECT_THAT(html,
              HasSubstr("<path class=\"line c1\" data-series=\"rank 1\" d=\"M0 200L1000 200\"/>"));
  EXPECT_THAT(html, HasSubstr("<span style=\"bottom:0.00%\">1</span>"));
  EXPECT_THAT(html, HasSubstr("<span style=\"left:100.00%\">4</span>"));
  EXPECT_THAT(html, Not(HasSubstr("band")));
}

TEST(Chart, CarriesItsNumbersForTheReadOut) {
  const json numbers = numbers_of(to_html(two_curves()));
  EXPECT_THAT(numbers["x"].get<std::vector<double>>(), ElementsAre(1, 2, 3, 4));
  EXPECT_EQ(numbers["series"][0]["name"], "rank 0");
  EXPECT_THAT(numbers["series"][0]["mean"].get<std::vector<double>>(), ElementsAre(4, 3, 2, 1));
  EXPECT_EQ(numbers["series"][1]["mean"], json({2, nullptr, nullptr, 2}));
  EXPECT_FALSE(numbers["series"][0].contains("low"));
}

TEST(Chart, TintsFromTheLowestToTheHighestOfAColumn) {
  Chart chart = two_curves();
  chart.series = {
      {"rank 0", "c0", to_columns(std::vector<Point>{{1, 0}, {2, 4}, {4, 2}}, chart.steps, 2)}};
  const std::string html = to_html(chart);
  EXPECT_THAT(html, HasSubstr("<path class=\"band c0\" data-series=\"rank 0\" "
                              "d=\"M333.3 0L1000 150L1000 150L333.3 300Z\"/>"));
  const json numbers = numbers_of(html);
  EXPECT_THAT(numbers["series"][0]["high"].get<std::vector<double>>(), ElementsAre(4, 2));
  EXPECT_THAT(numbers["series"][0]["low"].get<std::vector<double>>(), ElementsAre(0, 2));
}

TEST(Chart, IsLogarithmicWhereValuesSpanTwoDecadesAndItMay) {
  Chart chart = two_curves();
  chart.may_be_logarithmic = true;
  EXPECT_THAT(to_html(chart), Not(HasSubstr("logarithmic")));
  chart.series[0].columns = to_columns(std::vector<Point>{{1, 100}, {4, 0.5}}, chart.steps, 4);
  EXPECT_THAT(to_html(chart), HasSubstr("<small>logarithmic</small>"));
  chart.series[0].columns = to_columns(std::vector<Point>{{1, 100}, {4, 0}}, chart.steps, 4);
  EXPECT_THAT(to_html(chart), Not(HasSubstr("logarithmic")));
}

TEST(Chart, StacksAreas) {
  Chart chart = two_curves();
  chart.is_stacked = true;
  chart.series[1].columns =
      to_columns(std::vector<Point>{{1, 1}, {2, 2}, {3, 3}, {4, 4}}, chart.steps, 4);
  const std::string html = to_html(chart);  // together 5 everywhere
  EXPECT_THAT(
      html,
      HasSubstr("<path class=\"area c0\" data-series=\"rank 0\" "
                "d=\"M0 60L333.3 120L666.7 180L1000 240L1000 300L666.7 300L333.3 300L0 300Z\"/>"));
  EXPECT_THAT(html,
              HasSubstr("d=\"M0 0L333.3 0L666.7 0L1000 0L1000 240L666.7 180L333.3 120L0 60Z\"/>"));
}

TEST(Chart, OneColumnIsADotOrFillsTheWidth) {
  Chart chart = two_curves();
  chart.steps = {7, 7};
  chart.series = {{"rank 0", "c0", to_columns(std::vector<Point>{{7, 2}}, chart.steps, 4)}};
  const std::string dot = to_html(chart);
  EXPECT_THAT(dot, HasSubstr("<path class=\"mark c0\""));
  EXPECT_THAT(dot, Not(HasSubstr("\"line c0\" data-series")));
  chart.is_stacked = true;
  EXPECT_THAT(to_html(chart), HasSubstr("d=\"M0 0H1000V300H0Z\""));
}

TEST(Chart, WithoutAValueThereIsNone) {
  Chart chart = two_curves();
  chart.series.clear();
  EXPECT_EQ(to_html(chart), "");
  chart.series.push_back({"rank 0", "c0", {}});
  EXPECT_EQ(to_html(chart), "");
}

TEST(Chart, MarksWhatHappenedAtAStep) {
  Chart chart = two_curves();
  chart.events = {{2, "went on", false}, {3, "failure", true}};
  const std::string html = to_html(chart);
  EXPECT_THAT(html, HasSubstr("<path class=\"event\" d=\"M333.3 0V300\"/>"));
  EXPECT_THAT(html, HasSubstr("<path class=\"event failed\" d=\"M666.7 0V300\"/>"));
}

TEST(Chart, NamesOfSeriesStayText) {
  Chart chart = two_curves();
  chart.title = "<b>";
  chart.series[0].name = "\"</script><i>";
  const std::string html = to_html(chart);
  EXPECT_THAT(html, Not(HasSubstr("<i>")));
  EXPECT_THAT(html, Not(HasSubstr("<b>")));
  EXPECT_EQ(count_of(html, "</script>"), 1U);
  EXPECT_EQ(numbers_of(html)["series"][0]["name"], "\"</script><i>");
}

TEST(RankStyle, TellsTwentyEightRanksApart) {
  EXPECT_EQ(rank_style(0), "c0");
  EXPECT_EQ(rank_style(6), "c6");
  EXPECT_EQ(rank_style(7), "c0 d1");
  EXPECT_EQ(rank_style(27), "c6 d3");
}

}  // namespace
}  // namespace trireme::report
