// SPDX-License-Identifier: Apache-2.0
// What a calibration measured on a cluster (`trireme calibrate`): times of operators, collectives
// and optimizers by the size of their work. They replace the estimates from peak rates.
#pragma once

#include <string>
#include <vector>

namespace trireme::cluster {

/// Times of some work by its size.
struct Curve {
  std::vector<double> sizes{};         ///< ascending; in a unit that the owner says
  std::vector<double> microseconds{};  ///< the time of each size

  bool operator==(const Curve&) const = default;

  /// Returns true if there are as many times as sizes, at least one, all of them are finite and
  /// above 0, and sizes ascend.
  bool is_valid() const;

  /// Returns the time in seconds of work of `size`, on the straight line between its neighbours if
  /// both axes are logarithmic. Outside of the measured sizes, the time grows with the size above
  /// the largest, and stays that of the smallest below.
  double seconds(double size) const;
};

/// The times of one operator on one kind of device. Sizes are 10^9 FLOPs for products and
/// attention, and 10^6 bytes read and written for all others.
struct MeasuredOperator {
  std::string device{};  ///< name of the kind
  std::string name{};    ///< without overload, such as `aten::addmm`
  std::string dtype{};   ///< of the first operand, such as `float32`
  Curve curve{};

  bool operator==(const MeasuredOperator&) const = default;
};

/// The times of a collective between ranks of one host. Sizes are 10^6 bytes of the whole tensor,
/// as in trireme::seconds.
struct MeasuredCollective {
  /// `all_reduce`, `all_gather`, `reduce_scatter`, `all_to_all`, `broadcast`, or `message`: from
  /// one rank to another, while the others do the same.
  std::string name{};
  int ranks = 2;  ///< of the group; all groups of a host communicate at the same time
  Curve curve{};

  bool operator==(const MeasuredCollective&) const = default;
};

/// The time of the step of one optimizer on one kind of device. Sizes are 10^6 bytes of parameters
/// in one tensor.
struct MeasuredOptimizer {
  std::string device{};  ///< name of the kind
  std::string name{};    ///< `sgd`, `momentum` or `adam`
  Curve curve{};

  bool operator==(const MeasuredOptimizer&) const = default;
};

}  // namespace trireme::cluster
