// SPDX-License-Identifier: Apache-2.0
#include <trireme/report/provenance.h>

#include <gmock/gmock.h>
#include <tests/temporary_folder.h>

#include <string>

namespace trireme::report {
namespace {

using testing::HasSubstr;
using testing::Optional;
using trireme::test::TemporaryFolder;

const std::string kCommit = "0123456789abcdef0123456789abcdef01234567";
const std::string kOther = "ffffffffffffffffffffffffffffffffffffffff";

TEST(GitRevision, IsTheCommitOfTheBranch) {
  const TemporaryFolder folder;
  folder.write("tree/.git/HEAD", "ref: refs/heads/main\n");
  folder.write("tree/.git/refs/heads/main", kCommit + "\n");
  folder.write("tree/source/deep/file", "");
  EXPECT_THAT(git_revision(folder / "tree"), Optional(kCommit));
  EXPECT_THAT(git_revision(folder / "tree/source/deep"), Optional(kCommit));
}

TEST(GitRevision, IsFoundWherePackedOrDetached) {
  const TemporaryFolder folder;
  folder.write(".git/HEAD", "ref: refs/heads/main\n");
  folder.write(".git/packed-refs", "# pack-refs with: peeled\n" + kOther +
                                       " refs/heads/main-old\n" + kCommit + " refs/heads/main\n");
  EXPECT_THAT(git_revision(folder.path()), Optional(kCommit));
  folder.write(".git/HEAD", kOther + "\n");
  EXPECT_THAT(git_revision(folder.path()), Optional(kOther));
}

TEST(GitRevision, IsFoundInALinkedWorkTree) {
  const TemporaryFolder folder;
  folder.write("main/.git/refs/heads/topic", kCommit + "\n");
  folder.write("main/.git/worktrees/topic/HEAD", "ref: refs/heads/topic\n");
  folder.write("main/.git/worktrees/topic/commondir", "../..\n");
  folder.write("topic/.git", "gitdir: " + (folder / "main/.git/worktrees/topic").string() + "\n");
  EXPECT_THAT(git_revision(folder / "topic"), Optional(kCommit));
}

TEST(GitRevision, IsNothingWhereThereIsNoneOrItIsDamaged) {
  const TemporaryFolder folder;
  folder.write(".git/HEAD", "ref: refs/heads/main\n");  // before the first commit
  EXPECT_EQ(git_revision(folder.path()), std::nullopt);
  folder.write(".git/refs/heads/main", "not a commit\n");
  EXPECT_EQ(git_revision(folder.path()), std::nullopt);
  folder.write("outside", kCommit);
  folder.write(".git/HEAD", "ref: ../outside\n");
  EXPECT_EQ(git_revision(folder.path()), std::nullopt);
}

TEST(CommandLine, IsWhatWasTyped) { EXPECT_THAT(command_line(), HasSubstr("report_test")); }

}  // namespace
}  // namespace trireme::report
