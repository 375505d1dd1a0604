// SPDX-License-Identifier: Apache-2.0
// The part of PMIx. Its library is the one that the launcher's MPI uses, and is loaded when it is
// needed: a program that runs elsewhere need not have it. Needs PMIx 3 or later.
#include <pmix.h>

#include <trireme/base/error.h>
#include <trireme/launch/store/launcher_exchange.h>

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <future>
#include <memory>
#include <thread>
#include <utility>

namespace trireme::launch {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr std::string_view kKey = "trireme-store";

// The functions of the library.
struct Library {
  decltype(&PMIx_Init) init = nullptr;
  decltype(&PMIx_Put) put = nullptr;
  decltype(&PMIx_Commit) commit = nullptr;
  decltype(&PMIx_Get) get = nullptr;
  decltype(&PMIx_Finalize) finalize = nullptr;
  decltype(&PMIx_Error_string) describe = nullptr;
};

template <typename Function>
void look_up(void* handle, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(handle, name));  // NOLINT(*-reinterpret-cast)
  if (function != nullptr) return;
  throw ConfigError(join_message("the library of PMIx lacks the function ", name),
                    "set MASTER_ADDR and MASTER_PORT on all ranks");
}

const Library& library() {
  static const Library loaded = [] {
    void* handle = nullptr;
    for (const char* name : {"libpmix.so.2", "libpmix.so"}) {
      if (handle == nullptr) handle = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
    }
    if (handle == nullptr) {
      throw ConfigError(
          join_message("the launcher offers PMIx, and its library cannot be loaded: ",
                       ::dlerror()),  // NOLINT(concurrency-mt-unsafe)
          "install libpmix2, or set MASTER_ADDR to the host of rank 0 and "
          "MASTER_PORT to a free port there on all ranks (mpirun -x MASTER_ADDR=host0 "
          "-x MASTER_PORT=29500)");
    }
    Library found;
    look_up(handle, "PMIx_Init", found.init);
    look_up(handle, "PMIx_Put", found.put);
    look_up(handle, "PMIx_Commit", found.commit);
    look_up(handle, "PMIx_Get", found.get);
    look_up(handle, "PMIx_Finalize", found.finalize);
    look_up(handle, "PMIx_Error_string", found.describe);
    return found;
  }();
  return loaded;
}

void check(pmix_status_t status, std::string_view call) {
  if (status == PMIX_SUCCESS) return;
  throw CommError(join_message("the launcher did not pass on where rank 0 is: ", call,
                               " of PMIx: ", library().describe(status)),
                  "set MASTER_ADDR to the host of rank 0 and MASTER_PORT to a free port there on "
                  "all ranks");
}

// Runs `call` on a thread of its own, because PMIx knows no deadlines. Throws CommError at the
// deadline; the thread is then left behind.
template <typename Call>
auto by(Clock::time_point deadline, std::string_view what, Call call) {
  using Result = decltype(call());
  std::packaged_task<Result()> task(std::move(call));
  std::future<Result> result = task.get_future();
  std::thread(std::move(task)).detach();
  if (result.wait_until(deadline) == std::future_status::ready) return result.get();
  throw CommError(join_message("the launcher did not pass on where rank 0 is: ", what,
                               " of PMIx did not return before the deadline (TRIREME_TIMEOUT)"),
                  "every rank must call trireme::init(); otherwise set MASTER_ADDR and MASTER_PORT "
                  "on all ranks");
}

// Open MPI takes a process that ends without this for a crash.
void sign_off() {
  constexpr std::chrono::seconds kPatience{5};
  try {
    by(Clock::now() + kPatience, "PMIx_Finalize", [] { return library().finalize(nullptr, 0); });
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): the launcher is gone
  }
}

void put(const std::string& text) {
  std::string kept = text;
  pmix_value_t value{};
  value.type = PMIX_STRING;
  value.data.string = kept.data();
  check(library().put(PMIX_GLOBAL, std::string(kKey).c_str(), &value), "PMIx_Put");
  check(library().commit(), "PMIx_Commit");
}

// Waits until rank 0 has put it.
std::string get(const pmix_proc_t& rank_0, Clock::time_point deadline) {
  constexpr milliseconds kPause{100};
  while (true) {
    pmix_value_t* value = nullptr;
    const pmix_status_t status =
        library().get(&rank_0, std::string(kKey).c_str(), nullptr, 0, &value);
    if (status == PMIX_SUCCESS && value != nullptr && value->type == PMIX_STRING) {
      return value->data.string;  // the library keeps the value, which is freed with the process
    }
    if (Clock::now() + kPause >= deadline) check(status, "PMIx_Get");
    std::this_thread::sleep_for(kPause);
  }
}

}  // namespace

std::string pass_by_pmix(const Environment& /*environment*/, int rank,
                         const std::function<std::string()>& make, milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  const auto self = std::make_shared<pmix_proc_t>();
  static_cast<void>(library());  // throws here, not on the thread
  check(by(deadline, "PMIx_Init", [self] { return library().init(self.get(), nullptr, 0); }),
        "PMIx_Init");
  static const int registered = std::atexit(sign_off);
  static_cast<void>(registered);
  if (rank == 0) {
    const std::string text = make();
    by(deadline, "PMIx_Commit", [text] {
      put(text);
      return true;
    });
    return text;
  }
  pmix_proc_t rank_0 = *self;
  rank_0.rank = 0;
  return by(deadline, "PMIx_Get", [rank_0, deadline] { return get(rank_0, deadline); });
}

}  // namespace trireme::launch
