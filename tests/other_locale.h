// SPDX-License-Identifier: Apache-2.0
// Sets a global locale with another number format for the time of a test.
#pragma once

#include <locale>
#include <string>

namespace trireme::test {

/// While an object exists, the global locale has a decimal comma and a dot after every three
/// digits. The destructor restores the locale before.
class CommaLocale {
 public:
  CommaLocale() : before_(std::locale::global(std::locale(std::locale::classic(), new Commas))) {}
  CommaLocale(const CommaLocale&) = delete;
  CommaLocale& operator=(const CommaLocale&) = delete;
  ~CommaLocale() { std::locale::global(before_); }

 private:
  class Commas final : public std::numpunct<char> {
    char do_decimal_point() const override { return ','; }
    char do_thousands_sep() const override { return '.'; }
    std::string do_grouping() const override { return "\3"; }
  };

  std::locale before_;
};

}  // namespace trireme::test
