// SPDX-License-Identifier: Apache-2.0
// Stages for pipelines over devices of several kinds: a slower device, or one with less memory,
// gets fewer modules.
#pragma once

#include <trireme/cluster/cluster.h>
#include <trireme/parallel/record/module_record.h>
#include <trireme/plan/plan.h>
#include <trireme/predict/predict.h>
#include <trireme/search/training/repeated_modules.h>

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace trireme::search {

/// The devices of the ranks with one coordinate along `pipe`.
struct StageDevices {
  std::string slowest;      ///< name of the slowest kind among them
  double memory_bytes = 0;  ///< of the smallest

  bool operator==(const StageDevices&) const = default;
};

/// Returns the devices of each coordinate along `pipe`.
/// @param cluster has as many devices as the mesh of the plan has ranks.
std::vector<StageDevices> devices_of_stages(const Plan& plan, const cluster::Cluster& cluster);

/// What stages cost, by the parts of forward between which they may begin.
struct StageCosts {
  std::vector<std::vector<double>> seconds{};  ///< of each part, by stage
  std::vector<std::vector<double>> bytes{};    ///< the same of memory
  std::vector<double> limits{};                ///< of bytes, by stage
};

/// Returns the first part of each stage, and the number of parts: of all divisions within the
/// limits, one whose slowest stage takes least. Empty if there is none.
std::vector<std::size_t> divide_by_costs(const StageCosts& costs);

/// Beginnings of stages as in Plan::stages.
using Stages = std::vector<std::pair<std::string, int>>;

/// Divides a module into stages by the devices that they run on.
class UnevenStages {
 public:
  /// @param plan has several ranks along `pipe`. All arguments must outlive the object.
  /// @param limits bytes that a rank may use, by coordinate along `pipe`.
  UnevenStages(const ModuleRecord& record, const Plan& plan, const cluster::Cluster& cluster,
               const predict::TrainingOptions& options,
               const std::vector<RepeatedModules>& repeated, std::vector<double> limits);

  /// Returns stages whose slowest one takes about as little time as possible within memory, which
  /// is estimated. Empty if there are too few places, or no division fits.
  Stages by_devices() const;
  /// Returns divisions that differ by one place at one boundary.
  std::vector<Stages> neighbours(const Stages& stages) const;

 private:
  // A module that begins a part, and the first call of forward that reads one of its parameters.
  struct Place {
    std::string module;
    int call = 0;
  };

  StageCosts costs() const;
  void add_seconds(std::vector<double>& seconds, const cluster::DeviceKind& device) const;
  std::vector<double> state_bytes() const;
  std::vector<double> kept_bytes() const;
  std::size_t part_of(int call) const;
  Stages stages_at(const std::vector<std::size_t>& boundaries) const;

  const ModuleRecord& record_;
  const Plan& plan_;
  const cluster::Cluster& cluster_;
  const predict::TrainingOptions& options_;
  std::vector<double> limits_;
  std::vector<Place> places_;       // the first one is the beginning of forward
  std::vector<int> rank_of_stage_;  // along `pipe`
};

}  // namespace trireme::search
