// SPDX-License-Identifier: Apache-2.0
#include <trireme/checkpoint/async_saver.h>

#include <trireme/base/error.h>
#include <trireme/base/exception_text.h>
#include <trireme/base/warning.h>
#include <trireme/checkpoint/copy_on_write.h>
#include <trireme/checkpoint/save_steps.h>
#include <trireme/comm/collectives.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <numeric>
#include <thread>
#include <utility>

namespace trireme::checkpoint {
namespace {

// A group of the same ranks whose collectives cannot mix with those of the training.
comm::Group duplicate(const comm::Group& group) {
  comm::check_given(group, "AsyncSaver");
  std::vector<int> ranks(static_cast<std::size_t>(group.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return group.size() == 1 ? comm::Group::self() : group.subgroup(ranks);
}

}  // namespace

struct AsyncSaver::Impl {
  comm::Group group;
  comm::Group writers;  // The same ranks; its collectives belong to the writing thread.
  AsyncOptions options;
  StagingMemory early;  // Of the copies that are made at once.
  StagingMemory late;   // Of those that are made before tensors change.
  Copying last_copying = Copying::kAtOnce;
  std::shared_ptr<CopyOnWrite> tensors;  // Of the running save, until they may be changed.
  std::atomic<bool> is_writing = false;
  std::exception_ptr failure;  // Set by the writing thread before it ends.
  std::optional<std::filesystem::path> last;
  std::chrono::duration<double> seconds{0};  // The duration of the last successful save.
  std::thread thread;

  Impl(const comm::Group& the_group, AsyncOptions the_options)
      : group(the_group), writers(duplicate(the_group)), options(std::move(the_options)) {}
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl() {
    if (thread.joinable()) thread.join();
  }

  // Removes and returns the message of a failure that was not reported yet.
  std::optional<std::string> take_failure() {
    const std::exception_ptr thrown = std::exchange(failure, nullptr);
    if (!thrown) return std::nullopt;
    return message_of(thrown);
  }

  void wait_and_report() {
    if (thread.joinable()) thread.join();
    tensors.reset();
    if (!options.on_failure) {
      if (const std::exception_ptr thrown = std::exchange(failure, nullptr)) {
        std::rethrow_exception(thrown);
      }
      return;
    }
    if (const auto message = take_failure()) options.on_failure(*message);
  }

  // Ranks may finish at different times, so they must agree whether a save is running.
  bool any_is_writing() const {
    const auto all = comm::all_gather_text(is_writing ? "1" : "0", group);
    return std::ranges::find(all, "1") != all.end();
  }

  // Returns a function with this rank's data for the writing thread, and sets `tensors`. An error
  // here on one rank is rethrown on the writing thread, within a collective step, because the other
  // ranks wait for this one there.
  std::function<Content()> stage_or_fail(const SaveOptions& save,
                                         const std::function<Content()>& make, Copying copying) {
    // Two copies of everything never exist.
    if (std::exchange(last_copying, copying) != copying) early = late = {};
    try {
      Content content = make();
      choose_own(save, group, content);
      tensors = std::make_shared<CopyOnWrite>(content.parts, copying == Copying::kAtOnce, early);
      return [content = std::move(content)] { return content; };
    } catch (...) {
      if (group.size() == 1) throw;
      return [thrown = std::current_exception()]() -> Content { std::rethrow_exception(thrown); };
    }
  }
};

AsyncSaver::AsyncSaver(const comm::Group& group, AsyncOptions options)
    : impl_(std::make_unique<Impl>(group, std::move(options))) {}

AsyncSaver::~AsyncSaver() {
  if (impl_->thread.joinable()) impl_->thread.join();
  const auto message = impl_->take_failure();
  if (!message) return;
  try {
    if (impl_->options.on_failure) {
      impl_->options.on_failure(*message);
      return;
    }
  } catch (...) {  // NOLINT(bugprone-empty-catch): said below
  }
  warn("saving a checkpoint failed: ", *message);
}

bool AsyncSaver::save(const SaveOptions& options, const std::vector<TensorPart>& parts,
                      const State& state, Copying copying) {
  return save(options, [&] { return Content{.parts = parts, .state = state}; }, copying);
}

bool AsyncSaver::save(const SaveOptions& options, const std::function<Content()>& make,
                      Copying copying) {
  Impl& impl = *impl_;
  if (impl.options.when_busy == WhenBusy::kSkip && impl.any_is_writing()) return false;
  impl.wait_and_report();
  const auto began = std::chrono::steady_clock::now();
  auto own = impl.stage_or_fail(options, make, copying);
  // `last`, `seconds` and `failure` are written by the thread and read after join(), or in check()
  // after is_writing is false.
  impl.is_writing = true;
  impl.thread = std::thread([&impl, options, own = std::move(own), tensors = impl.tensors, began] {
    try {
      impl.last = save_own(options, own, impl.writers, {.tensors = tensors.get()});
      impl.seconds = std::chrono::steady_clock::now() - began;
    } catch (...) {
      impl.failure = std::current_exception();
    }
    impl.is_writing = false;
  });
  return true;
}

void AsyncSaver::before_change() noexcept {
  if (impl_->tensors && impl_->is_writing) impl_->tensors->copy_rest(impl_->late);
  impl_->tensors.reset();
}

std::optional<std::filesystem::path> AsyncSaver::finish() {
  impl_->wait_and_report();
  return impl_->last;
}

void AsyncSaver::check() const {
  if (!impl_->is_writing && impl_->failure) std::rethrow_exception(impl_->failure);
}

bool AsyncSaver::is_busy() const { return impl_->is_writing; }

std::chrono::duration<double> AsyncSaver::seconds() const { return impl_->seconds; }

}  // namespace trireme::checkpoint
