// SPDX-License-Identifier: Apache-2.0
#include <trireme/report/jsonl_file.h>

#include <nlohmann/json.hpp>

#include <string_view>
#include <utility>

namespace trireme::report {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kFormat = 1;

Json begin(std::string_view kind, const Moment& moment) {
  return {{"kind", kind},
          {"time", moment.time},
          {"epoch", moment.epoch},
          {"global_step", moment.global_step}};
}

template <typename Value>
void add(Json& record, const char* key, const std::optional<Value>& value) {
  if (value) record[key] = *value;
}

void add(Json& record, const Numbers& scalars) {
  if (!scalars.empty()) record["scalars"] = scalars;
}

// Texts may contain any bytes. Invalid UTF-8 is replaced.
std::string line_of(const Json& record) {
  return record.dump(/*indent=*/-1, /*indent_char=*/' ', /*ensure_ascii=*/false,
                     Json::error_handler_t::replace) +
         "\n";
}

}  // namespace

// A kill may have cut off the last line of an earlier run. Readers skip it once it is ended.
JsonlFile::JsonlFile(std::filesystem::path path) : file_(std::move(path)) {
  if (file_.ends_within_line()) file_.begin("\n");
}

void JsonlFile::append(const std::string& line, const Moment& moment) {
  if (file_.lost() == 0) return file_.append(line);
  // The mark and the record are written together, so that the mark cannot get lost by itself.
  Json lost = begin("lost", moment);
  lost["records"] = file_.lost();
  file_.append(line_of(lost) + line);
}

void JsonlFile::write(const RunRecord& run) {
  Json record = begin("run", run.moment);
  record["format"] = kFormat;
  record["rank"] = run.rank;
  record["world_size"] = run.world_size;
  record["epochs"] = run.epochs;
  record["steps_in_epoch"] = run.steps_in_epoch;
  add(record, "tokens_per_sample", run.tokens_per_sample);
  add(record, "flops_per_sample", run.flops_per_sample);
  if (!run.dtype.empty()) record["dtype"] = run.dtype;
  add(record, "peak_flops", run.peak_flops);
  record["settings"] = Json(run.settings);
  record["environment"] = Json(run.environment);
  append(line_of(record), run.moment);
}

void JsonlFile::write(const StepRecord& step) {
  Json record = begin("step", step.moment);
  record["step"] = step.step;
  record["steps"] = step.steps;
  record["loss"] = step.loss;
  record["samples"] = step.samples;
  const PhaseSeconds& seconds = step.seconds;
  record["seconds"] = {{"data", seconds.data},           {"forward", seconds.forward},
                       {"backward", seconds.backward},   {"communication", seconds.communication},
                       {"optimizer", seconds.optimizer}, {"callbacks", seconds.callbacks},
                       {"total", seconds.total}};
  // Keys without a value are left out, as the format requires.
  if (step.all_samples) record["all_samples"] = *step.all_samples;
  add(record, "samples_per_second", step.throughput());
  add(record, "learning_rate", step.learning_rate);
  add(record, "gradient_norm", step.gradient_norm);
  add(record, "loss_scale", step.loss_scale);
  if (step.skipped > 0) record["skipped"] = step.skipped;
  add(record, "memory_bytes", step.memory_bytes);
  add(record, "peak_memory_bytes", step.peak_memory_bytes);
  add(record, "device_memory_bytes", step.device_memory_bytes);
  add(record, step.scalars);
  append(line_of(record), step.moment);
}

void JsonlFile::write(const EpochRecord& epoch) {
  Json record = begin("epoch", epoch.moment);
  record["loss"] = epoch.loss;
  record["samples"] = epoch.samples;
  record["seconds"] = {{"total", epoch.seconds}};
  add(record, epoch.scalars);
  append(line_of(record), epoch.moment);
}

void JsonlFile::write(const EvaluationRecord& evaluation) {
  Json record = begin("evaluation", evaluation.moment);
  record["loss"] = evaluation.loss;
  add(record, "accuracy", evaluation.accuracy);
  record["samples"] = evaluation.samples;
  record["seconds"] = {{"total", evaluation.seconds}};
  add(record, evaluation.scalars);
  append(line_of(record), evaluation.moment);
}

void JsonlFile::write(const CheckpointRecord& checkpoint) {
  Json record = begin("checkpoint", checkpoint.moment);
  record["path"] = checkpoint.path;
  record["seconds"] = {{"total", checkpoint.seconds}};
  append(line_of(record), checkpoint.moment);
}

void JsonlFile::write(const FailureRecord& failure) {
  Json record = begin("failure", failure.moment);
  record["message"] = failure.message;
  append(line_of(record), failure.moment);
}

void JsonlFile::write(const EndRecord& end) {
  Json record = begin("end", end.moment);
  record["stopped"] = end.is_stopped;
  record["seconds"] = {{"total", end.seconds}};
  append(line_of(record), end.moment);
}

}  // namespace trireme::report
