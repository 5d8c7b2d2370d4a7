// What a program says of its command line to scripts: candidates for a shell's completion, and
// a manual page. Both are of what the program parses, so that they cannot differ from it.
//
// The description is taken from the command-line library by a template, so that this floor knows
// nothing of it: `App` is CLI::App.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ravenstore::core {

struct CommandOption {
  std::vector<std::string> names;  // "-o", "--output"; of a positional one its name alone
  std::string value;               // "TEXT:{a,b}"; empty: it takes none
  std::string what;
  bool positional = false;
  bool repeats = false;
};

struct CommandWords {
  std::string name;
  std::string what;
  std::vector<CommandOption> options;
  std::vector<CommandWords> commands;
};

template <typename App>
CommandWords DescribeApp(const App& app) {
  CommandWords words{app.get_name(), app.get_description(), {}, {}};
  for (const auto* option : app.get_options([](const auto*) { return true; })) {
    if (option->get_group().empty()) continue;
    CommandOption one;
    one.positional = !option->nonpositional();
    if (one.positional) one.names = {option->get_name(true)};
    for (const std::string& name : option->get_snames()) one.names.push_back("-" + name);
    for (const std::string& name : option->get_lnames()) one.names.push_back("--" + name);
    if (option->get_items_expected_max() > 0)
      one.value = option->get_type_name().empty() ? "TEXT" : option->get_type_name();
    one.what = option->get_description();
    one.repeats = option->get_items_expected_max() > 1;
    words.options.push_back(std::move(one));
  }
  for (const App* command : app.get_subcommands([](const App*) { return true; })) {
    if (!command->get_group().empty()) words.commands.push_back(DescribeApp(*command));
  }
  return words;
}

// The last of `words`, the command line after the program's name, is to be completed: what it can
// become, each with what that is. Options of the program stand for its commands as well. Empty:
// nothing is known, it may be a file.
std::vector<std::pair<std::string, std::string>> Completions(const CommandWords& program,
                                                             std::span<const std::string> words);

// A page for man, section `section`.
std::string ManualPage(const CommandWords& program, std::string_view version, int section);

// What scripts are answered that begin with "--complete WORD..." or "--manual SECTION"; nothing for
// every other command line.
std::optional<std::string> AnswerToScripts(const CommandWords& program, std::string_view version,
                                           std::span<const char* const> arguments);

}  // namespace ravenstore::core
