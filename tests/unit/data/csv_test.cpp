// SPDX-License-Identifier: Apache-2.0
#include <trireme/data/csv.h>

#include <trireme/base/error.h>

#include <gmock/gmock.h>
#include <tests/temporary_folder.h>

#include <cmath>
#include <limits>

namespace trireme::data {
namespace {

using test::message_of;
using test::write_file;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Sizes = std::vector<std::int64_t>;

constexpr std::string_view kIris =
    "length,width,species\n"
    "5.1,3.5,0\n"
    "6.25,-2,1\n"
    "7e1,+3.25,2\n";

class Csv : public ::testing::Test {
 protected:
  std::filesystem::path write(std::string_view text) {
    write_file(path_, text);
    return path_;
  }

  // The numbers of the only column of a file without a header.
  std::vector<double> column_of(std::string_view text, CsvOptions options = {.has_header = false}) {
    const auto set = csv(write(text), {{"x", {"0"}, at::kDouble}}, options);
    const at::Tensor& rows = set->stored()[0];
    return {rows.const_data_ptr<double>(), rows.const_data_ptr<double>() + rows.numel()};
  }

  std::string error_of(std::string_view text, const std::vector<CsvColumn>& columns = {},
                       CsvOptions options = {}) {
    write(text);
    return message_of<DataError>([&] { csv(path_, columns, options); });
  }

