// SPDX-License-Identifier: Apache-2.0
#include <trireme/predict/memory_walk.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <unordered_map>
#include <unordered_set>

namespace trireme::predict {
namespace {

class MemoryWalk {
 public:
  MemoryWalk(const ModuleRecord& record, const StageWork& stage, GradientMemory gradients,
             CachingAllocator* allocator)
      : record_(record), stage_(stage), gradients_(gradients), allocator_(allocator) {
    for (std::size_t i = 0; i < stage.regions.size(); ++i) {
      for (int call = stage.regions[i].first; call <= stage.regions[i].last; ++call) {
        region_of_.emplace(call, i);
      }
    }
    for (const auto* calls : {&stage.forward, &stage.backward}) {
      for (const int call : *calls) {
        own_.insert(call);
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
    last_read_[read] = std::max(last_read_.contains(read) ? last_read_[read] : reader, reader);
    if (!is_forward(reader)) {
      read_by_backward_.insert(read);
      return;
    }
    int& last = last_forward_read_[read];
    last = std::max(last, reader);
    // Regions read their inputs again when they are recomputed.
    const auto region = region_of_.find(reader);
    if (region == region_of_.end()) return;
    const auto own = region_of_.find(read);
    if (own == region_of_.end() || own->second != region->second) region_inputs_.insert(read);
  }

  // Whether forward keeps the result of a call for backward.
  bool is_kept(int call) const {
    if (region_inputs_.contains(call)) return true;
    return read_by_backward_.contains(call) && !region_of_.contains(call) &&
           !record_.call(call).is_rematerialized;
  }

  // The bytes of a result here: a stage receives only those of other stages that it reads.
  double bytes_of(int call) const {
    const auto received = stage_.received.find(call);
    return received == stage_.received.end() ? record_.call(call).result_bytes : received->second;
  }

  void make(int call) {
    const double bytes = bytes_of(call);
    if (bytes <= 0 || !live_.insert(call).second) return;
    now_ += bytes;
    if (allocator_ != nullptr) allocator_->allocate(call, bytes);
  }

  // Results of other stages arrive when they are read first.
  void receive(int reader) {
    for (const int read : record_.call(reader).reads) {
      if (!own_.contains(read) && received_.insert(read).second) make(read);
    }
  }

  void drop(int call) {
    if (live_.erase(call) == 0) return;
    now_ -= bytes_of(call);
    if (allocator_ != nullptr) allocator_->free(call);
  }

  void free_after_forward(int call, int reader) {
    if (is_kept(call)) return;
    const auto last = last_forward_read_.find(call);
    // The result of a stage is passed on and freed.
    if (last == last_forward_read_.end() || last->second <= reader) drop(call);
  }

  void free_after_backward(int call, int reader) {
    const auto last = last_read_.find(call);
    if (last == last_read_.end() || last->second <= reader) drop(call);
  }

  // Makes again what backward reads of a region, at its first call.
  void rebuild(int forward_call) {
    const auto region = region_of_.find(forward_call);
    if (region == region_of_.end() || !rebuilt_.insert(region->second).second) return;
    const RecomputedRegion& calls = stage_.regions[region->second];
    for (int call = calls.first; call <= calls.last; ++call) {
      if (read_by_backward_.contains(call) && !record_.call(call).is_rematerialized) make(call);
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

  std::vector<std::pair<std::string, double>> modules() const {
    std::map<std::string, double> bytes;
    for (const int call : live_) bytes[record_.call(call).module] += bytes_of(call);
    std::vector<std::pair<std::string, double>> sorted(bytes.begin(), bytes.end());
    std::ranges::stable_sort(sorted, std::ranges::greater(),
                             [](const auto& item) { return item.second; });
    return sorted;
  }

  const ModuleRecord& record_;
  const StageWork& stage_;
  const GradientMemory gradients_;
  CachingAllocator* const allocator_;
  std::unordered_map<int, std::size_t> region_of_;  // by call of forward
  std::unordered_map<int, int> last_read_;
  std::unordered_map<int, int> last_forward_read_;
  std::unordered_set<int> read_by_backward_;
  std::unordered_set<int> region_inputs_;
  std::unordered_set<int> own_;       // calls of the stage
  std::unordered_set<int> received_;  // calls of other stages whose results it got
  std::unordered_set<int> live_;
  std::unordered_set<std::size_t> rebuilt_;
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
