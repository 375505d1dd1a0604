// SPDX-License-Identifier: Apache-2.0
// The record of one deferred(): which operators give which memory its values, and how to run them
// later. A record refers to stand-ins, tensors over storages of the record's own, so that it keeps
// no tensor of the module alive; tensors of the module keep the record.
#pragma once

#include <trireme/tensor/dry_run/interception.h>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>
#include <c10/core/Storage.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace trireme::detail {

/// Included while a module is constructed.
inline constexpr auto kDeferredKey = tensor::kBelowAutograd;

/// What an operator does to a block of memory.
enum class Access {
  kRead,
  kUpdate,  // writes, and what was there before may matter
  kFill,    // writes all of it, whatever was there
  kMake,    // the operator's result
};

struct Use {
  std::size_t block;
  Access access;
};

/// A call of an operator.
struct Record {
  c10::OperatorHandle op;
  torch::jit::Stack arguments;        // tensors are stand-ins, or copies of ordinary ones
  std::vector<Use> uses;              // each block once
  std::vector<at::Tensor> results;    // stand-ins for what the operator makes
  std::optional<std::size_t> random;  // the stream that it draws from
  std::optional<std::size_t> state;   // of the stream, which it is put in before
};

/// Not thread-safe, except that tensors may be destroyed on any thread.
class Construction final : public std::enable_shared_from_this<Construction> {
 public:
  /// Where a deferred tensor belongs.
  struct Place {
    std::shared_ptr<Construction> construction;
    std::size_t block;
  };
  /// Null for a tensor that is not deferred.
  static const Place* find(const at::Tensor& tensor);

  /// A deferred tensor like `meta`, a tensor on the meta device.
  at::Tensor make(const at::Tensor& meta, c10::Device device);
  /// Takes the memory of an ordinary tensor away; it is deferred from then on.
  void take(const at::Tensor& tensor, bool keep_values);
  /// What records have in place of a deferred tensor of this construction.
  at::Tensor stand_in(const at::Tensor& tensor) const;
  /// The generator that a record has in place of `generator`; sets the record's `random`. Throws
  /// UsageError where it was put in a state that it, or another, had only for want of the numbers
  /// drawn before.
  at::Generator draw_from(const at::Generator& generator, Record& record);
  void add(Record record) { records_.push_back(std::move(record)); }
  /// Ends the recording. A construction that follows on this thread begins where this one ends.
  void finish();
  /// Ends it where the constructor threw: puts generators back as they were when they were first
  /// drawn from.
  void abandon();

  std::size_t num_blocks() const { return blocks_.size(); }
  /// Whether random numbers go into what those blocks hold.
  bool is_random(const std::vector<bool>& wanted) const;
  /// Runs what those blocks need, and with `draw_all` also everything that draws random numbers.
  /// Gives the memory of each wanted block away when it has its values.
  using OnValues = std::function<void(std::size_t block, c10::DataPtr memory)>;
  void run(const std::vector<bool>& wanted, bool draw_all, const OnValues& on_values);
  /// Lends memory to the stand-ins of a block.
  void lend(std::size_t block, c10::DataPtr memory);
  void end_loans();
  /// After everything was drawn: moves generators on that were left alone since, and whose states
  /// were not replaced.
  void advance_generators();

  /// The states that streams start from and are put in: copies, one after another.
  std::vector<at::Tensor> states();
  void set_states(const std::vector<at::Tensor>& states);

 private:
  // Memory that tensors of the module share.
  struct Block {
    c10::Storage stand_in;
    c10::Storage before;  // the values that it had when it was taken, if they matter
  };
  // The numbers drawn from one generator.
  struct Stream {
    at::Generator original;
    at::Generator own;
    at::Tensor start;                // of the original
    std::vector<at::Tensor> states;  // undefined: `start`, as long as that stands for the end of:
    std::shared_ptr<Construction> previous;
    std::vector<std::size_t> parked;  // hashes of the states that the original was left in
    at::Tensor end;                   // where the own one stood after everything
    bool is_parked_in(const at::Tensor& state) const;
    bool is_replaced = false;
  };
  enum class After { kKeep, kDrop, kFinal };
  struct Step {
    std::size_t record;
    std::vector<After> after;  // of each use
  };
  class Loan;

  c10::DataPtr no_memory(std::size_t block, c10::Device device);
  std::vector<bool> select(std::vector<bool> wanted, bool draw_all) const;
  std::vector<std::size_t> order(const std::vector<bool>& selected) const;
  std::vector<Step> plan(const std::vector<bool>& selected) const;
  void allocate(const Use& use);
  c10::DataPtr take_memory(std::size_t block);
  void execute(const Record& record);
  void adopt(const at::Tensor& result, const at::Tensor& place);
  static void park(Stream& stream, const at::Tensor& state);
  void check_was_not_parked(const at::Tensor& state) const;
  bool has_parked(const at::Tensor& state) const;
  void resolve_starts();
  at::Tensor end_of(const at::Generator& generator);
  static std::shared_ptr<Construction> parked_at(const at::Generator& generator,
                                                 const at::Tensor& state);

  std::vector<Block> blocks_;
  std::vector<Record> records_;
  std::vector<Stream> streams_;
};

/// Makes every access to the pointer of a storage throw c10::Error with `message`. The storage
/// keeps its memory.
void refuse_access(c10::StorageImpl& storage, std::string message);
/// Allows access to the pointer again.
void allow_access(c10::StorageImpl& storage);
/// Lets the memory be asked for again, which deferred tensors refuse, and sets it.
void set_memory(c10::StorageImpl& storage, c10::DataPtr memory);

}  // namespace trireme::detail
