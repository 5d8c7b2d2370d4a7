#include "ipc/program_name.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

namespace ravenstore::ipc {

namespace {

// "python", "python3", "python3.12", and so on.
bool IsPython(const char* program) {
  if (strncmp(program, "python", 6) != 0) return false;
  return program[6 + strspn(program + 6, "0123456789.t")] == '\0';
}

const char* LastPart(const char* word, char separator) {
  const char* last = strrchr(word, separator);
  return last == nullptr ? word : last + 1;
}

// The script's or the module's name among Python's words, which begin behind its own. Null: there
// is none. REQUIRES: a zero behind each.
const char* ScriptOf(const char* words, const char* end) {
  for (const char* word = words; word < end; word += strlen(word) + 1) {
    if (word[0] != '-') return LastPart(word, '/');
    if (word[1] == '\0') return nullptr;  // standard input
    if (strcmp(word, "--check-hash-based-pycs") == 0) {
      word += strlen(word) + 1;
      if (word >= end) return nullptr;
      continue;
    }
    if (word[1] == '-') continue;
    // Letters together; the first that takes a value has the rest of the word, or the next.
    const char* letter = word + 1 + strcspn(word + 1, "cmWX");
    if (*letter == '\0') continue;
    if (*letter == 'c') return nullptr;
    const char* value = letter[1] != '\0' ? letter + 1 : word + strlen(word) + 1;
    if (value >= end) return nullptr;
    if (*letter == 'm') return LastPart(value, '.');
    if (letter[1] == '\0') word = value;
  }
  return nullptr;
}

}  // namespace

size_t NameOfProgram(const char* program, const char* words, size_t size, char* name, size_t room) {
  if (room == 0) return 0;
  const char* chosen = nullptr;
  if (IsPython(program) && size > 0 && words[size - 1] == '\0')
    chosen = ScriptOf(words + strlen(words) + 1, words + size);
  if (chosen == nullptr || *chosen == '\0') chosen = program;
  const size_t length = strnlen(chosen, room - 1);
  memcpy(name, chosen, length);
  name[length] = '\0';
  return length;
}

size_t ProgramName(char* name, size_t room) {
  char words[4096];
  size_t size = 0;
  // What was cut off is not needed: the script stands near the beginning.
  const int file = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
  if (file >= 0) {
    while (size < sizeof(words) - 1) {
      const ssize_t more = read(file, words + size, sizeof(words) - 1 - size);
      if (more < 0 && errno == EINTR) continue;
      if (more <= 0) break;
      size += static_cast<size_t>(more);
    }
    close(file);
  }
  words[size] = '\0';
  if (size > 0 && words[size - 1] != '\0') ++size;
  return NameOfProgram(program_invocation_short_name, words, size, name, room);
}

}  // namespace ravenstore::ipc
