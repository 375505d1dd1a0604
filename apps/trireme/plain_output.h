// SPDX-License-Identifier: Apache-2.0
// Removes control characters from the program's output. Names come from files of others, and a
// terminal obeys control characters.
#pragma once

#include <ostream>
#include <streambuf>
#include <string>

namespace trireme::apps {

/// Replaces control characters other than tabs and line feeds by question marks in the output of a
/// stream, as long as this object exists. Output that bypasses the stream, such as that of ranks,
/// is not changed. Not thread-safe.
class PlainOutput : public std::streambuf {
 public:
  /// Redirects the output of `stream` through this object.
  explicit PlainOutput(std::ostream& stream) : stream_(stream), target_(stream.rdbuf(this)) {}
  PlainOutput(const PlainOutput&) = delete;
  PlainOutput& operator=(const PlainOutput&) = delete;
  ~PlainOutput() override;

 protected:
  int_type overflow(int_type letter) override;
  int sync() override;

 private:
  bool write();

  std::ostream& stream_;
  std::streambuf* target_;
  std::string pending_;
};

}  // namespace trireme::apps
