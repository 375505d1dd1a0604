// SPDX-License-Identifier: Apache-2.0
#include <trireme/base/exception_text.h>

#include <trireme/base/error.h>

#include <gmock/gmock.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <thread>

namespace trireme {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

// As c10::Error has them.
constexpr const char* kWithFrames =
    "mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)\n"
    "Exception raised from meta at LinearAlgebra.cpp:196 (most recent call first):\n"
    "frame #0: c10::Error::Error(...) + 0x60 (0x7f in libc10.so)\n"
    "frame #1: <unknown function> + 0x2a (0x7f in libtorch_cpu.so)\n";

template <typename Outer, typename Inner>
std::exception_ptr nested(const Outer& outer, const Inner& inner) {
  try {
    try {
      throw inner;  // NOLINT(bugprone-std-exception-baseclass): anything may be thrown
    } catch (...) {
      std::throw_with_nested(outer);
    }
  } catch (...) {
    return std::current_exception();
  }
}

TEST(MessageOf, HasNoStackFrames) {
  EXPECT_EQ(trireme::message_of(std::runtime_error(kWithFrames)),
            "mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)");
  EXPECT_EQ(trireme::message_of(std::runtime_error("no frames")), "no frames");
}

TEST(MessageOf, KeepsWhatStandsBehindTheFrames) {
  EXPECT_EQ(trireme::message_of(std::runtime_error(std::string(kWithFrames) + "  hint: look")),
            "mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)\n  hint: look");
}

TEST(MessageOf, HasStackFramesWhereTheyAreAskedFor) {
  ::setenv("TRIREME_STACK", "1", 1);
  EXPECT_EQ(trireme::message_of(std::runtime_error(kWithFrames)), kWithFrames);
  ::unsetenv("TRIREME_STACK");
}

TEST(MessageOf, SaysOnceWhatIsNested) {
  EXPECT_EQ(trireme::message_of(nested(std::runtime_error("outer"), std::runtime_error("inner"))),
            "outer; because: inner");
  EXPECT_EQ(
      trireme::message_of(nested(DataError("sample 3: no file", ""), DataError("no file", ""))),
      "sample 3: no file");
  EXPECT_EQ(trireme::message_of(nested(std::runtime_error("outer"), 3)),
            "outer; because: an exception that is no std::exception");
  EXPECT_EQ(
      trireme::message_of(nested(std::runtime_error("outer"), std::runtime_error(kWithFrames))),
      "outer; because: mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)");
}

// Runs in the process that a death test starts.
[[noreturn]] void throw_uncaught(const std::exception_ptr& exception) {
  show_uncaught_exceptions();
  std::thread([&] { std::rethrow_exception(exception); }).join();
  std::exit(0);
}

TEST(UncaughtException, IsShownAsItIsMeant) {
  const auto error = nested(DataError("sample 3: no file", "fix it"), std::runtime_error("other"));
  EXPECT_EXIT(
      throw_uncaught(error), testing::KilledBySignal(SIGABRT),
      AllOf(ContainsRegex("^[^ ]+: uncaught trireme::DataError: sample 3: no file\n  hint: fix it\n"
                          "  because of std::runtime_error: other\n$"),
            Not(HasSubstr("_Nested_exception"))));
}

TEST(UncaughtException, HasNoStackFrames) {
  EXPECT_EXIT(throw_uncaught(std::make_exception_ptr(std::runtime_error(kWithFrames))),
              testing::KilledBySignal(SIGABRT),
              AllOf(ContainsRegex(
                        "std::runtime_error: mat1 and mat2 shapes[^\n]*\n  hint: TRIREME_STACK=1 "),
                    Not(HasSubstr("frame"))));
}

TEST(UncaughtException, LeavesWhatWasPrintedBefore) {
  const auto print_and_fail = [] {
    if (::dup2(STDERR_FILENO, STDOUT_FILENO) < 0) std::_Exit(2);
    std::setvbuf(stdout, nullptr, _IOFBF, 4096);
    std::printf("the line before; ");
    throw_uncaught(std::make_exception_ptr(UsageError("wrong", "")));
  };
  EXPECT_EXIT(print_and_fail(), testing::KilledBySignal(SIGABRT),
              ContainsRegex("the line before; [^ ]+: uncaught trireme::UsageError: wrong"));
}

TEST(UncaughtException, IsShownWhereNobodyReadsTheOutput) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "std::abort() of the thread sanitizer writes what stdout holds";
#endif
  const auto fail_without_reader = [] {
    std::array<int, 2> ends{};
    if (::pipe(ends.data()) != 0 || ::dup2(ends[1], STDOUT_FILENO) < 0) std::_Exit(2);
    ::close(ends[0]);
    std::printf("the line before");
    throw_uncaught(std::make_exception_ptr(UsageError("wrong", "")));
  };
  EXPECT_EXIT(fail_without_reader(), testing::KilledBySignal(SIGABRT),
              HasSubstr("uncaught trireme::UsageError: wrong"));
}

TEST(UncaughtException, OfAnUnknownTypeIsLeftToTheHandlerBefore) {
  EXPECT_EXIT(throw_uncaught(std::make_exception_ptr(3)), testing::KilledBySignal(SIGABRT),
              HasSubstr("'int'"));
}

TEST(UncaughtException, IsSeenByTheHandlerOfTheProgramAfterwards) {
  const auto with_own_handler = [] {
    std::set_terminate([] { std::_Exit(7); });
    throw_uncaught(std::make_exception_ptr(UsageError("wrong", "")));
  };
  EXPECT_EXIT(with_own_handler(), testing::ExitedWithCode(7), HasSubstr("UsageError: wrong\n"));
}

TEST(UncaughtException, InManyThreadsAtOnceIsShownOnce) {
  const auto in_threads = [] {
    show_uncaught_exceptions();
    const auto fail = [] { throw UsageError("wrong", ""); };
    std::thread first(fail);
    std::thread second(fail);
    first.join();
    second.join();
  };
  EXPECT_EXIT(in_threads(), testing::KilledBySignal(SIGABRT),
              Not(ContainsRegex("wrong(.|\n)*wrong")));
}

TEST(UncaughtException, CanBeLeftToAnotherHandler) {
  const auto replaced = [] {
    show_uncaught_exceptions();
    std::set_terminate([] { std::_Exit(7); });
    throw_uncaught(std::make_exception_ptr(UsageError("wrong", "")));
  };
  EXPECT_EXIT(replaced(), testing::ExitedWithCode(7), Not(HasSubstr("wrong")));
}

}  // namespace
}  // namespace trireme
