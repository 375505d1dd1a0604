// SPDX-License-Identifier: Apache-2.0
#include <trireme/predict/memory_walk.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>

namespace trireme::predict {
namespace {

// What a walk knows about a call.
struct Note {
  std::uint64_t walk = 0;      // the walk that it belongs to
  double bytes = 0;            // of the result here
  int region = -1;             // of recomputed calls
  int last_read = -1;          // the last call that reads the result
  int last_forward_read = -1;  // the same of forward
  bool is_read_by_backward = false;
  bool is_region_input = false;
  bool is_own = false;       // of the stage
  bool is_received = false;  // of another stage, and its result has come
  bool is_live = false;      // the result has memory
};

// Notes by call. Each thread keeps one vector for all of its walks, because a stage of many has few
// of the calls of a record.
class Notes {
 public:
  explicit Notes(const ModuleRecord& record) : record_(record) {
    thread_local std::vector<Note> of_thread;
    thread_local std::uint64_t num_walks = 0;
    of_thread.resize(std::max(of_thread.size(), record.calls.size()));
    notes_ = of_thread.data();
    walk_ = ++num_walks;
  }

  Note& operator[](int call) {
    Note& note = notes_[static_cast<std::size_t>(call)];
    if (note.walk != walk_) note = {.walk = walk_, .bytes = record_.call(call).result_bytes};
    return note;
  }

 private:
  const ModuleRecord& record_;
  Note* notes_ = nullptr;
  std::uint64_t walk_ = 0;
};

class MemoryWalk {
 public:
  MemoryWalk(const ModuleRecord& record, const StageWork& stage, GradientMemory gradients,
             CachingAllocator* allocator)
      : record_(record),
        stage_(stage),
        gradients_(gradients),
        allocator_(allocator),
        notes_(record),
        is_rebuilt_(stage.regions.size(), false) {
    // A stage receives only those bytes of other stages that it reads.
    for (const auto& [call, bytes] : stage.received) notes_[call].bytes = bytes;
    for (std::size_t i = 0; i < stage.regions.size(); ++i) {
      for (int call = stage.regions[i].first; call <= stage.regions[i].last; ++call) {
        notes_[call].region = static_cast<int>(i);
      }
    }
    for (const auto* calls : {&stage.forward, &stage.backward}) {
      for (const int call : *calls) {
        notes_[call].is_own = true;
        for (const int read : record.call(call).reads) note_read(read, call);
      }
    }
  }

  ActivationMemory run(double after_backward) {
    ActivationMemory memory;
    for (const int call : stage_.forward) {
      receive(call);
      make(call);
      note_peak(call, memory.forward_peak, memory);
      for (const int read : record_.call(call).reads) free_after_forward(read, call);
      free_after_forward(call, call);
    }
    memory.kept = now_;
    memory.by_module = modules();
    memory.backward_peak = now_;
    for (const int call : stage_.backward) {
      rebuild(record_.call(call).forward_call);
      rematerialize(call);
      receive(call);
      make(call);
      const double gradient = record_.call(call).gradient_bytes;
      now_ += gradient;
      made_gradients_ += gradient;
      if (allocator_ != nullptr) allocator_->allocate(name_of_gradient(call), gradient);
      note_peak(call, memory.backward_peak, memory);
      if (gradients_ == GradientMemory::kReserved) {
        now_ -= gradient;
        made_gradients_ = 0;
        if (allocator_ != nullptr) allocator_->free(name_of_gradient(call));
      }
      for (const int read : record_.call(call).reads) free_after_backward(read, call);
      free_after_backward(call, call);
    }
    note_end(after_backward, memory);
    return memory;
  }

 private:
  // Results have the numbers of their calls.
  static std::int64_t name_of_gradient(int call) { return -1 - static_cast<std::int64_t>(call); }

  bool is_forward(int call) const { return call < record_.num_forward; }

  void note_read(int read, int reader) {
    Note& note = notes_[read];
    note.last_read = std::max(note.last_read, reader);
    if (!is_forward(reader)) {
      note.is_read_by_backward = true;
      return;
    }
    note.last_forward_read = std::max(note.last_forward_read, reader);
    // Regions read their inputs again when they are recomputed.
    const int region = notes_[reader].region;
    if (region >= 0 && note.region != region) note.is_region_input = true;
  }

