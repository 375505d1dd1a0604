// SPDX-License-Identifier: Apache-2.0
// A global locale in which numbers are written otherwise, for one test.
#pragma once

#include <locale>
#include <string>

namespace trireme::test {

/// While it lives, numbers have a decimal comma and a dot after every three digits.
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
