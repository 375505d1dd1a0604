// SPDX-License-Identifier: Apache-2.0
#include <trireme/predict/fused_elements.h>

#include <trireme/base/error.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <set>

namespace trireme::predict {
namespace {

using cluster::OperatorKind;

bool is_work(const OperatorCall& call) { return call.work.bytes > 0; }

bool is_elements(const OperatorCall& call) {
  return is_work(call) && call.work.kind == OperatorKind::kElements;
}

class Fusion {
 public:
  explicit Fusion(ModuleRecord& record) : record_(record), readers_(record.calls.size()) {
    for (int call = 0; call < record.num_calls(); ++call) {
      for (const int read : record.call(call).reads) item(readers_, read).push_back(call);
    }
    find_kernels();
  }

  // Decides for every result of a kernel of forward whether it is kept or computed again.
  void rematerialize() {
    can_be_computed_.assign(static_cast<std::size_t>(record_.num_forward), false);
    is_kept_.assign(static_cast<std::size_t>(record_.num_forward), false);
    for (int call = 0; call < record_.num_forward; ++call) {
      const bool is_needed = is_read_by_backward(call);
      if (!is_elements(record_.call(call))) {
        if (is_needed) item(is_kept_, call) = true;
        continue;
      }
      std::set<int> kept;
      const double bytes = cheapest(call, kept);
      if (bytes == 0) {
        item(can_be_computed_, call) = true;
      } else if (is_needed) {
        keep(call, kept);
      }
      if (is_needed && item(can_be_computed_, call))
        item(record_.calls, call).is_rematerialized = true;
    }
  }

  // Gives the work of each kernel to its first call.
  void fuse() {
    for (const std::vector<int>& kernel : kernels_) fuse_kernel(kernel);
  }

 private:
  template <typename T>
  static T& item(std::vector<T>& values, int index) {
    return values[static_cast<std::size_t>(index)];
  }

  void find_kernels() {
    kernel_of_.assign(record_.calls.size(), -1);
    bool goes_on = false;
    for (int call = 0; call < record_.num_calls(); ++call) {
      if (call == record_.num_forward) goes_on = false;
      const OperatorCall& here = record_.call(call);
      if (!is_elements(here)) {
        // Views are no kernels and do not end one.
        if (is_work(here) || !here.transfers.empty()) goes_on = false;
        continue;
      }
      if (!goes_on || !here.transfers.empty()) kernels_.emplace_back();
      goes_on = true;
      item(kernel_of_, call) = static_cast<int>(kernels_.size()) - 1;
      kernels_.back().push_back(call);
    }
  }

  bool is_read_by_backward(int call) {
    return std::ranges::any_of(item(readers_, call),
                               [&](int reader) { return reader >= record_.num_forward; });
  }

  bool is_available(int call) { return item(is_kept_, call) || item(can_be_computed_, call); }

  // Adds to `kept` what has to be kept so that the result of a call is available in backward: the
  // result itself, or what its kernel computes it from if that is smaller. Returns its bytes.
  double cheapest(int call, std::set<int>& kept) {
    if (is_available(call)) return 0;
    const OperatorCall& here = record_.call(call);
    const int kernel = item(kernel_of_, call);
    if (kernel >= 0) {
      std::set<int> before;
      double bytes = 0;
      for (const int read : here.reads) {
        const bool is_inside = item(kernel_of_, read) == kernel;
        if (is_available(read) || before.contains(read)) continue;
        if (is_inside) {
          bytes += cheapest(read, before);
        } else {
          bytes += record_.call(read).result_bytes;
          before.insert(read);
        }
      }
      if (bytes < here.result_bytes || bytes == 0) {
        kept.insert(before.begin(), before.end());
        return bytes;
      }
    }
    kept.insert(call);
    return here.result_bytes;
  }

  void keep(int call, const std::set<int>& kept) {
    item(can_be_computed_, call) = !kept.contains(call);
    for (const int each : kept) {
      item(is_kept_, each) = true;
      if (each == call) continue;
      for (const int reader : std::vector<int>(item(readers_, call))) {
        if (reader < record_.num_forward) continue;
        OperatorCall& backward = item(record_.calls, reader);
        if (std::ranges::find(backward.reads, each) != backward.reads.end()) continue;
        backward.reads.push_back(each);
        backward.read_bytes.push_back(record_.call(each).result_bytes);
        item(readers_, each).push_back(reader);
      }
    }
  }

  // Whether a tensor that a call makes has to be in memory after the kernel.
  bool is_written(int call, int kernel) {
    const std::vector<int>& readers = item(readers_, call);
    if (readers.empty()) return true;
    return std::ranges::any_of(readers, [&](int reader) {
      const bool is_computed_again =
          record_.call(call).is_rematerialized && reader >= record_.num_forward;
      return item(kernel_of_, reader) != kernel && !is_computed_again;
    });
  }

  void fuse_kernel(const std::vector<int>& calls) {
    const int kernel = item(kernel_of_, calls.front());
    double bytes = 0;
    std::set<int> inside;
    for (const int call : calls) {
      bytes += record_.call(call).work.bytes;
      inside.insert(call);
    }
    std::map<int, double> outside;  // what is read once, by the call that made it
    double read = 0;                // what the operators by themselves read
    for (const int call : calls) {
      const OperatorCall& here = record_.call(call);
      for (std::size_t i = 0; i < here.reads.size(); ++i) {
        read += here.read_bytes[i];
        if (inside.contains(here.reads[i])) continue;
        double& most = outside[here.reads[i]];
        most = std::max(most, here.read_bytes[i]);
      }
    }
    bytes -= read;
    for (const auto& [call, size] : outside) bytes += size;
    for (const int call : calls) {
      OperatorCall& here = item(record_.calls, call);
      if (!is_written(call, kernel)) bytes -= here.result_bytes;
      const bool is_outside = std::ranges::any_of(
          item(readers_, call), [&](int reader) { return item(kernel_of_, reader) != kernel; });
      if (!is_outside && !item(readers_, call).empty()) here.result_bytes = 0;
    }
    for (const int call : calls) item(record_.calls, call).work.bytes = 0;
    item(record_.calls, calls.front()).work.bytes = std::max(bytes, 1.0);
  }

  ModuleRecord& record_;
  std::vector<std::vector<int>> readers_;
  std::vector<std::vector<int>> kernels_;
  std::vector<int> kernel_of_;         // -1: no operator on elements
  std::vector<char> can_be_computed_;  // flags by call of forward
  std::vector<char> is_kept_;          // flags by call of forward
};

}  // namespace

Elements elements_of(const std::string& name) {
  if (name == "eager") return Elements::kEager;
  if (name == "fused") return Elements::kFused;
  if (name == "compiled") return Elements::kCompiled;
  throw ConfigError(join_message("operators on elements run as '", name, "'"),
                    "give eager, fused or compiled");
}

ModuleRecord fuse_elements(ModuleRecord record, Elements elements) {
  if (elements == Elements::kEager) return record;
  Fusion fusion(record);
  if (elements == Elements::kCompiled) fusion.rematerialize();
  fusion.fuse();
  return record;
}

}  // namespace trireme::predict
