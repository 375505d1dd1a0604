// SPDX-License-Identifier: Apache-2.0
#include <trireme/checkpoint/checkpoint.h>

#include <trireme/base/error.h>
#include <trireme/checkpoint/convert.h>
#include <trireme/checkpoint/index.h>
#include <trireme/checkpoint/inspect.h>
#include <trireme/checkpoint/module_state.h>
#include <trireme/checkpoint/optimizer_state.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/mount.h>
#include <sys/wait.h>
#include <tests/temporary_folder.h>
#include <torch/torch.h>
#include <unistd.h>
#include <zlib.h>

#include <chrono>
#include <csignal>
#include <fstream>
#include <string>
#include <thread>
#include <utility>

namespace trireme::checkpoint {
namespace {

using test::message_of;
using test::read_file;
using test::TemporaryFolder;
using test::write_file;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

class Checkpoint : public ::testing::Test {
 protected:
  torch::nn::Linear net_{4, 3};
  torch::optim::SGD optimizer_{net_->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9)};
  TemporaryFolder folder_;
  SaveOptions options_{.folder = folder_.path(), .prefix = "demo"};

  void SetUp() override {
    net_->forward(torch::randn({2, 4})).sum().backward();
    optimizer_.step();
  }

  std::filesystem::path save_at(std::int64_t step, torch::optim::Optimizer* optimizer = nullptr) {
    return save(options_, *net_, optimizer, {.epoch = 1, .step = step, .entries = {}});
  }

