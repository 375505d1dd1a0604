// SPDX-License-Identifier: Apache-2.0
#include <apps/trireme/text_data_tools.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/data/text/make_bert_pairs.h>
#include <trireme/data/text/word_piece_training.h>

#include <filesystem>
#include <iostream>
#include <system_error>
#include <utility>

namespace trireme::apps {
namespace {

// Trains a vocabulary on all texts, writes it and returns the number of its tokens.
std::int64_t train_vocabulary(const TextDataTask& task, const std::filesystem::path& to) {
  data::WordPieceTrainer trainer({.vocabulary_size = task.vocabulary_size,
                                  .minimum_count = task.minimum_count,
                                  .tokenizer = {.lowercase = !task.is_cased}});
  for (const std::string& text : task.texts) {
    for (const data::Document& document : data::read_documents(text, data::TextForm::kSentences)) {
      for (const std::string& line : document) trainer.add(line);
    }
  }
  const std::vector<std::string> tokens = trainer.train();
  data::write_vocabulary(to, tokens);
  return std::ssize(tokens);
}

void create_folder(const std::filesystem::path& folder) {
  std::error_code failure;
  std::filesystem::create_directories(folder, failure);
  if (!failure) return;
  throw CheckpointError(join_message(folder.string(), " cannot be created: ", failure.message()),
                        "give another folder, or check its permissions");
}

// Removes a file at its end, if a path is given.
class Removal {
 public:
  explicit Removal(std::filesystem::path path) : path_(std::move(path)) {}
  ~Removal() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove(path_, ignored);
  }
  Removal(const Removal&) = delete;
  Removal& operator=(const Removal&) = delete;
  Removal(Removal&&) = delete;
  Removal& operator=(Removal&&) = delete;

 private:
  const std::filesystem::path path_;
};

void make_pairs(const TextDataTask& task) {
  const std::filesystem::path folder = task.to;
  std::filesystem::path vocabulary = task.vocabulary;
  if (task.vocabulary.empty()) {
    create_folder(folder);
    // The folder's own vocabulary belongs to the pairs that it holds until it gets others.
    vocabulary = folder / "new_vocab.txt";
    train_vocabulary(task, vocabulary);
  }
  const Removal removal(task.vocabulary.empty() ? vocabulary : std::filesystem::path());
  const data::BertPairsSettings settings{.sequence_length = task.sequence_length,
                                         .repeats = task.repeats,
                                         .short_probability = task.short_probability,
                                         .mask_probability = task.mask_probability,
                                         .whole_words = task.whole_words,
                                         .static_masking = task.static_masking,
                                         .lowercase = !task.is_cased,
                                         .seed = task.seed};
  const data::MadeBertPairs made =
      data::make_bert_pairs({task.texts.begin(), task.texts.end()},
                            task.is_prose ? data::TextForm::kProse : data::TextForm::kSentences,
                            vocabulary, folder, settings);
  std::cout << "wrote " << made.pairs << " pairs of " << made.sentences << " sentences in "
            << made.documents << " documents to " << task.to << ": " << made.tokens
            << " tokens, and " << made.random_pairs << " pairs with a random second sentence\n";
}

}  // namespace

void do_text_data_task(const TextDataTask& task) {
  if (task.kind == TextDataTask::Kind::kBertPairs) {
    make_pairs(task);
    return;
  }
  const std::int64_t tokens = train_vocabulary(task, task.to);
  std::cout << "wrote a vocabulary of " << tokens << " tokens to " << task.to << '\n';
}

}  // namespace trireme::apps