  test::TemporaryFolder folder_;
  std::filesystem::path path_ = folder_ / "iris.csv";
};

TEST_F(Csv, GivesEachFieldAsAColumnByDefault) {
  const auto set = csv(write(kIris));
  EXPECT_THAT(set->columns(), ElementsAre("length", "width", "species"));
  ASSERT_EQ(set->size(), 3);
  const auto sample = set->get(2);
  EXPECT_EQ(sample[0].scalar_type(), at::kFloat);
  EXPECT_EQ(sample[0].dim(), 0);
  EXPECT_EQ(sample[0].item<float>(), 70);
  EXPECT_EQ(sample[1].item<float>(), 3.25F);
  EXPECT_EQ(set->get(0)[0].item<float>(), 5.1F);
}

TEST_F(Csv, PutsFieldsTogetherInTheOrderAskedFor) {
  const auto set = csv(write(kIris), {{"label", {"species"}, at::kLong},
                                      {"features", {"width", "length"}, at::kDouble},
                                      {"species", {}, at::kLong}});
  EXPECT_THAT(set->columns(), ElementsAre("label", "features", "species"));
  const auto sample = set->get(1);
  EXPECT_EQ(sample[0].sizes(), (Sizes{1}));  // listed
  EXPECT_EQ(sample[1].sizes(), (Sizes{2}));
  EXPECT_EQ(sample[1][0].item<double>(), -2);
  EXPECT_EQ(sample[1][1].item<double>(), 6.25);
  EXPECT_EQ(sample[2].dim(), 0);
  EXPECT_EQ(sample[2].scalar_type(), at::kLong);
  EXPECT_EQ(sample[2].item<std::int64_t>(), 1);
  EXPECT_EQ(set->stored().size(), 3);
}

TEST_F(Csv, NumbersTheFieldsWhereThereIsNoHeader) {
  const auto set = csv(write("1,2\n3,4"), {}, {.has_header = false});
  EXPECT_THAT(set->columns(), ElementsAre("0", "1"));
  ASSERT_EQ(set->size(), 2);
  EXPECT_EQ(set->get(1)[1].item<float>(), 4);
}

TEST_F(Csv, LooksOnlyAtTheFieldsThatAreAskedFor) {
  write("name,x\n\"a, b\",1\n,2\n\"say \"\"c\"\"\", 3\n");
  const auto set = csv(path_, {{"x"}});
  ASSERT_EQ(set->size(), 3);
  EXPECT_EQ(set->get(2)[0].item<float>(), 3);
}

TEST_F(Csv, TakesLineEndsQuotesSpacesAndSeparatorsOfOtherPrograms) {
  EXPECT_THAT(column_of("1\r\n2\r\n"), ElementsAre(1, 2));
  EXPECT_THAT(column_of("\xEF\xBB\xBF"
                        "1\n\n  \n2\n\n"),
              ElementsAre(1, 2));
  EXPECT_THAT(column_of(" 1 ,7\n\t\"2\" ,7\n\" 3\",7\n", {.has_header = false}).size(), 3);
  EXPECT_THAT(column_of("1;x\n2;y\n", {.separator = ';', .has_header = false}), ElementsAre(1, 2));
  EXPECT_THAT(column_of("1\t\"x\"\n2\t\n", {.separator = '\t', .has_header = false}),
              ElementsAre(1, 2));
  const auto tabs = csv(write("a\tb\n\t\"5\"\n"), {{"b"}}, {.separator = '\t'});
  EXPECT_EQ(tabs->get(0)[0].item<float>(), 5);  // the first field is empty
  const auto quoted = csv(write("\"a,\"\"1\"\"\", b \n5,6\n"), {{"a,\"1\""}, {"b"}});
  EXPECT_EQ(quoted->get(0)[1].item<float>(), 6);
}

TEST_F(Csv, ReadsEveryWayToWriteANumber) {
  const std::vector<double> read = column_of("-0.5\n+.25\n1e-3\n1E+2\n12.\ninf\n-inf\nnan\n");
  ASSERT_EQ(read.size(), 8);
  EXPECT_EQ(read[0], -0.5);
  EXPECT_EQ(read[1], 0.25);
  EXPECT_EQ(read[2], 0.001);
  EXPECT_EQ(read[3], 100);
  EXPECT_EQ(read[4], 12);
  EXPECT_EQ(read[5], std::numeric_limits<double>::infinity());
  EXPECT_EQ(read[6], -std::numeric_limits<double>::infinity());
  EXPECT_TRUE(std::isnan(read[7]));
  const auto exact = csv(write("9007199254740993\n-9223372036854775808\n"), {{"0", {}, at::kLong}},
                         {.has_header = false});
  EXPECT_EQ(exact->get(0)[0].item<std::int64_t>(), 9007199254740993);
  EXPECT_EQ(exact->get(1)[0].item<std::int64_t>(), std::numeric_limits<std::int64_t>::min());
}

TEST_F(Csv, TakesAHeaderWithoutSamples) {
  EXPECT_EQ(csv(write("x,y\n"))->size(), 0);
  EXPECT_EQ(csv(write("x,y"))->size(), 0);
}

TEST_F(Csv, NamesFileLineAndFieldOfWhatIsNoNumber) {
  const std::string place = path_.string() + ": line 3, field 1 ('width'): ";
  const auto error = [&](const std::string& text, at::ScalarType dtype = at::kFloat) {
    return error_of("length,width\n1,2\n3," + text + "\n", {{"width", {}, dtype}});
  };
  for (const std::string text : {"abc", "1.5x", "0x10", "++1", "+-1", "+", "1 2", "1.5.2", "-"})
    EXPECT_THAT(error(text), HasSubstr(place + "'" + text + "' is not a number"));
  EXPECT_THAT(error(""), HasSubstr(place + "it is empty"));
  EXPECT_THAT(error("\"\""), HasSubstr(place + "it is empty"));
  EXPECT_THAT(error("2.5", at::kLong), HasSubstr(place + "'2.5' is not an integer"));
  EXPECT_THAT(error("9223372036854775808", at::kLong),
              HasSubstr(place + "9223372036854775808 does not fit into Long"));
  EXPECT_THAT(error("1e39"), HasSubstr(place + "1e39 does not fit into Float"));
  EXPECT_THAT(error("1e309", at::kDouble), HasSubstr(place + "1e309 does not fit into Double"));
  EXPECT_THAT(error("-1e-60"), HasSubstr(place + "-1e-60 does not fit into Float"));
  EXPECT_THAT(error("1e-400", at::kDouble), HasSubstr(place + "1e-400 does not fit into Double"));
}

TEST_F(Csv, CountsEmptyLinesToo) {
  EXPECT_THAT(error_of("x\n\n\n1\n?\n"), HasSubstr(": line 5, field 0 ('x'): '?'"));
  EXPECT_THAT(error_of("?\n", {}, {.has_header = false}),
              HasSubstr(": line 1, field 0 ('0'): '?'"));
}

TEST_F(Csv, RefusesLinesOfOtherLength) {
  EXPECT_THAT(error_of("a,b\n1,2\n1\n"),
              HasSubstr(path_.string() + ": line 3 has 1 fields, but the first line has 2"));
  EXPECT_THAT(error_of("1,2\n1,2,\n", {}, {.has_header = false}), HasSubstr("line 2 has 3 fields"));
}

TEST_F(Csv, RefusesQuotesThatDoNotGoAroundAField) {
  EXPECT_THAT(error_of("a,b\n1,\"2\n"),
              HasSubstr(path_.string() + ": line 2, field 1: its quotes do not end on this line"));
  EXPECT_THAT(error_of("a,b\n\"1\"5,2\n"),
              HasSubstr(": line 2, field 0: it goes on after its closing quote"));
}

TEST_F(Csv, NamesFieldsThatAreNotThereOrTwice) {
  EXPECT_THAT(error_of(kIris, {{"petal"}}),
              HasSubstr(path_.string() +
                        ": no field 'petal'; the fields are 'length', 'width', 'species'"));
  EXPECT_THAT(error_of(kIris, {{"x", {"length", "petal"}}}), HasSubstr("no field 'petal'"));
  EXPECT_THAT(error_of("a,a\n1,2\n"), HasSubstr(": the header has the field 'a' 2 times"));
}

TEST_F(Csv, RefusesAFileThatIsMissingOrEmpty) {
  EXPECT_THAT(message_of<DataError>([&] { csv(path_); }), HasSubstr("no file " + path_.string()));
  EXPECT_THAT(error_of(""), AllOf(HasSubstr(path_.string() + " has no line"), HasSubstr("header")));
  EXPECT_THAT(error_of("\n \n", {}, {.has_header = false}), HasSubstr("has no line"));
}

TEST_F(Csv, RefusesOtherDtypesAndColumnsOfTheSameName) {
  write(kIris);
  EXPECT_THAT(message_of<UsageError>([&] { csv(path_, {{"width", {}, at::kByte}}); }),
              HasSubstr("the column 'width' of a CSV file as Byte"));
  EXPECT_THAT(message_of<UsageError>([&] { csv(path_, {{"width"}, {"width"}}); }),
              HasSubstr("'width' is there twice"));
}

}  // namespace
}  // namespace trireme::data
