// SPDX-License-Identifier: Apache-2.0
#include <trireme/data/text/sentences.h>

#include <trireme/base/error.h>

#include <gmock/gmock.h>
#include <tests/temporary_folder.h>

namespace trireme::data {
namespace {

using test::message_of;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(ReadDocuments, TakesLinesAsSentencesAndEmptyLinesAsTheEndOfADocument) {
  const test::TemporaryFolder folder;
  const auto file = folder.write(
      "text", "\n One. \r\nTwo! Two again.\n\n\n \t\nThree\xe2\x80\x83\n\nvierte \xc3\xa4\n");
  EXPECT_THAT(read_documents(file, TextForm::kSentences),
              ElementsAre(ElementsAre("One.", "Two! Two again."), ElementsAre("Three"),
                          ElementsAre("vierte \xc3\xa4")));
  EXPECT_THAT(read_documents(folder.write("empty", "\n\n"), TextForm::kSentences), IsEmpty());
  EXPECT_THAT(read_documents(folder.write("nothing", ""), TextForm::kSentences), IsEmpty());
}

TEST(ReadDocuments, FindsSentencesInProse) {
  const test::TemporaryFolder folder;
  const auto file = folder.write(
      "prose", "A first\nsentence. And a\nsecond\n\nNext paragraph.\n\n\nNext chapter. End");
  EXPECT_THAT(read_documents(file, TextForm::kProse),
              ElementsAre(ElementsAre("A first sentence.", "And a second", "Next paragraph."),
                          ElementsAre("Next chapter.", "End")));
}

TEST(ReadDocuments, NamesFileAndLineOfWhatIsNotUtf8) {
  const test::TemporaryFolder folder;
  const auto file = folder.write("text", "good\n\nbad \xff\n");
  for (const TextForm form : {TextForm::kSentences, TextForm::kProse}) {
    EXPECT_THAT(message_of<DataError>([&] { read_documents(file, form); }),
                AllOf(HasSubstr(file.string() + ": line 3 is not UTF-8"), HasSubstr("iconv")));
  }
  EXPECT_THAT(message_of<DataError>([&] { read_documents(folder / "gone", TextForm::kSentences); }),
              HasSubstr((folder / "gone").string()));
}

TEST(SplitSentences, EndsAfterMarksAndWhatClosesWithThem) {
  EXPECT_THAT(split_sentences("One. Two!  \"Three?\" (Four.) five"),
              ElementsAre("One.", "Two!", "\"Three?\"", "(Four.)", "five"));
  EXPECT_THAT(split_sentences("Version 1.5 of a.b is out... Yes"),
              ElementsAre("Version 1.5 of a.b is out...", "Yes"));
  EXPECT_THAT(split_sentences("Er sagte: \xc2\xbbJa.\xc2\xab Gut."),
              ElementsAre("Er sagte: \xc2\xbbJa.\xc2\xab", "Gut."));
  EXPECT_THAT(split_sentences(" \t "), IsEmpty());
}

}  // namespace
}  // namespace trireme::data
