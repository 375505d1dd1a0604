// SPDX-License-Identifier: Apache-2.0
#include <trireme/report/csv_file.h>

#include <trireme/report/number.h>

#include <string_view>
#include <utility>

namespace trireme::report {
namespace {

constexpr std::string_view kNames =
    "kind,epoch,step,global_step,loss,accuracy,samples,all_samples,samples_per_second,learning_"
    "rate,"
    "gradient_norm,data_seconds,forward_seconds,backward_seconds,communication_seconds,"
    "optimizer_seconds,callbacks_seconds,total_seconds\n";

// A column without a value, and several of them.
struct Empty {
  std::size_t columns = 1;
};

void add(std::string& line, std::int64_t value) { line += ',' + std::to_string(value); }
void add(std::string& line, double value) { line += ',' + shortest(value); }
void add(std::string& line, Empty none) { line.append(none.columns, ','); }
template <typename Number>
void add(std::string& line, const std::optional<Number>& value) {
  value ? add(line, *value) : add(line, Empty{});
}

// Returns values separated by commas. No value contains a comma or a quotation mark, so quoting is
// not needed.
template <typename... Values>
std::string line_of(std::string_view kind, const Values&... values) {
  std::string line(kind);
  (add(line, values), ...);
  return line + "\n";
}

}  // namespace

// A kill may have cut off the last line of an earlier run. It is ended first.
CsvFile::CsvFile(std::filesystem::path path) : file_(std::move(path)) {
  if (file_.ends_within_line()) file_.begin("\n");
  if (!file_.has_earlier_records()) file_.begin(std::string(kNames));
}

void CsvFile::append(std::string line) {
  // The mark and the line go into one record, so that the mark cannot get lost by itself.
  if (file_.lost() > 0) line = line_of("lost", Empty{5}, file_.lost(), Empty{11}) + line;
  file_.append(line);
}

void CsvFile::write(const StepRecord& step) {
  const PhaseSeconds& seconds = step.seconds;
  append(line_of("step", step.moment.epoch, step.step, step.moment.global_step, step.loss, Empty{},
                 step.samples, step.all_samples, step.throughput(), step.learning_rate,
                 step.gradient_norm, seconds.data, seconds.forward, seconds.backward,
                 seconds.communication, seconds.optimizer, seconds.callbacks, seconds.total));
}

void CsvFile::write(const EpochRecord& epoch) {
  append(line_of("epoch", epoch.moment.epoch, Empty{}, epoch.moment.global_step, epoch.loss,
                 Empty{}, epoch.samples, Empty{10}, epoch.seconds));
}

void CsvFile::write(const EvaluationRecord& evaluation) {
  append(line_of("evaluation", evaluation.moment.epoch, Empty{}, evaluation.moment.global_step,
                 evaluation.loss, evaluation.accuracy, evaluation.samples, Empty{10},
                 evaluation.seconds));
}

}  // namespace trireme::report
