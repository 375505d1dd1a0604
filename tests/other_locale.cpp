// SPDX-License-Identifier: Apache-2.0
// Linked into test programs, which then run a second time under another locale
// (TRIREME_OTHER_LOCALE in the environment): decimal commas and groups of digits in the streams of
// C++, and one of the languages below in the functions of C where this machine has it.
#include "tests/other_locale.h"

#include <clocale>
#include <cstdlib>
#include <memory>

namespace trireme::test {
namespace {

std::unique_ptr<const CommaLocale> of_program() {
  // NOLINTBEGIN(concurrency-mt-unsafe): before main
  if (std::getenv("TRIREME_OTHER_LOCALE") == nullptr) return nullptr;
  for (const char* name : {"tr_TR.UTF-8", "de_DE.UTF-8", "en_US.UTF-8"}) {
    if (std::setlocale(LC_ALL, name) != nullptr) break;
  }
  std::setlocale(LC_MESSAGES, "C");  // the tests know the system's messages in English
  // NOLINTEND(concurrency-mt-unsafe)
  return std::make_unique<const CommaLocale>();
}

const auto kLocaleOfProgram = of_program();

}  // namespace
}  // namespace trireme::test
