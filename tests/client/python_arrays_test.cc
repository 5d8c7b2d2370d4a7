// What Python's error indicator and lock see of a destructor.
#include "client/python_arrays.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace {

std::vector<std::string> calls;
void* error = nullptr;
void* dropped = nullptr;

const ravenstore_python_t kPython = {
    .ensure_lock =
        [] {
          calls.emplace_back("lock");
          return 7;
        },
    .release_lock = [](int state) { calls.push_back("unlock " + std::to_string(state)); },
    .fetch =
        [](void** type, void** value, void** trace) {
          *type = *value = *trace = error;
          error = nullptr;
        },
    .restore =
        [](void* type, void* value, void* trace) {
          EXPECT_EQ(type, value);
          EXPECT_EQ(type, trace);
          error = type;
        },
    .take_back =
        [](void* managed) {
          calls.emplace_back(error == nullptr ? "take back" : "take back under an error");
          dropped = managed;
        },
    .drop_capsule =
        [](void* capsule) {
          calls.emplace_back(error == nullptr ? "drop" : "drop under an error");
          dropped = capsule;
        },
};

TEST(PythonArraysTest, AnErrorThatIsOnItsWayIsPutAsideAndComesBack) {
  int one = 0;
  ravenstore_python_use(&kPython);
  for (void* raised : {static_cast<void*>(nullptr), static_cast<void*>(&one)}) {
    calls.clear();
    error = raised;
    ravenstore_python_take_back(&one);
    EXPECT_EQ(dropped, &one);
    EXPECT_EQ(error, raised);
    ravenstore_python_drop_capsule(&calls);
    EXPECT_EQ(dropped, &calls);
    EXPECT_EQ(error, raised);
    EXPECT_EQ(calls, (std::vector<std::string>{"lock", "take back", "unlock 7", "lock", "drop",
                                               "unlock 7"}));
  }
}

}  // namespace
