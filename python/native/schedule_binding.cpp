// SPDX-License-Identifier: Apache-2.0
#include <python/native/schedule_binding.h>

#include <trireme/base/error.h>
#include <trireme/schedule/generators/generators.h>
#include <trireme/schedule/passes.h>
#include <trireme/schedule/pictures/schedule_picture.h>
#include <trireme/schedule/schedule.h>
#include <trireme/schedule/schedule_text.h>
#include <trireme/schedule/timeline.h>
#include <trireme/schedule/times.h>
#include <trireme/schedule/verifier/memory.h>
#include <trireme/schedule/verifier/verify.h>

#include <pybind11/stl.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace py = pybind11;

namespace trireme::python {
namespace {

// Times of all stages, in milliseconds.
struct StageTimes {
  std::vector<double> forward{};
  std::vector<double> backward_input{};
  std::vector<double> backward_weight{};
  double communication = 0;
};

// A schedule that was verified, with its messages and times.
struct TimedSchedule {
  schedule::Schedule schedule{};
  schedule::Timeline timeline{};
  double kept = 0;  // micro-batches that a rank keeps for backward, of all its stages
};

// Returns one number for each stage. A single number stands for all stages of a rank.
std::vector<double> for_stages(const std::vector<double>& given, const char* name, int num_stages,
                               int num_ranks) {
  const auto stages = static_cast<std::size_t>(num_stages);
  if (given.size() == stages) return given;
  if (given.size() != 1) {
    throw UsageError(join_message(name, " has ", given.size(), " numbers, but there are ",
                                  num_stages, " stages"),
                     "give one for all stages of a rank together, or one for each stage");
  }
  const double chunks = static_cast<double>(std::max(1, num_stages / num_ranks));
  return std::vector<double>(stages, given.front() / chunks);
}

schedule::Times times_for(const StageTimes& given, int num_stages, int num_ranks) {
  const auto forward = for_stages(given.forward, "forward", num_stages, num_ranks);
  const auto input = for_stages(given.backward_input, "backward_input", num_stages, num_ranks);
  const auto weight = for_stages(given.backward_weight, "backward_weight", num_stages, num_ranks);
  schedule::Times times = {.stages = {}, .communication = {given.communication}};
  for (std::size_t stage = 0; stage < forward.size(); ++stage) {
    times.stages.push_back({.forward = forward[stage],
                            .backward_input = input[stage],
                            .backward_weight = weight[stage]});
  }
  return times;
}

TimedSchedule timed(schedule::Schedule made, const StageTimes& given) {
  if (!schedule::lists_messages(made)) made = schedule::with_messages(made);
  schedule::verify(made);
  TimedSchedule result;
  result.timeline = schedule::simulate(made, times_for(given, made.num_stages(), made.num_ranks()));
  const double chunks = static_cast<double>(made.num_stages()) / made.num_ranks();
  const std::vector<schedule::StageBytes> bytes = {{}};
  for (const schedule::RankMemory& rank : schedule::peak_memory(made, bytes)) {
    result.kept = std::max(result.kept, rank.peak_unfinished / chunks);
  }
  result.schedule = std::move(made);
  return result;
}

void bind_class(py::module_& module) {
  py::class_<TimedSchedule>(module, "Schedule",
                            "A pipeline schedule that was verified, with its predicted times.")
      .def_property_readonly("name", [](const TimedSchedule& self) { return self.schedule.name; })
      .def_property_readonly("ranks",
                             [](const TimedSchedule& self) { return self.schedule.num_ranks(); })
      .def_property_readonly("micro_batches",
                             [](const TimedSchedule& self) { return self.schedule.micro_batches; })
      .def_property_readonly("rank_of_stage",
                             [](const TimedSchedule& self) { return self.schedule.rank_of_stage; })
      .def_property_readonly("step_time",
                             [](const TimedSchedule& self) { return self.timeline.step_time; })
      .def_property_readonly("bubble",
                             [](const TimedSchedule& self) { return self.timeline.bubble_rate(); })
      .def_readonly("kept_micro_batches", &TimedSchedule::kept)
      .def("to_text", [](const TimedSchedule& self) { return schedule::to_text(self.schedule); })
      .def("to_svg",
           [](const TimedSchedule& self) { return schedule::to_svg(self.schedule, self.timeline); })
      .def("to_trace", [](const TimedSchedule& self) { return schedule::to_trace(self.timeline); })
      .def("__str__", [](const TimedSchedule& self) { return schedule::to_text(self.schedule); })
      .def("__repr__", [](const TimedSchedule& self) {
        return join_message("Schedule('", self.schedule.name,
                            "', ranks=", self.schedule.num_ranks(),
                            ", micro_batches=", self.schedule.micro_batches, ")");
      });
}

}  // namespace

void bind_schedule(py::module_& module) {
  bind_class(module);
  module.attr("schedule_kinds") =
      py::cast(std::vector<std::string>(schedule::kKinds.begin(), schedule::kKinds.end()));
  module.def(
      "make_schedule",
      [](const std::string& kind, int ranks, int micro_batches, int chunks,
         std::vector<double> forward, std::vector<double> input, std::vector<double> weight,
         double communication) {
        return timed(schedule::generate(kind, ranks, micro_batches, chunks),
                     {std::move(forward), std::move(input), std::move(weight), communication});
      },
      py::arg("kind"), py::arg("ranks"), py::arg("micro_batches"), py::arg("chunks"),
      py::arg("forward"), py::arg("backward_input"), py::arg("backward_weight"),
      py::arg("communication"));
  module.def(
      "parse_schedule",
      [](const std::string& text, std::vector<double> forward, std::vector<double> input,
         std::vector<double> weight, double communication) {
        return timed(schedule::parse_schedule(text),
                     {std::move(forward), std::move(input), std::move(weight), communication});
      },
      py::arg("text"), py::arg("forward"), py::arg("backward_input"), py::arg("backward_weight"),
      py::arg("communication"));
}

}  // namespace trireme::python
