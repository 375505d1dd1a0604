// SPDX-License-Identifier: Apache-2.0
#include <trireme/base/config/configuration.h>

#include "tests/unit/base/config/settings.h"
#include <trireme/base/error.h>

#include <gmock/gmock.h>
#include <tests/temporary_folder.h>

#include <chrono>
#include <cmath>
#include <limits>
#include <sstream>

namespace trireme::config::test {
namespace {

using std::chrono::milliseconds;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using trireme::test::message_of;
using trireme::test::TemporaryFolder;

constexpr const char* kEverything = R"(
name = "wide"
epochs = 20
seed = -3
learning_rate = 1        # integers are numbers
momentum = 0.5
shuffle = false
clip_norm = 1.5
head = { width = 10, bias = false }
milestones = [1, 2, 3]
tags = ["a", "b, c"]
layers = [{ width = 4 }, { bias = false }]
stages = [["embedding", 3], ["head", 0]]
patience = "2 min"
limit = "1.5 h"

[images]
folder = "/data/images"
interpolation = "nearest"
mean = [0.1, 0.2, 0.3]
)";

// Reads `text` into settings of its own and returns the error's message.
std::string error_of(std::string_view text) {
  Settings settings;
  Configuration configuration(settings);
  const std::string message =
      message_of<ConfigError>([&] { configuration.read_text(text, "train.toml"); });
  EXPECT_EQ(settings, Settings{}) << "something of a wrong file was taken";
  return message;
}

std::string error_of_set(const std::string& assignment) {
  Settings settings;
  Configuration configuration(settings);
  const std::string message = message_of<ConfigError>([&] { configuration.set(assignment); });
  EXPECT_EQ(settings, Settings{});
  return message;
}

Settings set_to(const std::vector<std::string>& assignments) {
  Settings settings;
  Configuration configuration(settings);
  for (const std::string& assignment : assignments) configuration.set(assignment);
  return settings;
}

TEST(Configuration, ReadsEveryKindOfField) {
  Settings settings;
  Configuration configuration(settings);
  configuration.read_text(kEverything, "train.toml");
  EXPECT_EQ(settings.name, "wide");
  EXPECT_EQ(settings.epochs, 20);
  EXPECT_EQ(settings.seed, -3);
  EXPECT_EQ(settings.learning_rate, 1.0);
  EXPECT_EQ(settings.momentum, 0.5F);
  EXPECT_FALSE(settings.shuffle);
  EXPECT_EQ(settings.clip_norm, 1.5);
  EXPECT_EQ(settings.head, (Layer{.width = 10, .bias = false}));
  EXPECT_THAT(settings.milestones, ElementsAre(1, 2, 3));
  EXPECT_THAT(settings.tags, ElementsAre("a", "b, c"));
  EXPECT_THAT(settings.layers, ElementsAre(Layer{.width = 4}, Layer{.bias = false}));
  EXPECT_THAT(settings.stages, ElementsAre(std::pair("embedding", 3), std::pair("head", 0)));
  EXPECT_EQ(settings.patience, std::chrono::minutes(2));
  EXPECT_EQ(settings.limit, std::chrono::minutes(90));
  EXPECT_EQ(settings.images.folder, "/data/images");
  EXPECT_EQ(settings.images.interpolation, Interpolation::kNearest);
  EXPECT_THAT(settings.images.mean, ElementsAre(0.1, 0.2, 0.3));
}

TEST(Configuration, WhatAFileDoesNotNameStays) {
  Settings settings;
  Configuration configuration(settings);
  configuration.read_text("epochs = 3\n", "a.toml");
  configuration.read_text("images.mean = [0, 0, 0]\n", "b.toml");
  configuration.read_text("", "empty.toml");
  EXPECT_EQ(settings.epochs, 3);
  EXPECT_THAT(settings.images.mean, ElementsAre(0, 0, 0));
  EXPECT_EQ(settings.images.folder, "data");
}

TEST(Configuration, NamesFileLineColumnKeyValueAndWhatWasExpected) {
  EXPECT_THAT(
      error_of("epochs = 3\nlearning_rate = \"fast\"\n"),
      HasSubstr("train.toml:2:17: learning_rate is \"fast\", expected a number, above 0, 10 "
                "or less"));
  EXPECT_THAT(error_of("[images]\n  mean = [0.5, 2, 0.5]\n"),
              HasSubstr("train.toml:2:10: images.mean is [0.5, 2, 0.5], expected a list of 3, each "
                        "a number, 0 to 1"));
  EXPECT_THAT(error_of("epochs = 0"),
              HasSubstr("train.toml:1:10: epochs is 0, expected an integer, "
                        "1 or more"));
  EXPECT_THAT(error_of("epochs = 2.0"), HasSubstr("epochs is 2.0, expected an integer"));
  EXPECT_THAT(error_of("seed = 3000000000"),
              HasSubstr("expected an integer from -2147483648 to 2147483647"));
  EXPECT_THAT(error_of("momentum = 1"), HasSubstr("expected a number, 0 or more, below 1"));
  EXPECT_THAT(error_of("momentum = 1e300"), HasSubstr("momentum is 1e+300, expected a number"));
  EXPECT_THAT(error_of("shuffle = \"yes\""), HasSubstr("expected true or false"));
  EXPECT_THAT(error_of("name = \"a/b\""), HasSubstr("expected a text in quotes, without a slash"));
  EXPECT_THAT(error_of("name = 3"), HasSubstr("name is 3, expected a text in quotes"));
  EXPECT_THAT(error_of("clip_norm = -1"),
              HasSubstr("clip_norm is -1, expected a number, or \"none\", above 0"));
  EXPECT_THAT(error_of("milestones = [1, \"x\"]"),
              HasSubstr("train.toml:1:18: milestones[1] is \"x\", expected an integer, 1 or more"));
  EXPECT_THAT(error_of("milestones = 3"),
              HasSubstr("milestones is 3, expected a list, each an integer, 1 or more"));
  EXPECT_THAT(error_of("images.mean = [1, 1]"), HasSubstr("expected a list of 3"));
  EXPECT_THAT(error_of("stages = [[\"a\"]]"), HasSubstr("stages[0] is [\"a\"], expected a list of "
                                                        "two, a text in quotes and an integer"));
  EXPECT_THAT(error_of("stages = [[1, 2]]"), HasSubstr("stages[0][0] is 1"));
  EXPECT_THAT(error_of("patience = 30"),
              HasSubstr("patience is 30, expected a duration such as \"30 s\" or \"1.5 h\", in "
                        "whole 1 ms, 0 ms or more"));
  EXPECT_THAT(error_of("patience = \"0.5 us\""), HasSubstr("in whole 1 ms"));
  EXPECT_THAT(error_of("limit = \"soon\""), HasSubstr("limit is \"soon\", expected a duration"));
  EXPECT_THAT(error_of("images = 3"), HasSubstr("images is 3, expected a table of settings"));
  EXPECT_THAT(error_of("head = 3"), HasSubstr("head is 3, expected a table"));
  EXPECT_THAT(error_of("epochs = 2026-01-01"),
              HasSubstr("epochs is 2026-01-01, expected an integer"));
  EXPECT_THAT(error_of("images.folder = 7"), HasSubstr("expected a path in quotes"));
}

TEST(Configuration, AnEnumerationListsItsNamesAndSuggestsOne) {
  const std::string message = error_of("images.interpolation = \"bilinaer\"");
  EXPECT_THAT(message,
              HasSubstr("images.interpolation is \"bilinaer\", expected one of \"nearest\", "
                        "\"bilinear\""));
  EXPECT_THAT(message, HasSubstr("hint: did you mean 'bilinear'?"));
  EXPECT_THAT(error_of("images.interpolation = 1"), Not(HasSubstr("did you mean")));
}

TEST(Configuration, SuggestsTheKeyThatWasMeant) {
  EXPECT_THAT(error_of("epohcs = 3"),
              HasSubstr("train.toml:1:1: there is no setting 'epohcs' (3)\n  hint: did you mean "
                        "'epochs'?"));
  EXPECT_THAT(error_of("[images]\nfodler = \"x\""), HasSubstr("did you mean 'images.folder'?"));
  EXPECT_THAT(error_of("[image]\nfolder = \"x\""), HasSubstr("did you mean 'images'?"));
  EXPECT_THAT(error_of("Learning-Rate = 1"), HasSubstr("did you mean 'learning_rate'?"));
  // The right name in the wrong table.
  EXPECT_THAT(error_of("interpolation = \"nearest\""), HasSubstr("'images.interpolation'?"));
  EXPECT_THAT(error_of("layers = [{ wdith = 3 }]"),
              HasSubstr("there is no setting 'layers[0].wdith' (3)\n  hint: did you mean "
                        "'layers[0].width'?"));
}

TEST(Configuration, ListsWhatThereIsWhereNothingIsNear) {
  EXPECT_THAT(error_of("[images]\nxyzzy = 1"),
              HasSubstr("hint: the settings of images are folder, interpolation, mean"));
  EXPECT_THAT(error_of("layers = [{ xyzzy = 3 }]"),
              HasSubstr("the settings of layers[0] are width, bias"));
  EXPECT_THAT(error_of("xyzzy = 1"), HasSubstr("the settings are name, epochs, seed, "));
}

TEST(Configuration, TellsEverythingThatIsWrongInTheOrderOfTheFile) {
  const std::string message = error_of("epohcs = 3\nseed = \"x\"\nshuffle = true\nepochs = 0\n");
  EXPECT_THAT(message,
              HasSubstr("3 settings are wrong:\n"
                        "  train.toml:1:1: there is no setting 'epohcs' (3) (did you mean "
                        "'epochs'?)\n"
                        "  train.toml:2:8: seed is \"x\", expected an integer\n"
                        "  train.toml:4:10: epochs is 0, expected an integer, 1 or more\n"));
}

TEST(Configuration, NamesThePlaceWhereTextIsNotToml) {
  EXPECT_THAT(error_of("epochs = 3\nepochs = 4\n"), HasSubstr("train.toml:2:"));
  EXPECT_THAT(error_of("a = \n"), HasSubstr("train.toml:1:"));
  EXPECT_THAT(error_of("name = \"\xff\"\n"), HasSubstr("train.toml:1:"));
}

TEST(Configuration, FilesThatAreMissingOrFoldersAreErrors) {
  const TemporaryFolder folder;
  Settings settings;
  Configuration configuration(settings);
  for (const auto& file : {folder / "none.toml", folder.path()}) {
    EXPECT_THAT(message_of<ConfigError>([&] { configuration.read_file(file); }),
                HasSubstr("cannot read the configuration file " + file.string()));
  }
  configuration.read_file(folder.write("epochs.toml", "epochs = 7"));
  EXPECT_EQ(settings.epochs, 7);
}

TEST(CommandLine, TakesTextsWithoutQuotesAndListsWithoutBrackets) {
  const Settings settings =
      set_to({"name=1e3", "tags=a,b c, d", "milestones=5,6", "learning_rate=.5", "shuffle=false",
              "images.interpolation=nearest", "patience=30s", "images.folder=/a=b", "clip_norm=2"});
  EXPECT_EQ(settings.name, "1e3");
  EXPECT_THAT(settings.tags, ElementsAre("a", "b c", "d"));
  EXPECT_THAT(settings.milestones, ElementsAre(5, 6));
  EXPECT_EQ(settings.learning_rate, 0.5);
  EXPECT_FALSE(settings.shuffle);
  EXPECT_EQ(settings.images.interpolation, Interpolation::kNearest);
  EXPECT_EQ(settings.patience, std::chrono::seconds(30));
  EXPECT_EQ(settings.images.folder, "/a=b");
  EXPECT_EQ(settings.clip_norm, 2.0);
}

TEST(CommandLine, TakesTomlToo) {
  const Settings settings = set_to({"name=\"a b\"", "tags=[\"x,y\"]", "milestones=[]",
                                    "images={mean=[0, 0, 1]}", "stages=[[\"a\", 1]]"});
  EXPECT_EQ(settings.name, "a b");
  EXPECT_THAT(settings.tags, ElementsAre("x,y"));
  EXPECT_THAT(settings.milestones, IsEmpty());
  EXPECT_THAT(settings.images.mean, ElementsAre(0, 0, 1));
  EXPECT_THAT(settings.stages, ElementsAre(std::pair("a", 1)));
}

TEST(CommandLine, ReachesIntoListsAndTables) {
  const Settings settings = set_to({"layers=[{width=1},{width=2}]", "layers.1.bias=false",
                                    "layers.2.width=3", "head.width=5", "milestones.0=9"});
  EXPECT_THAT(settings.layers,
              ElementsAre(Layer{.width = 1}, Layer{.width = 2, .bias = false}, Layer{.width = 3}));
  EXPECT_EQ(settings.head, Layer{.width = 5});
  EXPECT_THAT(settings.milestones, ElementsAre(9, 60));
  EXPECT_THAT(error_of_set("layers.1.width=3"), HasSubstr("there is no setting 'layers.1.width'"));
  EXPECT_THAT(error_of_set("head.wdith=3"), HasSubstr("did you mean 'head.width'?"));
  EXPECT_THAT(error_of_set("epochs.x=3"), HasSubstr("there is no setting 'epochs.x'"));
}

TEST(CommandLine, NoneTakesAnOptionalAway) {
  EXPECT_EQ(set_to({"clip_norm=1", "clip_norm=none"}).clip_norm, std::nullopt);
  EXPECT_EQ(set_to({"head.width=1", "head=none"}).head, std::nullopt);
}

TEST(CommandLine, ErrorsShowTheArgument) {
  EXPECT_THAT(error_of_set("epochs=many"),
              HasSubstr("--set epochs=many: epochs is \"many\", expected an integer, 1 or more"));
  EXPECT_THAT(error_of_set("epohcs=3"), HasSubstr("did you mean 'epochs'?"));
  EXPECT_THAT(error_of_set("epochs"), HasSubstr("--set epochs: expected KEY=VALUE"));
  EXPECT_THAT(error_of_set("=3"), HasSubstr("expected KEY=VALUE"));
  EXPECT_THAT(error_of_set("milestones=[1, \"x\"]"),
              HasSubstr("--set milestones=[1, \"x\"]: milestones[1] is \"x\""));
  // No way to set a second key by the value of one.
  EXPECT_THAT(error_of_set("epochs=3\nseed = 4"), HasSubstr("epochs is"));
}

TEST(CommandLine, IsReadAfterFilesWhateverTheOrder) {
  const TemporaryFolder folder;
  const auto file = folder.write("a.toml", "epochs = 3\nseed = 3\n");
  Settings settings;
  Configuration configuration(settings);
  std::ostringstream output;
  EXPECT_TRUE(configuration.read_command_line(
      {"--set", "epochs=5", "--config=" + file.string(), "--set=name=x=y"}, output));
  EXPECT_EQ(settings.epochs, 5);
  EXPECT_EQ(settings.seed, 3);
  EXPECT_EQ(settings.name, "x=y");
  EXPECT_EQ(output.str(), "");
}

TEST(CommandLine, RefusesOtherArguments) {
  Settings settings;
  Configuration configuration(settings);
  std::ostringstream output;
  const auto message = [&](const std::vector<std::string>& arguments) {
    return message_of<ConfigError>([&] { configuration.read_command_line(arguments, output); });
  };
  EXPECT_THAT(message({"--sett", "a=b"}),
              HasSubstr("unknown argument '--sett'\n  hint: did you mean "
                        "'--set'?"));
  EXPECT_THAT(message({"train"}), HasSubstr("expected --config FILE, --set KEY=VALUE or --help"));
  EXPECT_THAT(message({"--set"}),
              HasSubstr("--set is the last argument, expected KEY=VALUE after"));
  EXPECT_THAT(message({"--config"}), HasSubstr("expected a file after it"));
}

TEST(CommandLine, HelpListsEveryKeyWithValueTypeAndDescription) {
  Settings settings;
  Configuration configuration(settings);
  std::ostringstream output;
  EXPECT_FALSE(configuration.read_command_line({"--set", "epochs=bad", "--help"}, output));
  const std::string help = output.str();
  EXPECT_THAT(help, HasSubstr("--set KEY=VALUE"));
  EXPECT_THAT(help, HasSubstr("epochs = 10\n    passes over the data (an integer, 1 or more)\n"));
  EXPECT_THAT(help, HasSubstr("clip_norm = \"none\"\n"));
  EXPECT_THAT(help, HasSubstr("\n[images] What comes in.\nimages.folder = \"data\"\n"));
  for (const std::string& key : configuration.keys()) EXPECT_THAT(help, HasSubstr(key + " = "));
}

TEST(CommandLine, ArgumentsOfMainSkipTheProgramsName) {
  Settings settings;
  Configuration configuration(settings);
  const std::vector<const char*> arguments = {"program", "--set", "epochs=4"};
  EXPECT_TRUE(configuration.read_command_line(3, arguments.data()));
  EXPECT_EQ(settings.epochs, 4);
  EXPECT_TRUE(configuration.read_command_line(0, nullptr));
}

TEST(Origins, TellWhereEachValueCameFrom) {
  Settings settings;
  settings.seed = 5;  // before
  Configuration configuration(settings);
  configuration.read_text("\n[images]\nfolder = \"x\"\n", "dir/train.toml");
  configuration.set("epochs=4");
  settings.name = "later";
  const auto origin = [&](const char* key) { return to_string(configuration.origin_of(key)); };
  EXPECT_EQ(origin("shuffle"), "default");
  EXPECT_EQ(origin("seed"), "set by the program");
  EXPECT_EQ(origin("name"), "set by the program");
  EXPECT_EQ(origin("images.folder"), "dir/train.toml:3:10");
  EXPECT_EQ(origin("epochs"), "--set epochs=4");
  settings.epochs = 6;
  EXPECT_EQ(origin("epochs"), "set by the program");
  EXPECT_THAT(message_of<UsageError>([&] { configuration.origin_of("epoch"); }),
              HasSubstr("did you mean 'epochs'?"));
}

TEST(Saved, ReadsBackAsTheSameSettings) {
  Settings settings;
  Configuration configuration(settings);
  configuration.read_text(kEverything, "train.toml");
  settings.name = "quote \" backslash \\ tab \t newline \n umlaut \xC3\xBC '";
  settings.learning_rate = 0.1 + 0.2;
  settings.momentum = 0.1F;
  settings.limit = std::chrono::duration<double>(1.0 / 3);
  settings.tags = {"", "x"};
  settings.head.reset();
  const TemporaryFolder folder;
  configuration.save(folder / "config.toml");

  Settings again;
  Configuration read(again);
  read.read_file(folder / "config.toml");
  EXPECT_EQ(again, settings);
  EXPECT_EQ(again.learning_rate, settings.learning_rate);
}

TEST(Saved, SaysWhereEachValueCameFrom) {
  Settings settings;
  Configuration configuration(settings);
  configuration.read_text("epochs = 20\n[images]\nfolder = \"/data\"\n", "a\nb.toml");
  configuration.set("seed=4");
  const std::string text = configuration.to_toml();
  EXPECT_THAT(text, HasSubstr("name = \"demo\"                             # default\n"));
  EXPECT_THAT(text, HasSubstr("epochs = 20                               # a?b.toml:1:10\n"));
  EXPECT_THAT(text, HasSubstr("seed = 4                                  # command line\n"));
  EXPECT_THAT(text, HasSubstr("momentum = 0.9    "));
  EXPECT_THAT(text, HasSubstr("patience = \"1500 ms\""));
  EXPECT_THAT(text, HasSubstr("\n[images]\nfolder = \"/data\"  "));
  EXPECT_THAT(text, HasSubstr("mean = [0.5, 0.5, 0.5]"));
}

TEST(Saved, NumbersThatAreNoneReadBack) {
  struct Numbers {
    double none = std::numeric_limits<double>::quiet_NaN();
    double all = std::numeric_limits<double>::infinity();
    double tiny = 5e-324;
    void fields(Fields& fields) {
      fields.add("none", none, "");
      fields.add("all", all, "");
      fields.add("tiny", tiny, "");
    }
  };
  Numbers written;
  const std::string text = Configuration(written).to_toml();
  Numbers read = {0, 0, 0};
  Configuration(read).read_text(text, "saved");
  EXPECT_TRUE(std::isnan(read.none));
  EXPECT_TRUE(std::isinf(read.all));
  EXPECT_EQ(read.tiny, 5e-324);
}

TEST(Saved, RefusesWhatTheProgramSetBeyondItsLimits) {
  Settings settings;
  const Configuration configuration(settings);
  settings.epochs = 0;
  settings.images.interpolation = static_cast<Interpolation>(7);
  const std::string message = message_of<ConfigError>([&] { (void)configuration.to_toml(); });
  EXPECT_THAT(message,
              HasSubstr("set by the program: epochs is 0, expected an integer, 1 or more"));
  EXPECT_THAT(message, HasSubstr("images.interpolation is 7, expected one of"));
}

TEST(Saved, RefusesTextsThatTomlCannotHold) {
  struct Texts {
    std::string text;
    std::optional<std::string> optional;
    void fields(Fields& fields) {
      fields.add("text", text, "");
      fields.add("optional", optional, "");
    }
  };
  Texts texts;
  const Configuration configuration(texts);
  texts.text = "\xff\xfe";
  EXPECT_THAT(message_of<ConfigError>([&] { (void)configuration.to_toml(); }),
              HasSubstr("which TOML cannot hold"));
  texts.text = "";
  texts.optional = "none";
  EXPECT_THAT(message_of<ConfigError>([&] { (void)configuration.to_toml(); }),
              HasSubstr("stands for one that is not set"));
}

TEST(Fields, RefuseNamesThatCannotBeKeysOrAreThereAlready) {
  int value = 0;
  Fields fields;
  fields.add("a", value, "");
  EXPECT_THAT(message_of<UsageError>([&] { fields.add("a", value, ""); }),
              HasSubstr("two settings are called 'a'"));
  EXPECT_THAT(message_of<UsageError>([&] { fields.add("b.c", value, ""); }),
              HasSubstr("a setting is called 'b.c', expected letters, digits and underscores"));
  EXPECT_THROW(fields.add("", value, ""), UsageError);
}

TEST(Configuration, GivesEachValueAsText) {
  Settings settings;
  const Configuration configuration(settings);
  const auto texts = configuration.to_texts();
  EXPECT_EQ(texts.at("images.interpolation"), "\"bilinear\"");
  EXPECT_EQ(texts.at("learning_rate"), "0.1");
  EXPECT_EQ(texts.size(), configuration.keys().size());
}

}  // namespace
}  // namespace trireme::config::test
