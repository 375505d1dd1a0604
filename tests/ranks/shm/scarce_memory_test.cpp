// SPDX-License-Identifier: Apache-2.0
// Sends and receives of a rank that has no memory left: messages come once and whole, or all ranks
// learn that the group has ended.
#include <trireme/base/error.h>

#include <gmock/gmock.h>
#include <tests/ranks/shm/thread_ranks.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <new>
#include <string>
#include <vector>

namespace {

// The allocations of this thread that still succeed before one fails; negative: all succeed.
thread_local int allocations_left = -1;

void* allocate(std::size_t bytes) {
  const bool fails = allocations_left == 0;
  if (allocations_left >= 0) --allocations_left;
  if (fails) throw std::bad_alloc();
  void* const memory = std::malloc(bytes == 0 ? 1 : bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

void* operator new(std::size_t bytes) { return allocate(bytes); }
void* operator new[](std::size_t bytes) { return allocate(bytes); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t /*bytes*/) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t /*bytes*/) noexcept { std::free(memory); }

namespace trireme::shm {
namespace {

using ::testing::HasSubstr;

constexpr int kMostAllocations = 60;
constexpr std::int64_t kEnd = 9;  // the tag of a message that nobody sends after a failure

// Makes the allocation after `count` others fail in `call`. Calls it again if it did nothing then.
template <typename Call>
auto with_one_failure(int count, const Call& call) {
  allocations_left = count;
  try {
    auto result = call();
    allocations_left = -1;
    return result;
  } catch (const std::bad_alloc&) {
    allocations_left = -1;
    return call();
  } catch (...) {
    allocations_left = -1;
    throw;
  }
}

void expect_whole(const std::vector<std::uint32_t>& received, std::uint32_t value) {
  EXPECT_EQ(received, std::vector<std::uint32_t>(received.size(), value));
}

// What a rank throws in a test of this file, as a text.
std::string text_of(const std::exception_ptr& exception) {
  if (!exception) return "";
  try {
    std::rethrow_exception(exception);
  } catch (const CommError& error) {
    return error.what();
  } catch (const std::exception& error) {
    return std::string("not a CommError: ") + error.what();
  }
}

// A message was lost or delivered twice, or the rest of one was taken for the next.
TEST(ScarceMemory, LosesNoMessageAndDeliversNoneTwice) {
  for (int count = 0; count < kMostAllocations; ++count) {
    const auto thrown = test::run_ranks_catching(3, [&](Communicator& group) {
      PointToPoint& mail = group.point_to_point();
      const std::size_t ring = group.member().layout().mailbox_bytes;
      const std::array<std::size_t, 3> lengths = {10, 20, ring};  // the last does not fit
      if (group.rank() > 0) {
        std::vector<std::vector<std::uint32_t>> messages;
        std::vector<std::shared_ptr<Transfer>> sent;
        for (std::uint32_t tag = 0; tag < lengths.size(); ++tag) {
          messages.emplace_back(lengths[tag], tag);
          sent.push_back(mail.send(messages[tag].data(), messages[tag].size() * 4, 0, tag));
        }
        for (const auto& transfer : sent) mail.wait(*transfer);
        mail.wait(*mail.receive(nullptr, 0, 0, kEnd));
        return;
      }
      for (const std::uint32_t tag : {1U, 2U, 0U}) {  // the first is set aside
        for (const int source : {1, 2}) {
          std::vector<std::uint32_t> received(lengths[tag]);
          const auto transfer = with_one_failure(count, [&] {
            return mail.receive(received.data(), received.size() * 4, source, tag);
          });
          mail.wait(*transfer);
          expect_whole(received, tag);
        }
      }
      for (const int peer : {1, 2}) mail.wait(*mail.send(nullptr, 0, peer, kEnd));
    });
    const bool has_failed = thrown[0] != nullptr;
    for (const std::exception_ptr& exception : thrown) {
      const std::string text = text_of(exception);
      if (has_failed) {
        EXPECT_THAT(text, HasSubstr("there is no memory to ")) << count;
      } else {
        EXPECT_EQ(text, "") << count;
      }
    }
  }
}

}  // namespace
}  // namespace trireme::shm
