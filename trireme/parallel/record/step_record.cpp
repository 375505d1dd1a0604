// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/record/step_record.h>

#include <trireme/base/atomic_file.h>
#include <trireme/base/config/configuration.h>
#include <trireme/base/error.h>
#include <trireme/plan/plan_config.h>
#include <trireme/version.h>

#include <nlohmann/json.hpp>

#include <array>
#include <fstream>
#include <string>
#include <string_view>

namespace trireme {
namespace {

using nlohmann::json;

// OperatorWork refers to the names of dtypes, which must outlive it.
std::string_view lasting_dtype(const std::string& name) {
  constexpr std::array<std::string_view, 5> kNames = {"float64", "float32", "float16", "bfloat16",
                                                      "float8"};
  for (const std::string_view known : kNames) {
    if (known == name) return known;
  }
  throw DataError(join_message("the record of a step has the dtype '", name, "'"),
                  "use the `trireme` of the version that the program was built with");
}

json to_json(const OperatorCall& call) {
  json transfers = json::array();
  for (const Transfer& transfer : call.transfers) {
    transfers.push_back(
        {static_cast<int>(transfer.collective), transfer.axis, transfer.bytes, transfer.overlaps});
  }
  return {call.name,         call.module,       static_cast<int>(call.work.kind),
          call.work.flops,   call.work.bytes,   std::string(call.work.dtype),
          transfers,         call.result_bytes, call.gradient_bytes,
          call.reads,        call.read_bytes,   call.forward_call,
          call.weight_share, call.parameters};
}

OperatorCall call_of(const json& value) {
  std::size_t next = 0;
  const auto take = [&](auto& into) { value.at(next++).get_to(into); };
  OperatorCall call;
  int kind = 0;
  std::string dtype;
  take(call.name);
  take(call.module);
  take(kind);
  take(call.work.flops);
  take(call.work.bytes);
  take(dtype);
  call.work.kind = static_cast<cluster::OperatorKind>(kind);
  call.work.dtype = lasting_dtype(dtype);
  for (const json& transfer : value.at(next++)) {
    call.transfers.push_back({.collective = static_cast<Collective>(transfer.at(0).get<int>()),
                              .axis = transfer.at(1).get<std::string>(),
                              .bytes = transfer.at(2).get<double>(),
                              .overlaps = transfer.at(3).get<bool>()});
  }
  take(call.result_bytes);
  take(call.gradient_bytes);
  take(call.reads);
  take(call.read_bytes);
  take(call.forward_call);
  take(call.weight_share);
  take(call.parameters);
  return call;
}

json to_json(const ParameterRecord& parameter) {
  return {parameter.name,          parameter.elements, parameter.bytes, parameter.global_elements,
          parameter.requires_grad, parameter.is_half};
}

ParameterRecord parameter_of(const json& value) {
  return {.name = value.at(0).get<std::string>(),
          .elements = value.at(1).get<double>(),
          .bytes = value.at(2).get<double>(),
          .global_elements = value.at(3).get<double>(),
          .requires_grad = value.at(4).get<bool>(),
          .is_half = value.at(5).get<bool>()};
}

}  // namespace

void write_step_record(const StepRecord& record, const std::filesystem::path& file) {
  PlanSettings settings{record.plan};
  json written = {{"version", TRIREME_VERSION},
                  {"plan", config::Configuration(settings).to_toml()},
                  {"num_forward", record.module.num_forward},
                  {"input_bytes", record.module.input_bytes}};
  json& calls = written["calls"] = json::array();
  for (const OperatorCall& call : record.module.calls) calls.push_back(to_json(call));
  json& parameters = written["parameters"] = json::array();
  for (const ParameterRecord& item : record.module.parameters) parameters.push_back(to_json(item));
  json& transfers = written["gradient_transfers"] = json::array();
  for (const GradientTransfer& item : record.module.gradient_transfers) {
    transfers.push_back({item.parameter, static_cast<int>(item.transfer.collective),
                         item.transfer.axis, item.transfer.bytes, item.copy_bytes});
  }
  if (record.optimizer) {
    written["optimizer"] = {record.optimizer->state_bytes, record.optimizer->kernels};
  }
  write_file(file, written.dump());
}

StepRecord read_step_record(const std::filesystem::path& file) {
  std::ifstream input(file);
  const json read = json::parse(input);
  if (read.at("version") != TRIREME_VERSION) {
    throw DataError(
        join_message("the program was built with Trireme ", read.at("version").get<std::string>(),
                     ", this is " TRIREME_VERSION),
        "use the `trireme` of the version that the program was built with");
  }
  PlanSettings settings;
  config::Configuration(settings).read_text(read.at("plan").get<std::string>(), "plan");
  StepRecord record{.plan = settings.plan};
  read.at("num_forward").get_to(record.module.num_forward);
  read.at("input_bytes").get_to(record.module.input_bytes);
  for (const json& call : read.at("calls")) record.module.calls.push_back(call_of(call));
  for (const json& item : read.at("parameters")) {
    record.module.parameters.push_back(parameter_of(item));
  }
  for (const json& item : read.at("gradient_transfers")) {
    record.module.gradient_transfers.push_back(
        {.parameter = item.at(0).get<int>(),
         .transfer = {.collective = static_cast<Collective>(item.at(1).get<int>()),
                      .axis = item.at(2).get<std::string>(),
                      .bytes = item.at(3).get<double>()},
         .copy_bytes = item.at(4).get<double>()});
  }
  if (const auto found = read.find("optimizer"); found != read.end()) {
    record.optimizer = {.state_bytes = found->at(0).get<double>(),
                        .kernels = found->at(1).get<double>()};
  }
  return record;
}

}  // namespace trireme
