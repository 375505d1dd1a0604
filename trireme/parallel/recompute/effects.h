// SPDX-License-Identifier: Apache-2.0
// What a run of a function does to tensors and random streams that were there before it, and a
// second run that sees them as the first did and does nothing to them.
//
//   first run, Recording:   before the first write to outside memory  -> a copy of it is kept
//                           before the first draw from a stream       -> its state is kept
//   second run, Replaying:  operators that are given such memory      -> get a copy of the copy
//                           streams                                   -> start there, and go back
//
// Both look at operators between autograd and their kernels (trireme/tensor/dry_run/
// interception.h), so what writes without an operator (a data pointer) goes unseen.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

namespace trireme::detail {

/// That memory whose operators are told apart by; of a distributed tensor its part's. Null where a
/// tensor has none.
const c10::StorageImpl* memory_below(const at::Tensor& tensor);

struct Effects {
  struct Memory {
    /// Weak, so that no other memory has its address.
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    const c10::StorageImpl* address;
    at::Tensor before;  ///< all its bytes
  };
  struct Stream {
    at::Generator generator;
    at::Tensor before;
  };

  bool writes_to(const c10::StorageImpl* storage) const;

  std::vector<Memory> written;
  std::vector<Stream> drawn;
};

/// One that is told of the operators of its thread, from the innermost outward.
class Observer {
 public:
  struct Write {
    std::string_view operation;
    const at::Tensor& tensor;  ///< as the caller gave it
    const at::Tensor& seen;    ///< as the operator gets it
    bool has_gradient;         ///< what is written requires one
  };

  Observer();
  Observer(const Observer&) = delete;
  Observer& operator=(const Observer&) = delete;
  virtual ~Observer();

  /// The memory that operators get instead; null for the same.
  virtual const c10::Storage* instead_of(const c10::StorageImpl* /*storage*/) { return nullptr; }
  /// The rest are called before an operator and after it.
  virtual void before_write(const Write& /*write*/) {}
  virtual void before_draw(const at::Generator& /*generator*/) {}
  virtual void after_making(const c10::StorageImpl* /*storage*/) {}

  Observer* outer() const noexcept { return outer_; }

 private:
  c10::impl::IncludeDispatchKeyGuard include_;
  Observer* outer_;
};

class Recording final : public Observer {
 public:
  /// @param title names the function in messages. @param keeps_copies whether there may be a second
  /// run; else what is written to and drawn from is only looked at.
  Recording(Effects& effects, const std::vector<at::Tensor>& inputs, std::string title,
            bool records_random, bool keeps_copies);

  /// Whether the tensor's memory came into being during the run.
  bool is_inside(const at::Tensor& tensor) const;

  void before_write(const Write& write) override;
  void before_draw(const at::Generator& generator) override;
  void after_making(const c10::StorageImpl* storage) override { inside_.insert(storage); }

 private:
  Effects& effects_;
  std::string title_;
  bool records_random_;
  bool keeps_copies_;
  std::unordered_map<const c10::StorageImpl*, std::size_t> inputs_;
  std::unordered_set<const c10::StorageImpl*> inside_;
};

class Replaying final : public Observer {
 public:
  explicit Replaying(const Effects& effects);
  ~Replaying() override;

  /// A copy of what the run sees in place of `tensor`, where that is another memory; else itself.
  at::Tensor seen(const at::Tensor& tensor) const;

  const c10::Storage* instead_of(const c10::StorageImpl* storage) override;
  void before_write(const Write& write) override;

 private:
  std::unordered_map<const c10::StorageImpl*, c10::Storage> copies_;
  std::vector<Effects::Stream> streams_;  // as they were
  // Autograd counts a write to the tensor itself, which there was none.
  std::vector<std::pair<c10::VariableVersion, std::uint32_t>> versions_;
};

}  // namespace trireme::detail
