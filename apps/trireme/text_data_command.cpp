// SPDX-License-Identifier: Apache-2.0
#include <apps/trireme/text_data_command.h>

#include <CLI/CLI.hpp>
#include <apps/trireme/command_line.h>
#include <apps/trireme/text_data_tools.h>
#include <apps/trireme/torch_parts.h>

#include <memory>
#include <string>

namespace trireme::apps {
namespace {

// The options that both subcommands have.
void add_common(CLI::App& command, TextDataTask& task) {
  command.add_option("--text", task.texts, "Files of text in UTF-8")->required();
  command.add_flag("--cased", task.is_cased, "Keep capitals and accents");
}

void add_vocabulary(CLI::App& data) {
  const auto task = std::make_shared<TextDataTask>();
  CLI::App& command =
      *data.add_subcommand("vocabulary", "Train a WordPiece vocabulary, as BERT's, on text");
  add_common(command, *task);
  command.add_option("--to", task->to, "File to write, such as vocab.txt")->required();
  command.add_option("--size", task->vocabulary_size, "Tokens of the vocabulary at most")
      ->check(integer_from(1, 1 << 24))
      ->capture_default_str();
  command
      .add_option("--minimum-count", task->minimum_count,
                  "Do not merge pairs of tokens that occur less often")
      ->check(integer_from(1))
      ->capture_default_str();
  command.callback([task] { text_data_task(*task); });
}

// A share is checked when it is used, with the name of the setting.
void add_share(CLI::App& command, const std::string& name, const std::shared_ptr<Real>& share,
               double standard, const std::string& description) {
  share->value = standard;
  command.add_option(name, *share, description)
      ->check(number_from_zero())
      ->default_str(CLI::detail::to_string(standard));
}

void add_bert(CLI::App& data) {
  const auto task = std::make_shared<TextDataTask>();
  const auto short_share = std::make_shared<Real>();
  const auto mask_share = std::make_shared<Real>();
  CLI::App& command = *data.add_subcommand(
      "bert",
      "Make pairs of sentences for pre-training BERT. A text has one sentence per line and empty "
      "lines between documents");
  add_common(command, *task);
  command.add_option("--to", task->to, "Folder to write")->required();
  command.add_flag("--prose", task->is_prose,
                   "Texts are prose: find sentences, and take two empty lines as the end of a "
                   "document");
  command.add_option("--vocabulary", task->vocabulary,
                     "Vocabulary, such as vocab.txt (default: one is trained on the texts)");
  command
      .add_option("--vocabulary-size", task->vocabulary_size,
                  "Tokens at most of the vocabulary that is trained")
      ->check(integer_from(1, 1 << 24))
      ->capture_default_str();
  command.add_option("--sequence", task->sequence_length, "Tokens of a pair at most")
      ->check(integer_from(5, 1 << 20))
      ->capture_default_str();
  command
      .add_option("--repeats", task->repeats, "Passes over the documents, each with other pairs")
      ->check(integer_from(1, (std::int64_t{1} << 31) - 1))
      ->capture_default_str();
  add_share(command, "--short", short_share, task->short_probability,
            "Share of pairs that are made for a random, shorter length");
  add_share(command, "--mask", mask_share, task->mask_probability, "Share of tokens to mask");
  command.add_flag("--whole-words", task->whole_words, "Mask whole words");
  command.add_flag("--static", task->static_masking,
                   "Mask tokens now, rather than anew in every epoch of training");
  // CLI11 would take -1 as the highest number.
  command.add_option("--seed", task->seed, "Seed of all random choices")
      ->check(integer_from(0))
      ->capture_default_str();
  command.callback([task, short_share, mask_share, &command] {
    task->kind = TextDataTask::Kind::kBertPairs;
    task->short_probability = short_share->value;
    task->mask_probability = mask_share->value;
    if (!task->vocabulary.empty()) {
      refuse_given(command, "--vocabulary-size", "--vocabulary gives a vocabulary that exists",
                   "leave one of them out");
    }
    text_data_task(*task);
  });
}

}  // namespace

void add_text_data_commands(CLI::App& app) {
  CLI::App& data = *app.get_subcommand("data");
  add_vocabulary(data);
  add_bert(data);
}

}  // namespace trireme::apps
