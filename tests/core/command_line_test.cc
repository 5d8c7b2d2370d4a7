#include "core/command_line.h"

#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace ravenstore::core {
namespace {

class CommandLineTest : public testing::Test {
 protected:
  CommandLineTest() : app_("Looks at ravens.\nExit codes: 0.\n.a line", "raven") {
    app_.set_version_flag("--version", "9");
    app_.add_option("--socket", text_, "Where it is");
    CLI::App* ls = app_.add_subcommand("ls", "Lists them");
    ls->add_option("what", texts_, "Their names");
    ls->add_option("-s,--sort", text_, "Order")->check(CLI::IsMember({"id", "size"}));
    ls->add_flag("--all", all_, "All of them");
    ls->add_option("--secret", text_, "Not shown")->group("");
    app_.add_subcommand("limits", "Changes them");
    app_.add_subcommand("inner", "Not shown")->group("");
  }

  std::vector<std::string> Complete(const std::vector<std::string>& words) {
    std::vector<std::string> found;
    for (const auto& [word, what] : Completions(DescribeApp(app_), words)) found.push_back(word);
    return found;
  }

  using Words = std::vector<std::string>;
  CLI::App app_;
  std::string text_;
  bool all_ = false;
  std::vector<std::string> texts_;
};

TEST_F(CommandLineTest, CompletesCommandsOptionsAndChoices) {
  EXPECT_EQ(Complete({""}), (Words{"ls", "limits"}));
  EXPECT_EQ(Complete({"li"}), Words{"limits"});
  EXPECT_EQ(Complete({"--s"}), Words{"--socket"});
  EXPECT_EQ(Complete({"ls", "--s"}), (Words{"--socket", "--sort"}));
  EXPECT_EQ(Complete({"ls", "--"}), (Words{"--all", "--help", "--socket", "--sort", "--version"}));
  EXPECT_EQ(Complete({"ls", "--sort", ""}), (Words{"id", "size"}));
  EXPECT_EQ(Complete({"ls", "-s", "s"}), Words{"size"});
}

TEST_F(CommandLineTest, LeavesFilesAndOtherPeoplesWordsAlone) {
  EXPECT_EQ(Complete({}), Words{});
  EXPECT_EQ(Complete({"--socket", ""}), Words{});
  EXPECT_EQ(Complete({"--socket", "ls", "l"}), (Words{"ls", "limits"})) << "a value is no command";
  EXPECT_EQ(Complete({"ls", "x"}), Words{});
  EXPECT_EQ(Complete({"ls", "--", "--a"}), Words{});
}

TEST_F(CommandLineTest, ThePageHasAllThatHelpHas) {
  const std::string page = ManualPage(DescribeApp(app_), "9", 1);
  EXPECT_EQ(page.find(".TH RAVEN 1 \"\" \"Ravenstore 9\"\n.SH NAME\nraven \\- Looks at ravens.\n"),
            0u)
      << page;
  for (const char* part : {".SH SYNOPSIS\n\\fBraven\\fR [OPTIONS] COMMAND\n",
                           ".SH DESCRIPTION\n.nf\nExit codes: 0.\n\\&.a line\n.fi\n",
                           ".TP\n\\fB\\-\\-socket\\fR \\fITEXT\\fR\nWhere it is\n",
                           ".SS ls [OPTIONS] what...\nLists them\n",
                           "\\fB\\-s, \\-\\-sort\\fR \\fITEXT:{id,size}\\fR\nOrder\n"}) {
    EXPECT_NE(page.find(part), std::string::npos) << part << "\nin\n" << page;
  }
  EXPECT_EQ(page.find("Not shown"), std::string::npos);
}

TEST_F(CommandLineTest, OnlyScriptsAreAnswered) {
  const auto answer = [this](std::vector<const char*> arguments) {
    return AnswerToScripts(DescribeApp(app_), "9", arguments);
  };
  EXPECT_EQ(answer({"raven", "--complete", "li"}), "limits\tChanges them\n");
  EXPECT_EQ(answer({"raven", "--complete"}), "");
  EXPECT_EQ(answer({"raven", "--manual", "8"})->find(".TH RAVEN 8 "), 0u);
  EXPECT_FALSE(answer({"raven", "ls", "--complete"}).has_value());
  EXPECT_FALSE(answer({"raven"}).has_value());
}

}  // namespace
}  // namespace ravenstore::core
