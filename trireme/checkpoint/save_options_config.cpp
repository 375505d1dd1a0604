// SPDX-License-Identifier: Apache-2.0
#include <trireme/checkpoint/save_options_config.h>

#include <chrono>
#include <string>

namespace trireme::checkpoint {

void describe(config::Fields& fields, SaveOptions& options) {
  fields.add("folder", options.folder, "where checkpoints are");
  fields.add("prefix", options.prefix, "what their names begin with")
      .check_that(
          [](const std::string& text) {
            return !text.empty() && text.find('/') == std::string::npos;
          },
          "not empty and without a slash");
  fields.add("keep", options.keep, "how many of the last remain; 0: all").at_least(0);
  fields.add("keep_best", options.keep_best, "how many of the best remain besides").at_least(0);
  fields.add("higher_is_better", options.higher_is_better, "of two scores");
  fields
      .add("keep_every", options.keep_every, "one for each of these times remains besides; 0: none")
      .at_least(std::chrono::minutes(0));
}

}  // namespace trireme::checkpoint
