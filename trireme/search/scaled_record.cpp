// SPDX-License-Identifier: Apache-2.0
#include <trireme/search/scaled_record.h>

#include <algorithm>
#include <cstddef>

namespace trireme::search {
namespace {

bool have_same_kind(const Transfer& a, const Transfer& b) {
  return a.collective == b.collective && a.axis == b.axis;
}

bool are_alike(const OperatorCall& a, const OperatorCall& b) {
  return a.name == b.name && a.module == b.module && a.reads == b.reads &&
         a.parameters == b.parameters && a.forward_call == b.forward_call &&
         a.work.kind == b.work.kind && a.work.dtype == b.work.dtype;
}

bool are_alike(const ModuleRecord& a, const ModuleRecord& b) {
  return a.num_forward == b.num_forward && a.parameters.size() == b.parameters.size() &&
         std::ranges::equal(a.calls, b.calls,
                            [](const auto& x, const auto& y) { return are_alike(x, y); });
}

// The value at a point of the line through two others. No quantity of a record is negative.
class Line {
 public:
  explicit Line(double position) : position_(position) {}
  double operator()(double few, double many) const {
    return std::max(0.0, few + (many - few) * position_);
  }

 private:
  double position_;  // 0 at the record of few rows, 1 at that of many
};

// Transfers of a call that differ with the number of rows, because another layout was cheaper, are
// those of many rows, in proportion to the rows.
void scale_transfers(std::vector<Transfer>& transfers, const std::vector<Transfer>& many,
                     const Line& line, double share_of_many) {
  if (!std::ranges::equal(transfers, many, have_same_kind)) {
    transfers = many;
    for (Transfer& transfer : transfers) transfer.bytes *= share_of_many;
    return;
  }
  for (std::size_t i = 0; i < transfers.size(); ++i) {
    transfers[i].bytes = line(transfers[i].bytes, many[i].bytes);
  }
}

void scale_call(OperatorCall& call, const OperatorCall& many, const Line& line,
                double share_of_many) {
  call.work.flops = line(call.work.flops, many.work.flops);
  call.work.bytes = line(call.work.bytes, many.work.bytes);
  call.counted_flops = line(call.counted_flops, many.counted_flops);
  call.result_bytes = line(call.result_bytes, many.result_bytes);
  call.gradient_bytes = line(call.gradient_bytes, many.gradient_bytes);
  scale_transfers(call.transfers, many.transfers, line, share_of_many);
  for (std::size_t i = 0; i < call.read_bytes.size(); ++i) {
    call.read_bytes[i] = line(call.read_bytes[i], many.read_bytes[i]);
  }
}

}  // namespace

std::optional<ModuleRecord> scaled_record(const RecordOfRows& few, const RecordOfRows& many,
                                          std::int64_t rows) {
  if (!are_alike(few.record, many.record)) return std::nullopt;
  const Line line(static_cast<double>(rows - few.rows) / static_cast<double>(many.rows - few.rows));
  const double share_of_many = static_cast<double>(rows) / static_cast<double>(many.rows);
  ModuleRecord record = few.record;
  for (std::size_t i = 0; i < record.calls.size(); ++i) {
    scale_call(record.calls[i], many.record.calls[i], line, share_of_many);
  }
  // Gradients of parameters have the same size for any number of rows.
  record.gradient_transfers = many.record.gradient_transfers;
  record.input_bytes = line(record.input_bytes, many.record.input_bytes);
  return record;
}

}  // namespace trireme::search
