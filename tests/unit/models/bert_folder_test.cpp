// SPDX-License-Identifier: Apache-2.0
// What examples/bert takes over from config.json of a folder, and writes there.
#include "examples/bert/pretrained_folder.h"
#include <trireme/base/error.h>

#include <gmock/gmock.h>
#include <tests/temporary_folder.h>

namespace models {
namespace {

using ::testing::HasSubstr;
using trireme::test::message_of;
using trireme::test::TemporaryFolder;

constexpr const char* kSizes =
    R"("vocab_size": 50, "max_position_embeddings": 8, "type_vocab_size": 2, "hidden_size": 16,
       "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64)";

BERTOptions options_of(const std::string& others) {
  const TemporaryFolder folder;
  folder.write("config.json", "{" + std::string(kSizes) + others + "}");
  return examples::read_options(folder.path());
}

TEST(BertFolder, TakesOverSizesDropoutAndTheEpsilonOfNorms) {
  const BERTOptions options = options_of(R"(, "layer_norm_eps": 1e-5, "hidden_dropout_prob": 0.3)");
  EXPECT_EQ(options.vocabulary, 50);
  EXPECT_EQ(options.sequence, 8);
  EXPECT_EQ(options.norm_epsilon, 1e-5);
  EXPECT_EQ(options.dropout, 0.3);
  const BERTOptions standard = options_of("");  // as the defaults of `transformers`
  EXPECT_EQ(standard.norm_epsilon, 1e-12);
  EXPECT_EQ(standard.dropout, 0.1);
}

TEST(BertFolder, ReadsWhatItHasWritten) {
  const TemporaryFolder folder;
  const auto vocabulary = folder.write("words.txt", "[PAD]\n");
  examples::write_description(folder / "run",
                              {.vocabulary = 50,
                               .sequence = 8,
                               .hidden = 16,
                               .layers = 2,
                               .heads = 4,
                               .dropout = 0.25,
                               .norm_epsilon = 1e-6},
                              vocabulary, /*lowercase=*/true);
  const BERTOptions options = examples::read_options(folder / "run");
  EXPECT_EQ(options.heads, 4);
  EXPECT_EQ(options.norm_epsilon, 1e-6);
  EXPECT_EQ(options.dropout, 0.25);
}

TEST(BertFolder, RefusesWhatTheNetworkCannotBe) {
  EXPECT_THAT(message_of<trireme::DataError>([] { options_of(R"(, "hidden_act": "relu")"); }),
              HasSubstr("hidden_act is gelu"));
}

}  // namespace
}  // namespace models
