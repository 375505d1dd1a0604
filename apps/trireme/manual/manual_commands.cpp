// SPDX-License-Identifier: Apache-2.0
#include <apps/trireme/manual/manual_commands.h>

#include <trireme/base/atomic_file.h>
#include <trireme/version.h>

#include <CLI/CLI.hpp>
#include <apps/trireme/command_line.h>
#include <apps/trireme/manual/completions.h>
#include <apps/trireme/manual/man_pages.h>

#include <filesystem>
#include <iostream>
#include <memory>

namespace trireme::apps {
namespace {

constexpr const char* kDescription = R"(Print what a shell needs to complete the words of trireme:
  source <(trireme completion bash)
  trireme completion zsh > ~/.zfunc/_trireme       # a folder in fpath
  trireme completion fish > ~/.config/fish/completions/trireme.fish

An installed package has them where the shells look.)";

std::string completion(const std::string& shell, const Command& program) {
  if (shell == "bash") return bash_completion(program);
  return shell == "zsh" ? zsh_completion(program) : fish_completion(program);
}

void write_pages(const Command& program, const std::filesystem::path& folder) {
  std::filesystem::create_directories(folder);
  for (const auto& [name, text] : man_pages(program, TRIREME_VERSION)) {
    write_file(folder / name, text);
  }
}

}  // namespace

void add_manual_commands(CLI::App& app) {
  const auto shell = std::make_shared<std::string>();
  CLI::App* const completion_command = app.add_subcommand("completion", kDescription);
  completion_command->add_option("shell", *shell, "The shell")
      ->required()
      ->check(one_of({"bash", "zsh", "fish"}));
  completion_command->callback(
      [shell, &app] { std::cout << completion(*shell, describe_command(app)); });

  const auto folder = std::make_shared<std::filesystem::path>();
  CLI::App* const pages =
      app.add_subcommand("man-pages", "Write the man pages of trireme")->group("");
  pages->add_option("folder", *folder, "Folder for the pages")->required();
  pages->callback([folder, &app] { write_pages(describe_command(app), *folder); });
}

}  // namespace trireme::apps
