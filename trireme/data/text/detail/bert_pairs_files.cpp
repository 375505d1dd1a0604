// SPDX-License-Identifier: Apache-2.0
#include <trireme/data/text/detail/bert_pairs_files.h>

#include <trireme/base/atomic_file.h>
#include <trireme/base/error.h>
#include <trireme/data/text/detail/text_file.h>

#include <nlohmann/json.hpp>

#include <string>

namespace trireme::data::detail {
namespace {

using nlohmann::json;

constexpr const char* kFormat = "Trireme BERT pairs";
constexpr std::int64_t kVersion = 1;
constexpr std::int64_t kMostPasses = std::int64_t{1} << 31;

[[noreturn]] void fail(const std::filesystem::path& path, const std::string& name,
                       const json& value, std::string_view expected) {
  throw DataError(
      join_message(path.string(), ": \"", name, "\" is ", value.dump(), ", expected ", expected),
      "the file is damaged, or of another program: make the folder anew with trireme "
      "data bert");
}

// The members of a file by their names.
class Members {
 public:
  Members(const std::filesystem::path& path, const json& content)
      : path_(path), content_(content) {}

  std::int64_t integer(const std::string& name, std::int64_t least, std::int64_t most) const {
    const json& value = member(name);
    if (!value.is_number_integer()) fail(path_, name, value, "an integer");
    const bool is_huge =
        value.is_number_unsigned() && value.get<std::uint64_t>() > static_cast<std::uint64_t>(most);
    if (is_huge || value.get<std::int64_t>() < least)
      fail(path_, name, value, join_message(least, " to ", most));
    return value.get<std::int64_t>();
  }

  std::uint64_t seed(const std::string& name) const {
    const json& value = member(name);
    if (!value.is_number_unsigned()) fail(path_, name, value, "an integer of 0 or more");
    return value.get<std::uint64_t>();
  }

  double probability(const std::string& name) const {
    const json& value = member(name);
    if (!value.is_number() || !(value.get<double>() >= 0 && value.get<double>() <= 1))
      fail(path_, name, value, "a number from 0 to 1");
    return value.get<double>();
  }

  bool flag(const std::string& name) const {
    const json& value = member(name);
    if (!value.is_boolean()) fail(path_, name, value, "true or false");
    return value.get<bool>();
  }

  void expect(const std::string& name, const json& expected) const {
    if (member(name) != expected) fail(path_, name, member(name), expected.dump());
  }

 private:
  const json& member(const std::string& name) const {
    static const json nothing;
    const auto found = content_.find(name);
    return found == content_.end() ? nothing : *found;
  }

  const std::filesystem::path& path_;
  const json& content_;
};

void check_probability(std::string_view what, double value) {
  if (value >= 0 && value <= 1) return;
  throw UsageError(join_message("BertPairsSettings::", what, " is ", value),
                   "give a number from 0 to 1");
}

}  // namespace

at::ScalarType token_type_of(std::int64_t vocabulary_size) {
  return vocabulary_size <= kMostUint16Tokens ? at::kUInt16 : at::kUInt32;
}

std::int64_t special_token(const WordPieceTokenizer& tokenizer, std::string_view name) {
  if (const auto number = tokenizer.find(name)) return *number;
  throw DataError(join_message("the vocabulary has no token ", name),
                  "give a vocabulary of BERT, which has [PAD], [UNK], [CLS], [SEP] and [MASK]");
}

void check_settings(const BertPairsSettings& settings) {
  if (settings.sequence_length < kShortestPair || settings.sequence_length > kLongestSequence) {
    throw UsageError(
        join_message("BertPairsSettings::sequence_length is ", settings.sequence_length),
        join_message("give ", kShortestPair, " to ", kLongestSequence, "; BERT's are 128 and 512"));
  }
  if (settings.repeats < 1 || settings.repeats >= kMostPasses) {
    throw UsageError(join_message("BertPairsSettings::repeats is ", settings.repeats),
                     "give 1 or more");
  }
  check_probability("short_probability", settings.short_probability);
  check_probability("random_probability", settings.random_probability);
  check_probability("mask_probability", settings.mask_probability);
}

PairsDescription read_description(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / kPairsDescription;
  const json content = read_json<json>(path);
  const Members members(path, content);
  constexpr std::int64_t kMost = std::int64_t{1} << 56;
  members.expect("format", kFormat);
  members.expect("version", kVersion);
  PairsDescription description;
  BertPairsSettings& settings = description.settings;
  settings.sequence_length = members.integer("sequence_length", kShortestPair, kLongestSequence);
  settings.repeats = members.integer("repeats", 1, kMostPasses - 1);
  settings.short_probability = members.probability("short_probability");
  settings.random_probability = members.probability("random_probability");
  settings.mask_probability = members.probability("mask_probability");
  settings.whole_words = members.flag("whole_words");
  settings.static_masking = members.flag("static_masking");
  settings.lowercase = members.flag("lowercase");
  settings.seed = members.seed("seed");
  description.vocabulary_size = members.integer("vocabulary_size", 1, std::int64_t{1} << 24);
  description.pairs = members.integer("pairs", 1, kMost);
  description.tokens = members.integer("tokens", kShortestPair, kMost);
  return description;
}

void write_description(const std::filesystem::path& folder, const PairsDescription& description) {
  const BertPairsSettings& settings = description.settings;
  const nlohmann::ordered_json content = {{"format", kFormat},
                                          {"version", kVersion},
                                          {"sequence_length", settings.sequence_length},
                                          {"repeats", settings.repeats},
                                          {"short_probability", settings.short_probability},
                                          {"random_probability", settings.random_probability},
                                          {"mask_probability", settings.mask_probability},
                                          {"whole_words", settings.whole_words},
                                          {"static_masking", settings.static_masking},
                                          {"lowercase", settings.lowercase},
                                          {"seed", settings.seed},
                                          {"vocabulary_size", description.vocabulary_size},
                                          {"pairs", description.pairs},
                                          {"tokens", description.tokens}};
  write_file(folder / kPairsDescription, content.dump(2) + "\n");
}

}  // namespace trireme::data::detail
