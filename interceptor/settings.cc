#include "interceptor/settings.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <atomic>

#include "proto/packet.h"

namespace ravenstore::interceptor {
namespace {

constinit bool settings_read = false;
constinit Settings settings{};

void Copy(const char* variable, const char* otherwise, char* to, size_t room) {
  const char* value = getenv(variable);
  if (value == nullptr || *value == 0) value = otherwise;
  if (strlen(value) < room) strcpy(to, value);
}

// $RAVENSTORE_WAIT is a number of seconds; -1: it is not there, or none.
int64_t AskedWait() {
  const char* text = getenv("RAVENSTORE_WAIT");
  if (text == nullptr || *text == 0) return -1;
  int64_t seconds = 0;
  for (const char* at = text; *at != 0; ++at) {
    const bool digit = *at >= '0' && *at <= '9' && seconds < INT32_MAX;
    if (!digit) {
      dprintf(STDERR_FILENO,
              "ravenstore[%d]: RAVENSTORE_WAIT=%.100s is no number of seconds: "
              "the job does not wait\n",
              getpid(), text);
      return -1;
    }
    seconds = seconds * 10 + (*at - '0');
  }
  return seconds;
}

// $RAVENSTORE_JOB is a command's key and the number of its first process: "KEY:PID".
void AskedJob(Settings* to) {
  const char* text = getenv("RAVENSTORE_JOB");
  const char* colon = text == nullptr ? nullptr : strchr(text, ':');
  if (colon == nullptr || static_cast<size_t>(colon - text) >= sizeof(to->job)) return;
  memcpy(to->job, text, static_cast<size_t>(colon - text));
  to->run = static_cast<uint32_t>(strtoul(colon + 1, nullptr, 10));
}

bool AskedFlag(const char* variable) {
  const char* text = getenv(variable);
  return text != nullptr && *text != 0;
}

bool IsDigit(char c) {
  return c >= '0' && c <= '9';
}

// "1.5GiB", as core/size_text.h reads it; by hand, since the C library's reading depends on the
// program's locale.
bool ParseSize(const char* text, uint64_t* bytes) {
  static const char kPrefixes[] = "KMGT";
  if (!IsDigit(*text)) return false;
  double number = 0;
  for (; IsDigit(*text); ++text) number = number * 10 + (*text - '0');
  if (*text == '.') {
    double divisor = 1;
    for (++text; IsDigit(*text); ++text, divisor *= 10) number = number * 10 + (*text - '0');
    number /= divisor;
  }
  while (*text == ' ') ++text;
  if (*text != 0 && strcmp(text, "B") != 0) {
    const char upper = *text >= 'a' && *text <= 'z' ? static_cast<char>(*text - 'a' + 'A') : *text;
    const char* prefix = strchr(kPrefixes, upper);
    if (prefix == nullptr) return false;
    ++text;
    if (*text != 0 && strcmp(text, "B") != 0 && strcmp(text, "iB") != 0) return false;
    const double step = *text == 'B' ? 1000 : 1024;
    for (const char* at = kPrefixes; at <= prefix; ++at) number *= step;
  }
  if (number >= static_cast<double>(uint64_t{1} << 63)) return false;
  *bytes = static_cast<uint64_t>(number);
  return true;
}

}  // namespace

void ReadSettings() {
  if (settings_read) return;
  settings_read = true;
  Copy(proto::kSocketPathVariable, proto::kDefaultSocketPath, settings.socket,
       sizeof(settings.socket));
  Copy("RAVENSTORE_INTERCEPT_LOG", "", settings.log, sizeof(settings.log));
  settings.mode = AskedMode();
  settings.wait_seconds = AskedWait();
  AskedJob(&settings);
  Copy("RAVENSTORE_ESTIMATE", "", settings.estimate, sizeof(settings.estimate));
  if (settings.mode != Mode::kElastic) return;
  settings.elastic_host = AskedSize("RAVENSTORE_ELASTIC_HOST", "half of what is available");
  settings.elastic_part = AskedSize("RAVENSTORE_ELASTIC_PART", "the engine's own");
  settings.elastic_report = AskedFlag("RAVENSTORE_ELASTIC_REPORT");
  settings.elastic_still = AskedFlag("RAVENSTORE_ELASTIC_STILL");
  const char* away = getenv("RAVENSTORE_ELASTIC_AWAY");
  settings.elastic_maps_away = away != nullptr && strcmp(away, "mapped") == 0;
  Copy("RAVENSTORE_ELASTIC_RECORD", "", settings.elastic_record, sizeof(settings.elastic_record));
}

// Who asked for a bound and has none must hear of it.
uint64_t AskedSize(const char* variable, const char* without) {
  const char* text = getenv(variable);
  uint64_t bytes = 0;
  if (text == nullptr || *text == 0 || ParseSize(text, &bytes)) return bytes;
  dprintf(STDERR_FILENO, "ravenstore[%d]: %s=%.100s is no size: %s\n", getpid(), variable, text,
          without);
  return 0;
}

const Settings& Asked() {
  return settings;
}

Mode AskedMode() {
  static std::atomic<int> known{-1};
  if (const int mode = known.load(std::memory_order_relaxed); mode >= 0) {
    return static_cast<Mode>(mode);
  }
  const char* text = getenv("RAVENSTORE_MODE");
  Mode mode = Mode::kAccount;
  for (const Mode other : {Mode::kStore, Mode::kElastic}) {
    if (text != nullptr && strcmp(text, NameOf(other)) == 0) mode = other;
  }
  known.store(static_cast<int>(mode), std::memory_order_relaxed);
  return mode;
}

const char* NameOf(Mode mode) {
  switch (mode) {
    case Mode::kAccount: return "account";
    case Mode::kStore: return "store";
    case Mode::kElastic: return "elastic";
  }
  return "";
}

void Log(const char* format, ...) {
  const char* where = settings.log;
  if (*where == 0) return;
  char text[512];
  const int head = snprintf(text, sizeof(text), "ravenstore[%d]: ", getpid());
  va_list arguments;
  va_start(arguments, format);
  int length =
      vsnprintf(text + head, sizeof(text) - static_cast<size_t>(head) - 1, format, arguments);
  va_end(arguments);
  length = head + (length < 0 ? 0 : length);
  if (length > static_cast<int>(sizeof(text)) - 2) length = static_cast<int>(sizeof(text)) - 2;
  text[length++] = '\n';
  const bool terminal = strcmp(where, "stderr") == 0 || strcmp(where, "1") == 0;
  const int file = terminal ? 2 : open(where, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
  if (file < 0) return;
  [[maybe_unused]] const auto written = write(file, text, static_cast<size_t>(length));
  if (!terminal) close(file);
}

}  // namespace ravenstore::interceptor
