// SPDX-License-Identifier: Apache-2.0
#include <trireme/data/class_folders.h>

#include <trireme/base/error.h>

#include <ATen/ops/scalar_tensor.h>
#include <gmock/gmock.h>
#include <tests/temporary_folder.h>

namespace trireme::data {
namespace {

namespace fs = std::filesystem;
using test::message_of;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Texts; the sample is how many bytes the file has.
FileKind texts() {
  return {.description = "texts (.txt)",
          .columns = {"bytes"},
          .is_sample = [](const fs::path& file) { return file.extension() == ".txt"; },
          .load =
              [](const fs::path& file) {
                return std::vector<at::Tensor>{
                    at::scalar_tensor(static_cast<std::int64_t>(fs::file_size(file)), at::kLong)};
              }};
}

std::vector<std::string> files_of(const ClassFolders& set, const fs::path& root) {
  std::vector<std::string> files;
  for (std::int64_t i = 0; i < set.size(); ++i)
    files.push_back(set.file(i).lexically_relative(root).string());
  return files;
}

TEST(ClassFolders, NumbersClassesAndSamplesByName) {
  const test::TemporaryFolder folder;
  folder.write("b/2.txt", "xx");
  folder.write("b/10.txt", "xxx");
  folder.write("Z/1.txt", "x");
  folder.write("b/notes.md", "not a sample");
  folder.write("readme.txt", "in no class");
  const auto set = class_folders(folder.path(), texts());
  EXPECT_THAT(set->classes(), ElementsAre("Z", "b"));
  EXPECT_THAT(set->columns(), ElementsAre("bytes", "label"));
  EXPECT_THAT(files_of(*set, folder.path()), ElementsAre("Z/1.txt", "b/10.txt", "b/2.txt"));
  EXPECT_EQ(set->get(0)[1].item<std::int64_t>(), 0);
  const auto sample = set->get(1);
  EXPECT_EQ(sample[0].item<std::int64_t>(), 3);
  EXPECT_EQ(sample[1].item<std::int64_t>(), 1);
  EXPECT_EQ(sample[1].scalar_type(), at::kLong);
  EXPECT_EQ(sample[1].dim(), 0);
}

// The order of Python's sorted(os.walk(…)): paths of folders are compared as a whole.
TEST(ClassFolders, SortsFoldersBelowAClassAsTorchvisionDoes) {
  const test::TemporaryFolder folder;
  for (const char* name : {"c/a/1.txt", "c/a-b/1.txt", "c/z.txt", "c/a/b/0.txt", "c/a.txt"})
    folder.write(name, "");
  const auto set = class_folders(folder.path(), texts());
  EXPECT_THAT(files_of(*set, folder.path()),
              ElementsAre("c/a.txt", "c/z.txt", "c/a/1.txt", "c/a-b/1.txt", "c/a/b/0.txt"));
}

TEST(ClassFolders, FollowsLinks) {
  const test::TemporaryFolder folder;
  folder.write("elsewhere/1.txt", "x");
  fs::create_directories(folder / "set");
  fs::create_directory_symlink(folder / "elsewhere", folder / "set" / "cat");
  EXPECT_EQ(class_folders(folder / "set", texts())->size(), 1);
}

TEST(ClassFolders, NamesWhatIsMissing) {
  const test::TemporaryFolder folder;
  EXPECT_THAT(message_of<DataError>([&] { class_folders(folder / "none", texts()); }),
              HasSubstr("no folder " + (folder / "none").string()));
  folder.write("loose.txt", "");
  EXPECT_THAT(message_of<DataError>([&] { class_folders(folder.path(), texts()); }),
              AllOf(HasSubstr("no folder in " + folder.path().string()), HasSubstr("each class")));
  folder.write("cat/1.txt", "");
  folder.write("dog/1.png", "");
  EXPECT_THAT(message_of<DataError>([&] { class_folders(folder.path(), texts()); }),
              HasSubstr((folder / "dog").string() + " has no texts (.txt)"));
}

TEST(ClassFolders, NamesALinkThatGoesRoundInCircles) {
  const test::TemporaryFolder folder;
  folder.write("cat/1.txt", "");
  fs::create_directory_symlink("loop", folder / "cat" / "loop");  // to itself
  EXPECT_THAT(message_of<DataError>([&] { class_folders(folder.path(), texts()); }),
              AllOf(HasSubstr((folder / "cat" / "loop").string()), HasSubstr("cannot be listed")));
}

TEST(ClassFolders, RefusesAKindThatCannotBe) {
  const test::TemporaryFolder folder;
  folder.write("cat/1.txt", "");
  FileKind kind = texts();
  kind.load = nullptr;
  EXPECT_THAT(message_of<UsageError>([&] { class_folders(folder.path(), kind); }),
              HasSubstr("a data set of texts (.txt) without a function"));
  kind = texts();
  kind.columns = {"label"};
  EXPECT_THAT(message_of<UsageError>([&] { class_folders(folder.path(), kind); }),
              HasSubstr("'label' is there twice"));
}

TEST(ClassFolders, NeedsATensorForEachColumn) {
  const test::TemporaryFolder folder;
  folder.write("cat/1.txt", "");
  FileKind kind = texts();
  kind.columns = {"bytes", "lines"};
  const auto set = class_folders(folder.path(), kind);
  EXPECT_THAT(message_of<UsageError>([&] { set->get(0); }),
              AllOf(HasSubstr((folder / "cat/1.txt").string()),
                    HasSubstr("returned 1 tensors, expected 2: 'bytes', 'lines'")));
  EXPECT_THAT(message_of<UsageError>([&] { set->file(1); }),
              HasSubstr("sample 1 of a data set of 1 samples"));
}

}  // namespace
}  // namespace trireme::data