  std::string load_error(const std::filesystem::path& path,
                         torch::optim::Optimizer* optimizer = nullptr) {
    return message_of<CheckpointError>([&] { load(path, *net_, optimizer); });
  }
};

TEST_F(Checkpoint, GivesBackModelOptimizerAndState) {
  const State state{
      .epoch = 3, .step = 42, .entries = {{"plan", "any \"text\"\n"}, {"sampler", "{}"}}};
  const auto path = save(options_, *net_, &optimizer_, state);
  EXPECT_EQ(path, folder_ / "demo-3_42");
  EXPECT_TRUE(net_->weight.grad().defined()) << "saving leaves gradients alone";

  torch::nn::Linear other(4, 3);
  torch::optim::SGD other_optimizer(other->parameters(), torch::optim::SGDOptions(0.5));
  const State loaded = load(path, *other, &other_optimizer);
  EXPECT_EQ(loaded.epoch, 3);
  EXPECT_EQ(loaded.step, 42);
  EXPECT_THAT(loaded.entries, ElementsAre(Pair("plan", "any \"text\"\n"), Pair("sampler", "{}")));
  EXPECT_TRUE(torch::equal(other->weight, net_->weight));
  EXPECT_EQ(other_optimizer.param_groups()[0].options().get_lr(), 0.1);
  EXPECT_EQ(other_optimizer.state().size(), 2U);
}

TEST_F(Checkpoint, KeepsTheLastOnes) {
  options_.keep = 2;
  for (const std::int64_t step : {8, 9, 10, 11}) save_at(step);
  EXPECT_THAT(list_checkpoints(folder_.path(), "demo"),
              ElementsAre(folder_ / "demo-1_10", folder_ / "demo-1_11"));
  options_.keep = 0;
  save_at(12);
  EXPECT_EQ(list_checkpoints(folder_.path(), "demo").size(), 3U);
  options_.keep = 1;
  save_at(1);
  EXPECT_THAT(list_checkpoints(folder_.path(), "demo"), ElementsAre(folder_ / "demo-1_1"))
      << "the one just saved stays, whatever its number";
  options_.keep = -1;
  EXPECT_THAT(message_of<UsageError>([&] { save_at(2); }),
              HasSubstr("asked to keep -1 checkpoints"));
}

TEST_F(Checkpoint, ReplacesTheSameStep) {
  save_at(1);
  const torch::NoGradGuard no_grad;
  net_->weight.fill_(7);
  const auto path = save_at(1);
  net_->weight.fill_(0);
  load(path, *net_, nullptr);
  EXPECT_EQ(net_->weight[0][0].item<float>(), 7);
}

TEST_F(Checkpoint, LoadsTheModelAloneFromACheckpointWithAnOptimizer) {
  const auto path = save_at(1, &optimizer_);
  load(path, *net_, nullptr);
  EXPECT_THAT(load_error(save_at(2), &optimizer_), HasSubstr("lists no optimizer"));
}

TEST_F(Checkpoint, LeavesNoTracesWhereTheOptimizerCannotBeSaved) {
  torch::optim::LBFGS lbfgs(net_->parameters());
  EXPECT_THROW(save_at(1, &lbfgs), UsageError);
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
}

TEST_F(Checkpoint, OfAnotherModelNamesTheParameterAndChangesNeitherModelNorOptimizer) {
  const auto path = save_at(1, &optimizer_);
  torch::nn::Linear other(4, 5);
  torch::optim::SGD other_optimizer(other->parameters(), 0.5);
  EXPECT_THAT(
      message_of<CheckpointError>([&] { load(path, *other, &other_optimizer); }),
      AllOf(HasSubstr((path / "model.safetensors").string()),
            HasSubstr("parameter 'weight' has shape [3, 4] there and [5, 4] in the model")));
  EXPECT_EQ(other_optimizer.param_groups()[0].options().get_lr(), 0.5);

  // A model that fits beside an optimizer that does not: the model stays as it is, too.
  torch::nn::Linear same(4, 3);
  const auto before = same->weight.clone();
  torch::optim::Adam adam(same->parameters());
  EXPECT_THAT(message_of<CheckpointError>([&] { load(path, *same, &adam); }),
              HasSubstr("holds the state of SGD, and the optimizer is Adam"));
  EXPECT_TRUE(torch::equal(before, same->weight));
}

TEST_F(Checkpoint, CutShortSaysExpectedAndActualSize) {
  const auto path = save_at(1);
  const auto model = path / "model.safetensors";
  const auto size = std::filesystem::file_size(model);
  std::filesystem::resize_file(model, size - 1);
  EXPECT_THAT(load_error(path),
              HasSubstr(model.string() + " is cut short: it has " + std::to_string(size - 1) +
                        " bytes, expected " + std::to_string(size)));
  std::filesystem::resize_file(model, size + 1);
  EXPECT_THAT(load_error(path), HasSubstr("is too long"));
  std::filesystem::remove(model);
  EXPECT_THAT(load_error(path), HasSubstr(model.string() + " cannot be opened: No such file"));
}

TEST_F(Checkpoint, FindsEveryFlippedBit) {
  torch::nn::Linear net(2, 1);
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  net->forward(torch::ones({1, 2})).sum().backward();
  optimizer.step();
  // Letters in an escape and in a number, where a bit of case changes no meaning.
  const auto path =
      save(options_, *net, &optimizer,
           {.epoch = 1, .step = 1, .entries = {{"odd", "\x1f"}, {"raw", "\xff\xfe"}}});
  std::size_t bits = 0;
  for (const auto& entry : std::filesystem::directory_iterator(path)) {
    const std::string good = read_file(entry.path());
    // In place: a file system flushes what is cut and written anew.
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    const auto put = [&](std::size_t byte, char value) {
      file.seekp(static_cast<std::streamoff>(byte)).put(value).flush();
    };
    for (std::size_t place = 0; place < 8 * good.size(); ++place, ++bits) {
      put(place / 8, static_cast<char>(good[place / 8] ^ (1 << place % 8)));
      EXPECT_THROW(load(path, *net, &optimizer), CheckpointError)
          << "bit " << place % 8 << " of byte " << place / 8 << " of " << entry.path();
      put(place / 8, good[place / 8]);
    }
  }
  EXPECT_GT(bits, 10000U);
  EXPECT_EQ(load(path, *net, &optimizer).entries.at("raw"), "\xff\xfe");
}

TEST_F(Checkpoint, SaysWhatIsWrongWithAnIndex) {
  const auto path = save_at(1, &optimizer_);
  const std::string good = read_file(path / "index.json");
  std::string damaged = good;
  damaged[good.find("\"epoch\": 1") + 9] = '2';
  write_file(path / "index.json", damaged);
  EXPECT_THAT(load_error(path), HasSubstr("index.json is damaged: its checksum does not match"));
  write_file(path / "index.json", good.substr(0, 20));
  EXPECT_THAT(load_error(path),
              HasSubstr("is cut short or damaged: its 20 bytes are not a JSON object"));
  write_file(path / "index.json", R"({"format": 3})");
  EXPECT_THAT(load_error(path), HasSubstr("is of format 3, expected 2"));
  write_file(path / "index.json", good);
  write_file(path / "order", "7\n");
  EXPECT_THAT(load_error(path), HasSubstr("order is damaged: it should hold 1"));
}

TEST_F(Checkpoint, SaysWhenAFileIsOfAnotherRun) {
  const auto path = save_at(1);
  const auto other = save_at(2);
  const torch::NoGradGuard no_grad;
  net_->weight.fill_(7);
  const auto third = save_at(3);
  std::filesystem::copy_file(third / "model.safetensors", path / "model.safetensors",
                             std::filesystem::copy_options::overwrite_existing);
  EXPECT_THAT(load_error(path), HasSubstr("it is of another checkpoint"));
  std::filesystem::copy_file(path / "index.json", other / "index.json",
                             std::filesystem::copy_options::overwrite_existing);
  EXPECT_THAT(load_error(other), HasSubstr("order is damaged: it should hold 1"));
}

TEST_F(Checkpoint, GivesBackWhatThisRankSavedForItselfAndScores) {
  options_.score = 0.25;
  const auto path =
      save(options_, *net_, &optimizer_, {.epoch = 1, .step = 1, .own = {{"random", "\x80 text"}}});
  const State loaded = load(path, *net_, &optimizer_);
  EXPECT_THAT(loaded.own, ElementsAre(Pair("random", "\x80 text")));
  EXPECT_THAT(loaded.of_ranks, ElementsAre(loaded.own));
  EXPECT_EQ(read_index(path).score, 0.25);
}

TEST_F(Checkpoint, LoadsWeightsUnderOtherNamesAndSomeOfThem) {
  const auto path = save_at(1, &optimizer_);
  struct Net : torch::nn::Module {
    torch::nn::Linear head{register_module("head", torch::nn::Linear(4, 3))};
    torch::nn::Linear extra{register_module("extra", torch::nn::Linear(2, 2))};
  } other;
  const auto under_head = [](const std::string& name) { return "head." + name; };
  EXPECT_THAT(message_of<CheckpointError>([&] { load_model(path, other, {.rename = under_head}); }),
              HasSubstr("of another model: 2 missing, first 'extra.bias', 0 unexpected"));
  const auto before = other.extra->weight.clone();
  const LoadedModel loaded = load_model(path, other, {.rename = under_head, .strict = false});
  EXPECT_THAT(loaded.missing, ElementsAre("extra.bias", "extra.weight"));
  EXPECT_TRUE(loaded.unexpected.empty());
  EXPECT_TRUE(torch::equal(other.head->weight, net_->weight));
  EXPECT_TRUE(torch::equal(other.extra->weight, before));

  const LoadedModel one = load_model(
      path, other, {.names = {{"bias", ""}, {"weight", "head.weight"}}, .strict = false});
  EXPECT_EQ(one.missing.size(), 3U);
  EXPECT_THAT(message_of<CheckpointError>([&] {
                load_model(path, other, {.names = {{"wieght", "head.weight"}}, .strict = false});
              }),
              HasSubstr("has no tensor 'wieght'"));
  EXPECT_THAT(message_of<CheckpointError>([&] {
                load_model(path, other,
                           {.rename = [](const auto&) { return "x"; }, .strict = false});
              }),
              HasSubstr("'bias' and 'weight' would both be 'x'"));
  EXPECT_THAT(message_of<CheckpointError>([&] {
                load_model(path, other, {.names = {{"weight", "extra.weight"}}, .strict = false});
              }),
              HasSubstr("'extra.weight' is F32 [3, 4] there and F32 [2, 2] in the model"));
}

// Frequencies of a rotary embedding, and a weight that is trained.
struct Rotary : torch::nn::Module {
  at::Tensor weight{register_parameter("weight", torch::randn({4, 3}, at::kComplexFloat))};
  at::Tensor frequencies{register_buffer("frequencies", torch::randn({6}, at::kComplexDouble))};
  torch::nn::Linear linear{register_module("linear", torch::nn::Linear(2, 2))};
};

TEST_F(Checkpoint, GivesBackComplexParametersAndBuffersAndTheirOptimizer) {
  Rotary rotary;
  torch::optim::Adam adam(rotary.parameters());
  (torch::view_as_real(rotary.weight).square().sum() + rotary.linear->weight.sum()).backward();
  adam.step();
  const auto path = save(options_, rotary, &adam, {.epoch = 1, .step = 2});
  Rotary other;
  torch::optim::Adam other_adam(other.parameters());
  load(path, other, &other_adam);
  EXPECT_TRUE(torch::equal(other.weight, rotary.weight));
  EXPECT_TRUE(torch::equal(other.frequencies, rotary.frequencies));
  const auto average = [](torch::optim::Adam& of, const at::Tensor& parameter) {
    return static_cast<torch::optim::AdamParamState&>(
               *of.state().at(parameter.unsafeGetTensorImpl()))
        .exp_avg();
  };
  EXPECT_TRUE(average(adam, rotary.weight).is_complex());
  EXPECT_TRUE(torch::equal(average(adam, rotary.weight), average(other_adam, other.weight)));

  // One file for others, in which pairs are real, and back.
  export_safetensors(path, folder_ / "weights.safetensors");
  Rotary third;
  load_model(folder_ / "weights.safetensors", third);
  EXPECT_TRUE(torch::equal(third.weight, rotary.weight));
  EXPECT_THAT(describe_checkpoint(path),
              AllOf(HasSubstr("weight         C64 [4, 3]"), HasSubstr("frequencies    C128 [6]")));
  EXPECT_TRUE(
      differences(path, convert(path, {.folder = folder_.path(), .prefix = "new"})).empty());
  {
    const torch::NoGradGuard no_grad;
    rotary.weight[0][0] += c10::complex<float>(0, 2);
  }
  EXPECT_THAT(differences(path, save(options_, rotary, nullptr, {.epoch = 1, .step = 3})),
              ::testing::Contains("model: weight differs in 1 of 12 elements, by 2 at most"));
}

TEST_F(Checkpoint, LeavesOutWhatItIsToldToAndLoadingLeavesItAsItIs) {
  Rotary rotary;
  options_.leave_out = {"freq*", "linear.bias"};
  const auto path = save(options_, rotary, nullptr, {.epoch = 1, .step = 2});
  EXPECT_EQ(read_index(path).sections.at("model").size(), 2U);
  EXPECT_THAT(describe_checkpoint(path),
              HasSubstr("model, left out when it was saved: frequencies linear.bias"));
  for (const bool is_model_alone : {false, true}) {
    Rotary other;
    const auto frequencies = other.frequencies.clone();
    const auto bias = other.linear->bias.detach().clone();
    if (is_model_alone) {
      EXPECT_TRUE(load_model(path, other).missing.empty());
    } else {
      load(path, other, nullptr);
    }
    EXPECT_TRUE(torch::equal(other.weight, rotary.weight));
    EXPECT_TRUE(torch::equal(other.frequencies, frequencies));
    EXPECT_TRUE(torch::equal(other.linear->bias, bias));
  }
  const auto anew = convert(path, {.folder = folder_.path(), .prefix = "new"});
  EXPECT_EQ(read_index(anew).left_out, read_index(path).left_out);

  options_.leave_out = {"frequency"};
  EXPECT_THAT(message_of<UsageError>([&] { save(options_, rotary, nullptr, {.epoch = 1}); }),
              HasSubstr("the pattern 'frequency', which fits no parameter and no buffer"));
  EXPECT_EQ(list_checkpoints(folder_.path(), "demo"), std::vector{path});
}

TEST_F(Checkpoint, OfFormat1ReadsFilesBesideItAlone) {
  write_safetensors(folder_ / "elsewhere.safetensors", module_tensors(*net_));
  const auto folder = folder_ / "old-2_3";
  std::filesystem::create_directory(folder);
  for (const std::string& name :
       {std::string("../elsewhere.safetensors"), (folder_ / "elsewhere.safetensors").string(),
        std::string(), std::string(".."), std::string("model.safetensors\0x", 19)}) {
    nlohmann::json document{{"entries", nlohmann::json::object()},
                            {"epoch", 2},
                            {"files", {{name, {{"bytes", 8}, {"crc32", 1}}}}},
                            {"format", 1},
                            {"step", 3}};
    const std::string text = document.dump();
    document["crc32"] =
        ::crc32_z(0, reinterpret_cast<const unsigned char*>(text.data()), text.size());
    write_file(folder / "state.json", document.dump(2) + "\n");
    EXPECT_THAT(load_error(folder), AllOf(HasSubstr("state.json lists the file '"),
                                          HasSubstr("expected one beside it")));
  }
}

TEST_F(Checkpoint, LoadsFormat1) {
  const auto folder = folder_ / "old-2_3";
  std::filesystem::create_directory(folder);
  const auto content = optimizer_state(optimizer_, *net_);
  const FileDigest model = write_safetensors(folder / "model.safetensors", module_tensors(*net_));
  const FileDigest optimizer = write_safetensors(folder / "optimizer.safetensors", content.tensors,
                                                 {{"trireme.optimizer", content.scalars}});
  const auto digest = [](const FileDigest& file) {
    return "{\"bytes\":" + std::to_string(file.bytes) + ",\"crc32\":" + std::to_string(file.crc32) +
           "}";
  };
  // The document without its own checksum, as format 1 had it, keys in order.
  const std::string text = R"({"entries":{"plan":"text"},"epoch":2,"files":{"model.safetensors":)" +
                           digest(model) + R"(,"optimizer.safetensors":)" + digest(optimizer) +
                           R"(},"format":1,"step":3})";
  const auto crc = ::crc32_z(0, reinterpret_cast<const unsigned char*>(text.data()), text.size());
  const auto write_state = [&](std::uint64_t checksum) {
    nlohmann::json document = nlohmann::json::parse(text);
    document["crc32"] = checksum;
    write_file(folder / "state.json", document.dump(2) + "\n");
  };
  write_state(crc);
  torch::nn::Linear other(4, 3);
  torch::optim::SGD other_optimizer(other->parameters(), torch::optim::SGDOptions(0.5));
  const State loaded = load(folder, *other, &other_optimizer);
  EXPECT_EQ(loaded.epoch, 2);
  EXPECT_EQ(loaded.step, 3);
  EXPECT_THAT(loaded.entries, ElementsAre(Pair("plan", "text")));
  EXPECT_TRUE(torch::equal(other->weight, net_->weight));
  EXPECT_EQ(other_optimizer.state().size(), 2U);

  const auto converted = convert(folder, {.folder = folder_.path(), .prefix = "new"});
  EXPECT_EQ(converted, folder_ / "new-2_3");
  EXPECT_TRUE(differences(folder, converted).empty());

  const std::string good = read_file(folder / "model.safetensors");
  std::string damaged = good;
  damaged[20] = static_cast<char>(damaged[20] ^ 1);
  write_file(folder / "model.safetensors", damaged);
  EXPECT_THAT(load_error(folder), HasSubstr("its checksum is not the one in state.json"));
  write_file(folder / "model.safetensors", good);
  write_state(crc ^ 1);
  EXPECT_THAT(load_error(folder), HasSubstr("state.json is damaged: its checksum does not match"));
}

TEST_F(Checkpoint, SaysThatNoFolderWasGiven) {
  options_.folder.clear();
  EXPECT_THAT(message_of<UsageError>([&] { save_at(1); }),
              HasSubstr("SaveOptions::folder is empty"));
}

TEST_F(Checkpoint, SaysWhenThereIsNone) {
  EXPECT_THAT(load_error(folder_ / "demo-1_1"),
              AllOf(HasSubstr("demo-1_1/index.json cannot be opened: No such file"),
                    HasSubstr("hint: give the folder")));
}

TEST_F(Checkpoint, SaysWhichFolderIsNotWritable) {
  write_file(folder_ / "file", "in the way");
  options_.folder = folder_ / "file" / "below";
  EXPECT_THAT(message_of<CheckpointError>([&] { save_at(1); }),
              AllOf(HasSubstr(options_.folder.string()), HasSubstr("Not a directory")));

  options_.folder = folder_ / "locked";
  std::filesystem::create_directory(options_.folder);
  std::filesystem::permissions(options_.folder, std::filesystem::perms(0555));
  std::filesystem::permissions(folder_.path(), std::filesystem::perms(0755));
  // Permissions do not bind root: become somebody else for the call.
  const bool is_root = ::geteuid() == 0;
  if (is_root) {
    ASSERT_EQ(::seteuid(65534), 0);
  }
  const std::string message = message_of<CheckpointError>([&] { save_at(1); });
  if (is_root) {
    ASSERT_EQ(::seteuid(0), 0);
  }
  EXPECT_THAT(message, AllOf(HasSubstr(options_.folder.string()), HasSubstr("Permission denied"),
                             HasSubstr("hint:")));
}

TEST_F(Checkpoint, OnAFullDiskLeavesTheEarlierOnes) {
  options_.folder = folder_ / "small disk";
  std::filesystem::create_directory(options_.folder);
  if (::mount("tmpfs", options_.folder.c_str(), "tmpfs", 0, "size=64k") != 0) {
    GTEST_SKIP() << "mounting a small disk needs root and the right to mount";
  }
  const auto first = save_at(1);
  torch::nn::Linear large(200, 200);
  const std::string message = message_of<CheckpointError>(
      [&] { save(options_, *large, nullptr, {.epoch = 1, .step = 2, .entries = {}}); });
  const auto left = std::distance(std::filesystem::directory_iterator(options_.folder), {});
  EXPECT_EQ(list_checkpoints(options_.folder, "demo"), std::vector{first});
  load(first, *net_, nullptr);
  ::umount(options_.folder.c_str());
  EXPECT_THAT(message, AllOf(HasSubstr("small disk"), HasSubstr("No space left"),
                             HasSubstr("hint: free space")));
  EXPECT_EQ(left, 1) << "the unfinished checkpoint has to be gone";
}

// Kills a writer at ten different moments; whatever readers see then has to load.
TEST_F(Checkpoint, KilledAtAnyMomentLeavesOnlyCompleteOnes) {
  options_.keep = 2;
  for (int round = 0; round < 10; ++round) {
    const pid_t writer = ::fork();
    ASSERT_GE(writer, 0);
    if (writer == 0) {
      for (std::int64_t step = 1000L * round;; ++step) save_at(step, &optimizer_);
    }
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    const std::int64_t wanted = 1000L * round + round % 7;
    const auto newest_step = [&]() -> std::int64_t {
      const auto newest = latest(folder_.path(), "demo");
      const std::string name = newest ? newest->filename().string() : "_-1";
      return std::stoll(name.substr(name.find('_') + 1));
    };
    while (newest_step() < wanted && std::chrono::steady_clock::now() < deadline)
      std::this_thread::yield();
    ::kill(writer, SIGKILL);
    ::waitpid(writer, nullptr, 0);

    const auto checkpoints = list_checkpoints(folder_.path(), "demo");
    ASSERT_FALSE(checkpoints.empty());
    for (const auto& path : checkpoints) load(path, *net_, &optimizer_);
  }
  save_at(1'000'000);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_.path()), {}), 2)
      << "leftovers are removed";
}

}  // namespace
}  // namespace trireme::checkpoint
