// SPDX-License-Identifier: Apache-2.0
// Keeps control characters out of what the program prints: names come out of files that somebody
// else has written, and a terminal obeys what is in them.
#pragma once

#include <ostream>
#include <streambuf>
#include <string>

namespace trireme::apps {

/// While it lives, a stream prints question marks for control characters other than tabs and ends
/// of lines. What goes around the stream, such as the output of ranks, stays as it is. Not
/// thread-safe.
class PlainOutput : public std::streambuf {
 public:
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
