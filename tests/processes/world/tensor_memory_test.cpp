// SPDX-License-Identifier: Apache-2.0
// Where init() lets LibTorch take the memory of tensors, in real processes.
#include <gmock/gmock.h>
#include <tests/processes/shell.h>

#include <string>

namespace trireme {
namespace {

using test::Finished;
using test::shell;
using test::variable;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

const std::string kProgram = variable("TENSOR_MEMORY_PROGRAM");
const std::string kTrireme = variable("TRIREME_BIN") + "/trireme";

#ifdef __SANITIZE_ADDRESS__
TEST(TensorMemory, StaysTheSanitizers) {
  const Finished finished = shell(kProgram);
  EXPECT_EQ(finished.code, 0) << finished.output;
  EXPECT_THAT(finished.output,
              StartsWith("rank 0: LibTorch's own, because malloc is not the C library's"));
}
#else
TEST(TensorMemory, IsAPool) {
  const Finished finished = shell(kProgram);
  EXPECT_EQ(finished.code, 0) << finished.output;
  EXPECT_THAT(finished.output, StartsWith("rank 0: a pool, "));
}

TEST(TensorMemory, IsLittleMoreThanTensorsNeed) {
  const Finished finished = shell(kProgram);
  ASSERT_THAT(finished.output, HasSubstr("a pool, "));
  const auto figure = finished.output.substr(finished.output.find(", ") + 2);
  EXPECT_LT(std::stod(figure), 1.1) << finished.output;
}

TEST(TensorMemory, IsAPoolOnEveryRank) {
  const Finished finished = shell(kTrireme + " run -n 2 --output all -- " + kProgram);
  EXPECT_EQ(finished.code, 0) << finished.output;
  EXPECT_THAT(finished.output, AllOf(HasSubstr("rank 0: a pool"), HasSubstr("rank 1: a pool")));
}

TEST(TensorMemory, IsUsedInPlaceByCollectives) {
  const std::string ranks = kTrireme + " run -n 2 --output all -- " + kProgram;
  const Finished finished = shell(ranks);
  EXPECT_EQ(finished.code, 0) << finished.output;
  EXPECT_THAT(finished.output, HasSubstr(" of what tensors need, used in place"));
  const Finished apart = shell("TRIREME_TENSOR_MEMORY=private " + ranks);
  EXPECT_EQ(apart.code, 0) << apart.output;
  EXPECT_THAT(apart.output, AllOf(HasSubstr("rank 1: a pool, "), HasSubstr(", nothing shared")));
}

TEST(TensorMemory, StaysWhereAddressesAreLimited) {
  const std::string limited = "ulimit -v 4000000; " + kProgram;
  const Finished finished = shell(limited);
  EXPECT_EQ(finished.code, 0) << finished.output;
  EXPECT_THAT(finished.output, StartsWith("rank 0: LibTorch's own, because cannot reserve "));
  const Finished refused = shell("export TRIREME_TENSOR_MEMORY=pool; " + limited);
  EXPECT_EQ(refused.code, 1);
  EXPECT_THAT(refused.output, AllOf(HasSubstr("cannot reserve "),
                                    HasSubstr("hint: raise the limit of addresses (ulimit -v)")));
}

// Any library that has a malloc, here one that hands on to the C library's.
TEST(TensorMemory, StaysWhereSomebodyHasReplacedMalloc) {
  const Finished finished = shell("LD_PRELOAD=" + variable("OTHER_MALLOC") + " " + kProgram);
  EXPECT_EQ(finished.code, 0) << finished.output;
  EXPECT_THAT(finished.output,
              StartsWith("rank 0: LibTorch's own, because malloc is not the C library's"));
}

TEST(TensorMemory, IsNamedByDoctor) {
  EXPECT_THAT(shell(kTrireme + " doctor").output, HasSubstr("ok    tensor memory     a pool\n"));
  EXPECT_THAT(shell("TRIREME_TENSOR_MEMORY=private " + kTrireme + " doctor").output,
              HasSubstr("ok    tensor memory     a pool of private memory\n"));
  EXPECT_THAT(shell("TRIREME_TENSOR_MEMORY=libtorch " + kTrireme + " doctor").output,
              HasSubstr("ok    tensor memory     LibTorch's own: tensor memory is 'libtorch'"));
  EXPECT_THAT(shell("TRIREME_TENSOR_MEMORY=jemalloc " + kTrireme + " doctor").output,
              HasSubstr("BAD   tensor memory     tensor memory (TRIREME_TENSOR_MEMORY) is"));
}
#endif

TEST(TensorMemory, StaysLibTorchsOwnWhereThatIsAsked) {
  const Finished finished = shell("TRIREME_TENSOR_MEMORY=libtorch " + kProgram);
  EXPECT_EQ(finished.code, 0) << finished.output;
  EXPECT_THAT(finished.output,
              StartsWith("rank 0: LibTorch's own, because tensor memory is 'libtorch'"));
}

TEST(TensorMemory, RefusesOtherNames) {
  const Finished finished = shell("TRIREME_TENSOR_MEMORY=jemalloc " + kProgram);
  EXPECT_EQ(finished.code, 1);
  EXPECT_THAT(finished.output,
              HasSubstr("tensor memory (TRIREME_TENSOR_MEMORY) is 'jemalloc', expected auto, "
                        "pool, private or libtorch"));
}

}  // namespace
}  // namespace trireme
