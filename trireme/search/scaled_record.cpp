// SPDX-License-Identifier: Apache-2.0
#include <trireme/search/scaled_record.h>

#include <algorithm>
#include <cstddef>

namespace trireme::search {
namespace {

bool are_alike(const OperatorCall& a, const OperatorCall& b) {
  const auto same_transfer = [](const Transfer& x, const Transfer& y) {
    return x.collective == y.collective && x.axis == y.axis;
  };
  return a.name == b.name && a.module == b.module && a.reads == b.reads &&
         a.parameters == b.parameters && a.forward_call == b.forward_call &&
         a.work.kind == b.work.kind && a.work.dtype == b.work.dtype &&
         std::ranges::equal(a.transfers, b.transfers, same_transfer);
}

bool are_alike(const ModuleRecord& a, const ModuleRecord& b) {
  const auto same_gradient = [](const GradientTransfer& x, const GradientTransfer& y) {
    return x.parameter == y.parameter && x.transfer.collective == y.transfer.collective;
  };
  return a.num_forward == b.num_forward && a.parameters.size() == b.parameters.size() &&
         std::ranges::equal(a.calls, b.calls,
                            [](const auto& x, const auto& y) { return are_alike(x, y); }) &&
         std::ranges::equal(a.gradient_transfers, b.gradient_transfers, same_gradient);
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

void scale_call(OperatorCall& call, const OperatorCall& many, const Line& line) {
  call.work.flops = line(call.work.flops, many.work.flops);
  call.work.bytes = line(call.work.bytes, many.work.bytes);
  call.result_bytes = line(call.result_bytes, many.result_bytes);
  call.gradient_bytes = line(call.gradient_bytes, many.gradient_bytes);
  for (std::size_t i = 0; i < call.transfers.size(); ++i) {
    call.transfers[i].bytes = line(call.transfers[i].bytes, many.transfers[i].bytes);
  }
  for (std::size_t i = 0; i < call.read_bytes.size(); ++i) {
    call.read_bytes[i] = line(call.read_bytes[i], many.read_bytes[i]);
  }
}

}  // namespace

std::optional<ModuleRecord> scaled_record(const RecordOfRows& few, const RecordOfRows& many,
                                          std::int64_t rows) {
  if (!are_alike(few.record, many.record)) return std::nullopt;
  const Line line(static_cast<double>(rows - few.rows) / static_cast<double>(many.rows - few.rows));
  ModuleRecord record = few.record;
  for (std::size_t i = 0; i < record.calls.size(); ++i) {
    scale_call(record.calls[i], many.record.calls[i], line);
  }
  for (std::size_t i = 0; i < record.gradient_transfers.size(); ++i) {
    Transfer& transfer = record.gradient_transfers[i].transfer;
    transfer.bytes = line(transfer.bytes, many.record.gradient_transfers[i].transfer.bytes);
    double& copy = record.gradient_transfers[i].copy_bytes;
    copy = line(copy, many.record.gradient_transfers[i].copy_bytes);
  }
  record.input_bytes = line(record.input_bytes, many.record.input_bytes);
  return record;
}

}  // namespace trireme::search
