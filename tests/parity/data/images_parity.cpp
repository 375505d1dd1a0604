// SPDX-License-Identifier: Apache-2.0
// Decodes files for images_parity.py:
//   images_parity <folder for the results> <file>...
#include <trireme/data/images/decode.h>

#include <tests/parity/data/results.h>

int main(int count, char** arguments) {
  trireme::test::Results results(arguments[1]);
  for (int i = 2; i < count; ++i) {
    const std::filesystem::path file = arguments[i];
    const std::string name = file.filename().string();
    results.add(name + ".RGB", trireme::data::read_image(file));
    results.add(name + ".L",
                trireme::data::read_image(file, {.colors = trireme::data::Colors::kGrey}));
  }
  results.print_shapes();
}
