// SPDX-License-Identifier: Apache-2.0
// The record of one deferred(): the operators that compute the values of tensors, so that they can
// run later. Recorded arguments are stand-ins: tensors over storages that the record owns. A record
// therefore keeps no tensor of the module alive, while deferred tensors keep their record alive.
#pragma once

#include <trireme/parallel/init/reserved_memory.h>
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

/// The dispatch key that is included while a module is constructed under deferred().
inline constexpr auto kDeferredKey = tensor::kBelowAutograd;

/// How an operator uses a block of memory.
enum class Access {
  kRead,
  kUpdate,  // writes, and may keep or use what was there before
  kFill,    // overwrites all of it without reading it
  kMake,    // returns it as a new result
};

/// The use of one block by an operator.
struct Use {
  std::size_t block;
  Access access;
};

/// One recorded call of an operator.
struct Record {
  c10::OperatorHandle op;
  torch::jit::Stack arguments;        // with stand-ins, and copies of ordinary tensors
  std::vector<Use> uses;              // every block that it uses, once
  std::vector<at::Tensor> results;    // stand-ins for the tensors that it returns
  std::optional<std::size_t> random;  // index of the stream that it draws random numbers from
  std::optional<std::size_t> state;   // index of the stream's state to set before it runs
};

/// What deferred tensors are for.
enum class Deferral {
  kValues,  ///< they get their values later
  /// They never get values, because only shapes matter. Code may still write to them through their
  /// pointers: they are ordinary tensors from then on. Small tensors get random numbers at once.
  kShapes,
};

/// Records the operators of one constructor and runs them later. Not thread-safe, except that
/// deferred tensors may be destroyed on any thread.
class Construction final : public std::enable_shared_from_this<Construction> {
 public:
  explicit Construction(Deferral deferral = Deferral::kValues) : deferral_(deferral) {}

  /// The construction and the block that a deferred tensor belongs to.
  struct Place {
    std::shared_ptr<Construction> construction;
    std::size_t block = 0;
    std::unique_ptr<ReservedMemory> memory{};  // of a tensor of Deferral::kShapes
    bool is_given_up = false;                  // an ordinary tensor, whose memory this is
  };
  /// Returns the place of a deferred tensor, or null for any other tensor.
  static const Place* find(const at::Tensor& tensor);

  /// Returns a deferred tensor on `device` with the sizes, strides and dtype of `meta`, a tensor on
  /// the meta device.
  at::Tensor make(const at::Tensor& meta, c10::Device device);
  /// Turns an ordinary tensor into a deferred one. Its memory is freed, or kept by the construction
  /// if `keep_values`, as the values that later records start from.
  void take(const at::Tensor& tensor, bool keep_values);
  /// Returns what the deferred tensors are for.
  Deferral deferral() const noexcept { return deferral_; }
  /// Makes a deferred tensor an ordinary one if code has written to its memory.
  static void give_up_if_written(const at::Tensor& tensor);
  /// Returns the stand-in that records use in place of a deferred tensor of this construction.
  at::Tensor stand_in(const at::Tensor& tensor) const;
  /// Returns the generator that a record uses in place of `generator`, and sets the record's
  /// `random` and `state`. Throws UsageError if the constructor put `generator` in a state that it
  /// read after a deferred draw. Such a state has no meaning, since nothing was drawn yet.
  at::Generator draw_from(const at::Generator& generator, Record& record);
  /// Appends a record.
  void add(Record record) { records_.push_back(std::move(record)); }
  /// Ends the recording. The next construction on this thread that draws from the same generator
  /// continues where this one ends.
  void finish();
  /// Ends the recording of a constructor that threw. Restores every generator to the state that it
  /// had before the first draw.
  void abandon();

  /// Returns the number of blocks; they are numbered from 0.
  std::size_t num_blocks() const { return blocks_.size(); }
  /// Returns true if the values of the blocks in `wanted` depend on random numbers.
  bool is_random(const std::vector<bool>& wanted) const;
  /// Runs the records that the blocks in `wanted` depend on, and with `draw_all` also all that draw
  /// random numbers. Passes the memory of each wanted block to `on_values` once it is final.
  using OnValues = std::function<void(std::size_t block, c10::DataPtr memory)>;
  void run(const std::vector<bool>& wanted, bool draw_all, const OnValues& on_values);
  /// Gives memory to the stand-ins of a block until end_loans().
  void lend(std::size_t block, c10::DataPtr memory);
  /// Takes the memory of all stand-ins back.
  void end_loans();
  /// Moves each generator on to the state after all draws. A generator that was used or seeded
  /// since, or whose states were replaced, is left alone. Call it after run() with `draw_all`.
  void advance_generators();

  /// Returns copies of all states in which streams start or are put by the constructor. They are
  /// in a fixed order, which set_states() expects as well.
  std::vector<at::Tensor> states();
  /// Replaces the states that states() returned.
  void set_states(const std::vector<at::Tensor>& states);

 private:
  // Memory that one or more tensors of the module share.
  struct Block {
    c10::Storage stand_in;
    c10::Storage before;  // the values at the time of take(), if records depend on them
  };
  // The random numbers drawn from one generator. After each draw the original is "parked": it is
  // given a seed of its own, so that a change of its state by the constructor can be detected.
  struct Stream {
    at::Generator original;
    at::Generator own;
    at::Tensor start;                // the state of the original at the first draw
    std::vector<at::Tensor> states;  // undefined: the state in which `previous` ends
    std::shared_ptr<Construction> previous;
    std::vector<std::size_t> parked;  // hashes of the states that the original was parked in
    at::Tensor end;                   // the state of `own` after all draws
    bool is_parked_in(const at::Tensor& state) const;
    bool is_replaced = false;
  };
  enum class After { kKeep, kDrop, kFinal };
  struct Step {
    std::size_t record;
    std::vector<After> after;  // what happens to the block of each use after the step
  };
  class Loan;

  static Place* place_of(const at::Tensor& tensor);
  c10::DataPtr no_memory(std::size_t block, c10::Device device, std::size_t nbytes);
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

  const Deferral deferral_;
  std::vector<Block> blocks_;
  std::vector<Record> records_;
  std::vector<Stream> streams_;
};

/// Makes every access to the pointer of a storage throw c10::Error with `message`. The storage
/// keeps its memory.
void refuse_access(c10::StorageImpl& storage, std::string message);
/// Allows access to the pointer again.
void allow_access(c10::StorageImpl& storage);
/// Gives a storage that refuses access new memory, and allows access to it again.
void set_memory(c10::StorageImpl& storage, c10::DataPtr memory);

}  // namespace trireme::detail
