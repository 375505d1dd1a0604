// SPDX-License-Identifier: Apache-2.0
#include <trireme/report/csv_file.h>

#include <trireme/report/number.h>

#include <string>
#include <string_view>
#include <utility>

namespace trireme::report {
namespace {

constexpr std::string_view kNames =
    "kind,epoch,step,global_step,loss,accuracy,samples,all_samples,samples_per_second,learning_"
    "rate,"
    "gradient_norm,data_seconds,forward_seconds,backward_seconds,communication_seconds,"
    "optimizer_seconds,callbacks_seconds,total_seconds\n";

// Collects values separated by commas. No value contains a comma or a quotation mark, so quoting is
// not needed.
class Line {
 public:
  explicit Line(std::string_view kind) : text_(kind) {}

  Line& add(std::int64_t value) {
    text_ += ',' + std::to_string(value);
    return *this;
  }
  Line& add(double value) {
    text_ += ',' + shortest(value);
    return *this;
  }
  template <typename Number>
  Line& add(const std::optional<Number>& value) {
    return value ? add(*value) : skip(1);
  }
  Line& skip(std::size_t columns) {
    text_.append(columns, ',');
    return *this;
  }
  std::string end() { return std::move(text_) + "\n"; }

 private:
  std::string text_;
};

}  // namespace

// A kill may have cut off the last line of an earlier run. It is ended first.
CsvFile::CsvFile(std::filesystem::path path) : file_(std::move(path)) {
  if (file_.ends_within_line()) file_.begin("\n");
  if (!file_.has_earlier_records()) file_.begin(std::string(kNames));
}

void CsvFile::append(std::string line) {
  // The mark and the line go into one record, so that the mark cannot get lost by itself.
  if (file_.lost() > 0) line = Line("lost").skip(5).add(file_.lost()).skip(11).end() + line;
  file_.append(line);
}

void CsvFile::write(const StepRecord& step) {
  const PhaseSeconds& seconds = step.seconds;
  append(Line("step")
             .add(step.moment.epoch)
             .add(step.step)
             .add(step.moment.global_step)
             .add(step.loss)
             .skip(1)
             .add(step.samples)
             .add(step.all_samples)
             .add(step.throughput())
             .add(step.learning_rate)
             .add(step.gradient_norm)
             .add(seconds.data)
             .add(seconds.forward)
             .add(seconds.backward)
             .add(seconds.communication)
             .add(seconds.optimizer)
             .add(seconds.callbacks)
             .add(seconds.total)
             .end());
}

void CsvFile::write(const EpochRecord& epoch) {
  append(Line("epoch")
             .add(epoch.moment.epoch)
             .skip(1)
             .add(epoch.moment.global_step)
             .add(epoch.loss)
             .skip(1)
             .add(epoch.samples)
             .skip(10)
             .add(epoch.seconds)
             .end());
}

void CsvFile::write(const EvaluationRecord& evaluation) {
  append(Line("evaluation")
             .add(evaluation.moment.epoch)
             .skip(1)
             .add(evaluation.moment.global_step)
             .add(evaluation.loss)
             .add(evaluation.accuracy)
             .add(evaluation.samples)
             .skip(10)
             .add(evaluation.seconds)
             .end());
}

}  // namespace trireme::report
