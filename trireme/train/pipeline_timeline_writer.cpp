// SPDX-License-Identifier: Apache-2.0
#include <trireme/train/pipeline_timeline_writer.h>

#include <trireme/base/atomic_file.h>
#include <trireme/base/error.h>
#include <trireme/base/warning.h>
#include <trireme/report/append_file.h>
#include <trireme/schedule/pictures/schedule_picture.h>
#include <trireme/train/model.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <utility>

namespace trireme {

PipelineTimelineWriter::PipelineTimelineWriter(PipelineTimelineWriterOptions options)
    : options_(std::move(options)) {
  if (options_.steps.empty()) {
    throw UsageError("PipelineTimelineWriterOptions::steps is empty",
                     "give the numbers of the steps that are to be measured");
  }
  for (const std::int64_t step : options_.steps) {
    if (step >= 1) continue;
    throw UsageError(join_message("PipelineTimelineWriterOptions::steps has step ", step),
                     "steps are counted from 1");
  }
}

void PipelineTimelineWriter::on_run_begin(const RunContext& run) {
  if (run.rank != 0) return;
  report::check_can_write(options_.folder);
  if (run.is_dry_run) return;
  // A page must not show pictures of an earlier training as those of this one.
  for (const std::int64_t step : options_.steps) {
    if (step <= run.model.progress().global_step) continue;
    std::error_code ignored;
    for (const char* const ending : {".svg", ".json"}) {
      std::filesystem::remove(file_of(step, ending), ignored);
    }
  }
}

std::filesystem::path PipelineTimelineWriter::file_of(std::int64_t step, const char* ending) const {
  return options_.folder / join_message("pipeline-step", step, ending);
}

bool PipelineTimelineWriter::is_chosen(const StepContext& step) const {
  return !step.run.is_dry_run &&
         std::ranges::find(options_.steps, step.global_step) != options_.steps.end();
}

void PipelineTimelineWriter::on_step_begin(const StepContext& step) {
  if (is_chosen(step)) step.run.model.measure_pipeline();
}

void PipelineTimelineWriter::on_step_end(const StepEndContext& step) {
  if (step.run.rank != 0 || !step.pipeline || !is_chosen(step)) return;
  const auto& [schedule, report] = *step.pipeline;
  try {
    write_file(file_of(step.global_step, ".json"), schedule::to_trace(report.timeline));
    write_file(file_of(step.global_step, ".svg"), schedule::to_svg(schedule, report.timeline));
  } catch (const Error& error) {
    warn("the timeline of the pipeline in step ", step.global_step,
         " was not written: ", error.what());
  }
}

}  // namespace trireme
