// SPDX-License-Identifier: Apache-2.0
// Loads and transforms the samples of a batch, each straight into its row.
#pragma once

#include <trireme/data/detail/cursor.h>
#include <trireme/data/detail/operation.h>
#include <trireme/data/detail/recipe.h>

#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <stop_token>
#include <vector>

namespace trireme::data::detail {

/// Makes batches. Keeps memory for intermediate results, so each thread has its own. Not
/// thread-safe.
class Assembler {
 public:
  explicit Assembler(std::shared_ptr<const Recipe> recipe);

  /// Returns the batch, or nothing where a stop was asked for meanwhile. Throws as
  /// BatchStream::next() does.
  std::optional<Batch> assemble(const Ticket& ticket, const std::stop_token& stop);

 private:
  /// One sample of one column on its way: in the data set, in scratch memory or in a function's
  /// result.
  struct Value {
    Form form;
    const std::byte* data = nullptr;
    at::Tensor owner;  // keeps `data` alive where neither data set nor scratch does
  };

  void add(std::size_t column, std::size_t row, const Ticket& ticket, Value value);
  void apply(std::size_t column, std::size_t row, const Ticket& ticket, std::size_t step,
             Value& value);

  /// Says whether a sample of this form goes into the batch's column. The first sample makes the
  /// column.
  bool fits(std::size_t column, std::size_t num_rows, const Form& form);

  static Value value_of(at::Tensor tensor);

  std::shared_ptr<const Recipe> recipe_;
  std::vector<Form> stored_;         // forms of the rows that the data set has in memory
  std::vector<Form> forms_;          // by column: that of the batch's first row
  std::vector<std::byte*> rows_;     // by column: memory of the batch's first row
  std::vector<at::Tensor> columns_;  // of the batch in the making
  std::array<std::vector<std::byte>, 2> scratch_;  // steps read from one and write into the other
};

}  // namespace trireme::data::detail
