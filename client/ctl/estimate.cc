#include "client/ctl/estimate.h"

#include <fcntl.h>
#include <google/protobuf/util/json_util.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <utility>

#include "client/ctl/json.h"
#include "client/ctl/render.h"
#include "core/printable.h"
#include "core/size_text.h"
#include "ipc/unique_fd.h"
#include "proto/estimate.pb.h"

extern char** environ;

namespace ravenstore::client::ctl {

using core::Bytes;
using core::Error;
using core::ErrorCode;
using core::Result;

namespace {

// By which a run may exceed the largest before it.
constexpr uint64_t kHistoryMarginPart = 20;
constexpr uint64_t kNanoseconds = 1'000'000'000;

std::string Runs(const proto::JobRecord& record, uint64_t now_s) {
  const uint64_t ago = now_s > record.seen_s() ? now_s - record.seen_s() : 0;
  return "the largest of " + std::to_string(record.runs()) +
         (record.runs() == 1 ? " earlier run, " : " earlier runs, the last ") +
         DurationText(ago * kNanoseconds) + " ago";
}

// Options of Python's that have a word of their own behind them.
bool TakesWord(const std::string& option) {
  return option == "-X" || option == "-W" || option == "--check-hash-based-pycs";
}

// As the daemon remembers models: the first 32 digits of a hash; empty: it is none.
std::string ModelOf(const std::string& job) {
  const std::string digits = job.substr(0, 32);
  const bool is_hash =
      digits.size() == 32 && digits.find_first_not_of("0123456789abcdef") == std::string::npos;
  return is_hash ? digits : "";
}

}  // namespace

Result<Estimate> EstimateOf(const proto::JobKnown& known, uint64_t now_s) {
  const proto::JobRecord& record = known.record();
  const uint64_t peak = std::max(record.peak(), known.running());
  if (peak == 0) return Error{ErrorCode::kNotFound, "no earlier run of this command is known"};
  Estimate estimate;
  estimate.bytes = Bytes(peak);
  estimate.margin = Bytes(peak / kHistoryMarginPart);
  estimate.source = known.running() > record.peak() ? "running" : "history";
  if (estimate.source == "running")
    estimate.notes.push_back("what a run that has not ended held so far");
  if (!known.has_record()) return estimate;
  estimate.notes.push_back(Runs(record, now_s));
  if (record.has_link()) estimate.link = record.link();
  if (record.has_compute()) {
    estimate.compute = record.compute();
    estimate.notes.push_back("it computed " + std::to_string(std::lround(record.compute() * 100)) +
                             "% of the time at most, alone on a device");
  }
  const uint64_t least =
      record.runs() < 2 ? record.peak() : std::min(record.least(), record.last());
  if (record.peak() - least > record.peak() / kHistoryMarginPart) {
    estimate.notes.push_back("it varies: runs took " + core::SizeText(Bytes(least)) + " to " +
                             core::SizeText(Bytes(record.peak())));
  }
  return estimate;
}

Result<Estimate> EstimateIn(const std::string& text) {
  std::string_view line = text;
  while (line.ends_with('\n')) line.remove_suffix(1);
  line.remove_prefix(std::min(line.rfind('\n') + 1, line.size()));
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = true;
  proto::PackageEstimate reply;
  const auto read = google::protobuf::util::JsonStringToMessage(std::string(line), &reply, options);
  if (!read.ok() || !reply.has_used() || !reply.has_reserved() || !reply.has_total() ||
      !reply.has_margin())
    return Error{ErrorCode::kCorrupt, "ravenstore.estimate printed no estimate"};
  Estimate estimate;
  estimate.bytes = Bytes(reply.total());
  estimate.margin = Bytes(reply.margin());
  estimate.source = reply.source();
  estimate.model = ModelOf(reply.job());
  estimate.notes.assign(reply.notes().begin(), reply.notes().end());
  return estimate;
}

Result<std::vector<std::string>> PackageCommand(const std::vector<std::string>& command) {
  const Error unsupported{ErrorCode::kUnsupported,
                          "only a Python script can be captured ('python train.py ...'); give its "
                          "size, or run it once under ravenrun"};
  std::vector<std::string> words = {"python3"};
  size_t next = 0;
  const std::string program = std::filesystem::path(command.front()).filename();
  if (program.starts_with("python")) {
    words.front() = command[next++];
    for (; next < command.size() && command[next].starts_with('-'); ++next) {
      const std::string& option = command[next];
      if (option == "-" || option.starts_with("-c") || option.starts_with("-m")) return unsupported;
      words.push_back(option);
      if (TakesWord(option) && next + 1 < command.size()) words.push_back(command[++next]);
    }
  }
  if (next >= command.size() || !command[next].ends_with(".py")) return unsupported;
  words.insert(words.end(), {"-m", "ravenstore.estimate", "--json"});
  words.insert(words.end(), command.begin() + static_cast<std::ptrdiff_t>(next), command.end());
  return words;
}

Result<std::string> OutputOf(const std::vector<std::string>& words) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0)
    return Error{ErrorCode::kSystem, std::string("pipe: ") + std::strerror(errno)};
  ipc::UniqueFd output(ends[0]);
  ipc::UniqueFd input(ends[1]);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, input.get(), STDOUT_FILENO);
  std::vector<char*> argv;
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  pid_t child = 0;
  const int fault = ::posix_spawnp(&child, argv.front(), &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  input = {};
  if (fault != 0) return Error{ErrorCode::kSystem, words.front() + ": " + std::strerror(fault)};
  std::string text;
  std::array<char, 4096> bytes;
  ssize_t more = 0;
  while ((more = ::read(output.get(), bytes.data(), bytes.size())) > 0)
    text.append(bytes.data(), static_cast<size_t>(more));
  int status = 0;
  ::waitpid(child, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return text;
  return Error{ErrorCode::kSystem, "the script could not be captured"};
}

std::string EstimateText(const Estimate& estimate) {
  std::string text = core::SizeText(estimate.total()) + ": " + core::SizeText(estimate.bytes) +
                     " by " + core::Printable(estimate.source) + " and a margin of " +
                     core::SizeText(estimate.margin) + "\n";
  for (const std::string& note : estimate.notes) text += "  " + core::Printable(note) + "\n";
  return text;
}

std::string EstimateJson(const Estimate& estimate) {
  JsonWriter json;
  json.BeginObject()
      .Field("job", estimate.job)
      .Field("model", estimate.model)
      .Field("source", estimate.source)
      .Field("bytes", estimate.bytes.count())
      .Field("margin", estimate.margin.count())
      .Field("total", estimate.total().count())
      .BeginArray("notes");
  for (const std::string& note : estimate.notes) json.Field("", note);
  return json.EndArray().EndObject().Take();
}

}  // namespace ravenstore::client::ctl
