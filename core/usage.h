// What a program says of a word of its command line that it does not know.
//
// A template, so that this floor knows nothing of the command-line library: `App` is CLI::App.
#pragma once

#include <cmath>
#include <cstdlib>
#include <string>
#include <vector>

#include "core/printable.h"
#include "core/suggest.h"

namespace ravenstore::core {

// For App::failure_message: the library's words, and the command or option that was probably meant.
template <typename App, typename Failure>
std::string UsageMessage(const App* app, const Failure& failure) {
  std::vector<std::string> names;
  std::string said = Printable(failure.what());
  const std::vector<std::string> unknown = app->remaining(/*recurse=*/true);
  const std::string word = unknown.empty() ? "" : unknown.front();
  const bool commanded = !app->get_subcommands().empty();
  if (!word.empty() && !word.starts_with("-") && !commanded) {
    said = "there is no command \"" + Printable(word) + "\"";
    for (const App* one : app->get_subcommands([](const App*) { return true; }))
      names.push_back(one->get_name());
  } else if (word.starts_with("-")) {
    said = "there is no option \"" + Printable(word) + "\"";
    std::vector<const App*> apps = {app};
    for (const App* one : app->get_subcommands()) apps.push_back(one);
    for (const App* one : apps) {
      for (const auto* option : one->get_options()) names.push_back(option->get_name());
    }
  }
  return said + DidYouMean(word, names) + "\nRun with --help for more information.\n";
}

// For Option::check of a number without a sign, which the library would take as a huge one.
inline std::string NotNegative(const std::string& text) {
  return text.starts_with('-') ? Printable(text) + " is negative" : "";
}

// For Option::check of a number with a fraction, in addition to the library's bounds, which let NaN
// pass.
inline std::string Finite(const std::string& text) {
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  return std::isfinite(number) ? "" : Printable(text) + " is not a finite number";
}

// An option that is given with nothing in it would do nothing: refuses that of all options that
// `app` and its commands have so far. What follows the options is left alone.
template <typename App>
void RefuseEmptyValues(App* app) {
  for (auto* option : app->get_options([](const auto*) { return true; })) {
    if (!option->nonpositional() || option->get_items_expected_max() == 0) continue;
    option->check([](const std::string& text) { return text.empty() ? "it is empty" : ""; });
  }
  for (App* command : app->get_subcommands([](App*) { return true; })) RefuseEmptyValues(command);
}

}  // namespace ravenstore::core
