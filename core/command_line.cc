#include "core/command_line.h"

#include <algorithm>
#include <cctype>

namespace ravenstore::core {

namespace {

const CommandOption* FindOption(const CommandWords& command, std::string_view name) {
  for (const CommandOption& option : command.options) {
    if (std::find(option.names.begin(), option.names.end(), name) != option.names.end())
      return &option;
  }
  return nullptr;
}

// Of "TEXT:{a,b}" a and b.
std::vector<std::string> ChoicesOf(const CommandOption& option) {
  std::vector<std::string> choices;
  const size_t open = option.value.find('{');
  const size_t close = option.value.find('}');
  if (open == std::string::npos || close == std::string::npos || close < open) return choices;
  std::string_view list = std::string_view(option.value).substr(open + 1, close - open - 1);
  while (!list.empty()) {
    const size_t comma = std::min(list.find(','), list.size());
    choices.emplace_back(list.substr(0, comma));
    list.remove_prefix(std::min(comma + 1, list.size()));
  }
  return choices;
}

// For a line of a page: a dash may be broken otherwise, and a line must not begin with a command.
std::string Roff(std::string_view text) {
  std::string out;
  bool begins = true;
  for (const char letter : text) {
    if (begins && (letter == '.' || letter == '\'')) out += "\\&";
    if (letter == '-' || letter == '\\') out += '\\';
    out += letter == '\\' ? 'e' : letter;
    begins = letter == '\n';
  }
  return out;
}

std::string Upper(std::string text) {
  for (char& letter : text) letter = static_cast<char>(std::toupper(letter));
  return text;
}

std::string Terms(const CommandWords& command, bool positional) {
  std::string page;
  for (const CommandOption& option : command.options) {
    if (option.positional != positional) continue;
    std::string names;
    for (const std::string& name : option.names) names += (names.empty() ? "" : ", ") + name;
    page += ".TP\n\\fB" + Roff(names) + "\\fR";
    if (!positional && !option.value.empty()) page += " \\fI" + Roff(option.value) + "\\fR";
    page += "\n" + Roff(option.what) + "\n";
  }
  return page;
}

// "[options] COMMAND" or "[options] file...".
std::string Synopsis(const CommandWords& command) {
  std::string line = " [OPTIONS]";
  for (const CommandOption& option : command.options) {
    if (option.positional) line += " " + option.names.front() + (option.repeats ? "..." : "");
  }
  return line + (command.commands.empty() ? "" : " COMMAND");
}

}  // namespace

std::vector<std::pair<std::string, std::string>> Completions(const CommandWords& program,
                                                             std::span<const std::string> words) {
  std::vector<std::pair<std::string, std::string>> found;
  if (words.empty()) return found;
  const CommandWords* command = &program;
  const CommandOption* awaits = nullptr;  // a value
  const auto option_of = [&](std::string_view name) {
    const CommandOption* option = FindOption(*command, name);
    return option != nullptr ? option : FindOption(program, name);
  };
  for (const std::string& word : words.first(words.size() - 1)) {
    if (word == "--") return found;
    const bool is_value = std::exchange(awaits, nullptr) != nullptr;
    if (is_value) continue;
    if (word.starts_with('-')) {
      const CommandOption* option = option_of(word);
      if (option != nullptr && !option->value.empty()) awaits = option;
      continue;
    }
    for (const CommandWords& next : command->commands) {
      if (next.name == word) {
        command = &next;
        break;
      }
    }
  }
  const std::string& last = words.back();
  const auto add = [&](const std::string& word, const std::string& what) {
    if (word.starts_with(last)) found.emplace_back(word, what.substr(0, what.find('\n')));
  };
  if (awaits != nullptr) {
    for (const std::string& choice : ChoicesOf(*awaits)) add(choice, "");
  } else if (last.starts_with('-')) {
    for (const CommandWords* one : {command, &program}) {
      for (const CommandOption& option : one->options) {
        if (!option.positional) add(option.names.back(), option.what);
      }
      if (command == &program) break;
    }
    // Both have --help.
    std::sort(found.begin(), found.end());
    found.erase(std::unique(found.begin(), found.end()), found.end());
  } else {
    for (const CommandWords& next : command->commands) add(next.name, next.what);
  }
  return found;
}

std::string ManualPage(const CommandWords& program, std::string_view version, int section) {
  const size_t line = std::min(program.what.find('\n'), program.what.size());
  std::string page = ".TH " + Upper(Roff(program.name)) + " " + std::to_string(section) +
                     " \"\" \"Ravenstore " + std::string(version) + "\"\n.SH NAME\n" +
                     Roff(program.name) + " \\- " + Roff(program.what.substr(0, line)) +
                     "\n.SH SYNOPSIS\n\\fB" + Roff(program.name) + "\\fR" +
                     Roff(Synopsis(program)) + "\n";
  if (line < program.what.size())
    page += ".SH DESCRIPTION\n.nf\n" + Roff(program.what.substr(line + 1)) + "\n.fi\n";
  page += ".SH OPTIONS\n" + Terms(program, true) + Terms(program, false);
  if (!program.commands.empty()) page += ".SH COMMANDS\n";
  for (const CommandWords& command : program.commands) {
    page += ".SS " + Roff(command.name + Synopsis(command)) + "\n" + Roff(command.what) + "\n" +
            Terms(command, true) + Terms(command, false);
  }
  return page;
}

std::optional<std::string> AnswerToScripts(const CommandWords& program, std::string_view version,
                                           std::span<const char* const> arguments) {
  if (arguments.size() < 2) return std::nullopt;
  const std::string_view asked = arguments[1];
  if (asked == "--manual" && arguments.size() == 3 && std::string_view(arguments[2]).size() == 1)
    return ManualPage(program, version, arguments[2][0] - '0');
  if (asked != "--complete") return std::nullopt;
  std::string lines;
  const std::vector<std::string> words(arguments.begin() + 2, arguments.end());
  for (const auto& [word, what] : Completions(program, words)) lines += word + "\t" + what + "\n";
  return lines;
}

}  // namespace ravenstore::core
