// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/pipeline/devices/workers.h>

#include <trireme/base/environment.h>
#include <trireme/base/error.h>
#include <trireme/base/exception_text.h>
#include <trireme/comm/engine.h>
#include <trireme/comm/engines/threads/streams.h>
#include <trireme/comm/engines/threads/threads.h>
#include <trireme/comm/tensor_memory.h>
#include <trireme/parallel/module/agreement.h>

#include <ATen/Parallel.h>
#include <ATen/ThreadLocalState.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <algorithm>
#include <utility>

namespace trireme::pipeline {
namespace {

// Adds this thread's current streams of the devices. The CPU has none.
void add_current_streams(std::span<const at::Device> devices, std::vector<c10::Stream>& streams) {
  for (const at::Device device : devices) {
    if (!comm::threads::has_streams(device)) continue;
    streams.push_back(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  }
}

bool is_of_another_rank(const std::exception_ptr& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const CommError&) {
    return true;
  } catch (...) {
    return false;
  }
}

}  // namespace

Workers::Workers(std::vector<at::Device> devices)
    : devices_(std::move(devices)), thrown_(devices_.size()) {
  // at::set_num_threads() sets the number of this thread and the default of new threads. So it is
  // set again below, after all workers have set theirs.
  const int before = at::get_num_threads();
  const auto on_processor = static_cast<int>(
      std::ranges::count_if(devices_, [](auto device) { return device.is_cpu(); }));
  for (int rank = 0; rank < size(); ++rank) {
    const int share = device(rank).is_cpu() ? std::max(1, before / on_processor) : before;
    threads_.emplace_back([this, rank, share] { live(rank, share); });
  }
  run([](int /*rank*/) {});  // returns when all workers have set their number of threads
  at::set_num_threads(before);
}

Workers::~Workers() {
  {
    const std::scoped_lock lock(mutex_);
    is_over_ = true;
  }
  begins_.notify_all();
}

void Workers::live(int rank, int num_threads) {
  at::set_num_threads(num_threads);
  std::uint64_t seen = 0;
  while (true) {
    const std::function<void(int)>* body = nullptr;
    {
      std::unique_lock lock(mutex_);
      begins_.wait(lock, [&] { return is_over_ || round_ != seen; });
      if (is_over_) return;
      seen = round_;
      body = body_;
    }
    std::exception_ptr thrown;
    try {
      (*body)(rank);
    } catch (...) {
      thrown = std::current_exception();
    }
    {
      const std::scoped_lock lock(mutex_);
      thrown_[static_cast<std::size_t>(rank)] = thrown;
      --num_running_;
    }
    ends_.notify_one();
  }
}

void Workers::run(const std::function<void(int)>& body, std::span<const at::Device> others) {
  const at::ThreadLocalState state;
  std::vector<c10::Stream> streams;
  add_current_streams(devices_, streams);
  add_current_streams(others, streams);
  const std::function<void(int)> here = [&](int rank) {
    const at::ThreadLocalStateGuard surroundings(state);
    const comm::threads::CurrentStreams on_streams(streams);
    try {
      if (comm::threads::has_streams(device(rank))) {
        const c10::DeviceGuard on_device(device(rank));
        body(rank);
      } else {
        body(rank);
      }
    } catch (const std::exception& error) {
      if (!groups_.empty())
        detail::abort(groups_[static_cast<std::size_t>(rank)], message_of(error));
      throw;
    }
  };
  std::vector<std::exception_ptr> thrown;
  {
    std::unique_lock lock(mutex_);
    body_ = &here;
    ++round_;
    num_running_ = size();
    begins_.notify_all();
    ends_.wait(lock, [&] { return num_running_ == 0; });
    thrown = std::exchange(thrown_, std::vector<std::exception_ptr>(devices_.size()));
  }
  // A CommError is usually the echo of another rank's failure, so other exceptions are preferred.
  std::erase(thrown, nullptr);
  if (thrown.empty()) return;
  groups_.clear();
  const auto own = std::ranges::find_if_not(thrown, is_of_another_rank);
  std::rethrow_exception(own == thrown.end() ? thrown.front() : *own);
}

const comm::Group& Workers::group(int rank) {
  if (groups_.empty()) connect();
  return groups_[static_cast<std::size_t>(rank)];
}

void Workers::connect() {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const Settings settings = Settings::from(Environment::of_process());
  comm::choose_tensor_memory(settings.tensor_memory);  // the program may not have called init()
  std::vector<comm::Group> groups(devices_.size());
  run([&](int rank) {
    const comm::EngineContext context = {.store = store,
                                         .rank = rank,
                                         .size = size(),
                                         .group_name = "devices of this process",
                                         .timeout = settings.timeout};
    groups[static_cast<std::size_t>(rank)] =
        size() > 1 ? comm::connect(comm::threads_engine(), context) : comm::Group::self();
  });
  groups_ = std::move(groups);
  ++num_groups_;
}

}  // namespace trireme::pipeline