  // Whether forward keeps the result of a call for backward.
  bool is_kept(int call) {
    const Note& note = notes_[call];
    if (note.is_region_input) return true;
    return note.is_read_by_backward && note.region < 0 && !record_.call(call).is_rematerialized;
  }

  void make(int call) {
    Note& note = notes_[call];
    if (note.bytes <= 0 || note.is_live) return;
    note.is_live = true;
    made_.push_back(call);
    now_ += note.bytes;
    if (allocator_ != nullptr) allocator_->allocate(call, note.bytes);
  }

  // Results of other stages arrive when they are read first.
  void receive(int reader) {
    for (const int read : record_.call(reader).reads) {
      Note& note = notes_[read];
      if (note.is_own || note.is_received) continue;
      note.is_received = true;
      make(read);
    }
  }

  void drop(int call) {
    Note& note = notes_[call];
    if (!note.is_live) return;
    note.is_live = false;
    now_ -= note.bytes;
    if (allocator_ != nullptr) allocator_->free(call);
  }

  void free_after_forward(int call, int reader) {
    // The result of a stage is passed on and freed.
    if (!is_kept(call) && notes_[call].last_forward_read <= reader) drop(call);
  }

  void free_after_backward(int call, int reader) {
    if (notes_[call].last_read <= reader) drop(call);
  }

  // Makes again what backward reads of a region, at its first call.
  void rebuild(int forward_call) {
    const int region = notes_[forward_call].region;
    if (region < 0 || is_rebuilt_[static_cast<std::size_t>(region)]) return;
    is_rebuilt_[static_cast<std::size_t>(region)] = true;
    const RecomputedRegion& calls = stage_.regions[static_cast<std::size_t>(region)];
    for (int call = calls.first; call <= calls.last; ++call) {
      if (notes_[call].is_read_by_backward && !record_.call(call).is_rematerialized) make(call);
    }
  }

  // Makes again what a call of backward reads and forward did not keep.
  void rematerialize(int reader) {
    for (const int read : record_.call(reader).reads) {
      if (is_forward(read) && record_.call(read).is_rematerialized) make(read);
    }
  }

  void note_peak(int call, double& peak, ActivationMemory& memory) {
    const double gradients = gradients_ == GradientMemory::kMade ? made_gradients_ : 0;
    memory.at_calls.push_back(now_);
    memory.gradients_at_calls.push_back(gradients);
    if (now_ <= peak) return;
    peak = now_;
    if (now_ > highest_) {
      highest_ = now_;
      memory.peak_module = record_.call(call).module;
      memory.peak_gradients = gradients;
    }
  }

  void note_end(double more, ActivationMemory& memory) {
    if (stage_.backward.empty() || now_ + more <= memory.at_calls.back()) return;
    memory.at_calls.pop_back();
    memory.gradients_at_calls.pop_back();
    now_ += more;
    note_peak(stage_.backward.back(), memory.backward_peak, memory);
  }

  std::vector<std::pair<std::string, double>> modules() {
    std::map<std::string, double> bytes;
    std::ranges::sort(made_);  // a result that was made again is there twice
    const auto equal = std::ranges::unique(made_);
    made_.erase(equal.begin(), equal.end());
    for (const int call : made_) {
      if (notes_[call].is_live) bytes[record_.call(call).module] += notes_[call].bytes;
    }
    std::vector<std::pair<std::string, double>> sorted(bytes.begin(), bytes.end());
    std::ranges::stable_sort(sorted, std::ranges::greater(),
                             [](const auto& item) { return item.second; });
    return sorted;
  }

  const ModuleRecord& record_;
  const StageWork& stage_;
  const GradientMemory gradients_;
  CachingAllocator* const allocator_;
  Notes notes_;
  std::vector<bool> is_rebuilt_;  // by region
  std::vector<int> made_;         // calls whose results were made in forward
  double now_ = 0;
  double made_gradients_ = 0;  // of parameters
  double highest_ = 0;
};

}  // namespace

ActivationMemory walk_memory(const ModuleRecord& record, const StageWork& stage,
                             GradientMemory gradients, double after_backward,
                             CachingAllocator* allocator) {
  return MemoryWalk(record, stage, gradients, allocator).run(after_backward);
}

}  // namespace trireme::predict
