// SPDX-License-Identifier: Apache-2.0
// What a rank of mpi_program counts and prints.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <functional>
#include <string>

namespace trireme::tests {

/// Counts checks; prints those that fail.
class Checks {
 public:
  void expect(bool holds, const std::string& what);
  /// Same dtype, shape and bits.
  void expect_equal(const at::Tensor& got, const at::Tensor& wanted, const std::string& what);
  /// `call` throws, and its message holds `part`.
  void expect_error(const std::function<void()>& call, const std::string& part);
  /// Prints the number of checks; returns the exit code.
  int report(int rank) const;

 private:
  int num_checks_ = 0;
  int num_failures_ = 0;
};

/// Every operation, reduction and dtype against a plain reference.
void check_collectives(c10d::Backend& backend, Checks& checks);
/// Messages, any source, tags.
void check_messages(c10d::Backend& backend, Checks& checks);
/// Wrong arguments, which throw before anything is sent.
void check_misuse(c10d::Backend& backend, Checks& checks);
/// Several operations under way, polling and futures.
void check_asynchrony(c10d::Backend& backend, Checks& checks);
/// Operations that need more than one MPI call, at the lowest level with a low limit.
void check_pieces(int rank, int size, Checks& checks);

}  // namespace trireme::tests
