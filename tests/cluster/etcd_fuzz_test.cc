// Fuzzes a node's way from etcd's bytes to the other nodes that it knows: any bytes are an answer
// of the store, parsed as the gateway's JSON and passed to the membership.
#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <functional>
#include <map>
#include <new>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cluster/etcd_json.h"
#include "cluster/membership.h"
#include "cluster/node_record.h"
#include "core/printable.h"
#include "tests/cluster/members.h"
#include "tests/ipc/fuzz.h"
#include "transport/transport.h"

namespace {

// What is allocated now by everything in this process, and the most that was.
std::atomic<size_t> g_allocated{0};
std::atomic<size_t> g_most{0};

}  // namespace

// Out of line, so that the compiler does not take the pair apart.
[[gnu::noinline]] void* operator new(size_t size) {
  void* block = std::malloc(size);
  if (block == nullptr) throw std::bad_alloc();
  const size_t now = g_allocated += malloc_usable_size(block);
  if (now > g_most) g_most = now;
  return block;
}
[[gnu::noinline]] void operator delete(void* block) noexcept {
  if (block != nullptr) g_allocated -= malloc_usable_size(block);
  std::free(block);
}
[[gnu::noinline]] void operator delete(void* block, size_t) noexcept {
  operator delete(block);
}

namespace ravenstore::cluster {
namespace {

using core::Duration;
using core::Error;
using core::ErrorCode;
using core::Result;
using core::Tick;
using ipc::Input;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr size_t kNodesMax = 8;
constexpr size_t kWordsMax = 2000;

// A store that answers with what a test gives it, and not by itself.
class ScriptedStore final : public KeyValues {
 public:
  void Range(std::string, size_t, Tick deadline, Callback<RangeRead> callback) override {
    Ask(deadline, std::move(callback), etcd_json::ReadRange);
  }
  void CompareAndSet(Write, Tick deadline, Callback<WriteAnswer> callback) override {
    Ask(deadline, std::move(callback), etcd_json::ReadWrite);
  }
  void Grant(Duration, Tick deadline, Callback<LeaseAnswer> callback) override {
    Ask(deadline, std::move(callback), etcd_json::ReadGrant);
  }
  void KeepAlive(StoreLease, Tick deadline, Callback<LeaseAnswer> callback) override {
    ++keeps;
    Ask(deadline, std::move(callback), etcd_json::ReadKeepAlive);
  }
  void Revoke(StoreLease, Tick deadline, Callback<core::Done> callback) override {
    Ask(deadline, std::move(callback), etcd_json::ReadRevoke);
  }
  WatchId Watch(std::string, int64_t, Tick deadline, Callback<Changes> callback) override {
    const WatchId id{++last_id_};
    watches_[id] = {deadline, [callback = std::move(callback)](Result<std::string_view> line) {
                      auto changes =
                          line.ok() ? etcd_json::ReadWatch(*line) : Result<Changes>(line.error());
                      const bool goes_on = changes.ok();
                      callback(std::move(changes));
                      return goes_on;
                    }};
    return id;
  }
  void Unwatch(WatchId watch) override { watches_.erase(watch); }
  void Poll(Tick) override {}
  Tick Now() const override { return now; }
  std::string Describe() const override { return "a script"; }

  void AnswerFirst(Result<std::string_view> answer) {
    if (asked_.empty()) return;
    const auto first = asked_.begin();
    const auto callback = std::move(first->second.callback);
    asked_.erase(first);
    callback(answer);
  }
  void DeliverToWatch(Result<std::string_view> line) {
    if (watches_.empty()) return;
    const auto [id, watch] = *watches_.begin();
    if (!watch.callback(line)) return Unwatch(id);
    // It began, and may be silent from now on.
    if (const auto found = watches_.find(id); found != watches_.end())
      found->second.deadline = core::kNever;
  }
  void Expire() {
    const Error late{ErrorCode::kTimedOut, "late"};
    while (!asked_.empty() && asked_.begin()->second.deadline <= now) AnswerFirst(late);
    while (!watches_.empty() && watches_.begin()->second.deadline <= now) DeliverToWatch(late);
  }
  Tick NextDeadline() const {
    Tick next = core::kNever;
    for (const auto& [id, one] : asked_) next = std::min(next, one.deadline);
    for (const auto& [id, one] : watches_) next = std::min(next, one.deadline);
    return next;
  }
  size_t open() const { return asked_.size() + watches_.size(); }
  uint64_t asked() const { return last_id_; }

  Tick now{seconds(1000)};
  int keeps = 0;  // keep-alives that were asked for

 private:
  struct Asked {
    Tick deadline;
    std::function<bool(Result<std::string_view>)> callback;  // whether a watch goes on
  };

  template <typename T>
  void Ask(Tick deadline, Callback<T> callback, Result<T> (*read)(std::string_view)) {
    asked_[++last_id_] = {deadline,
                          [callback = std::move(callback), read](Result<std::string_view> answer) {
                            callback(answer.ok() ? read(*answer) : Result<T>(answer.error()));
                            return false;
                          }};
  }

  uint64_t last_id_ = 0;
  std::map<uint64_t, Asked> asked_;  // deadlines do not fall: all wait equally long
  std::map<WatchId, Asked> watches_;
};

NodeRecord RecordOf(const std::string& name, uint64_t number) {
  return {.name = name,
          .address = "127.0.0.1:" + std::to_string(number % 65536),
          .incarnation = {.high = number, .low = 1}};
}

// One node "self" and what it makes of the store's words.
class Node {
 public:
  Node()
      : membership_({.self = RecordOf("self", 1),
                     .predecessors = {RecordOf("self", 2).incarnation},
                     .prefix = "/r/",
                     .table = {.nodes_max = kNodesMax},
                     .seed = 1},
                    &store_, &events_) {
    membership_.Tick(store_.now);
  }

  // Advances by `time`, then answers one operation, or the watch, with `text`.
  void Answer(Duration time, bool watch, std::string_view text) {
    Pass(time);
    if (watch) {
      store_.DeliverToWatch(text);
    } else {
      store_.AnswerFirst(text);
    }
    membership_.Tick(store_.now);
    Check();
  }
  int keeps() const { return store_.keeps; }

 private:
  // A store that says anything must not keep the node busy: it asks some times a second.
  void Pass(Duration time) {
    const Tick end = store_.now + time;
    const uint64_t asked = store_.asked();
    uint64_t steps = 0;
    while (true) {
      const Tick next = std::min(membership_.NextTick(), store_.NextDeadline());
      if (next > end) break;
      const uint64_t most = 20 + 20 * static_cast<uint64_t>(time / seconds(1));
      ASSERT_LE(++steps, most) << "busy";
      ASSERT_LE(store_.asked() - asked, most) << "asks too often";
      store_.now = std::max(store_.now, next);
      store_.Expire();
      membership_.Tick(store_.now);
    }
    store_.now = end;
  }
  void Check() const {
    EXPECT_LE(store_.open(), 4u);
    const auto nodes = membership_.nodes().Nodes();
    EXPECT_LE(nodes.size(), kNodesMax);
    EXPECT_EQ(nodes.size(), events_.known.size());
    for (const NodeRecord* node : nodes) {
      EXPECT_TRUE(transport::IsNodeName(node->name));
      EXPECT_EQ(core::Printable(node->address), node->address);
      EXPECT_LE(node->address.size(), kAddressMax);
    }
    const MembershipStatus status = membership_.status();
    for (const std::string& words : {status.registration, status.store}) {
      EXPECT_EQ(core::Printable(words), words);
      EXPECT_LE(words.size(), kWordsMax);
    }
  }

  ScriptedStore store_;
  MemberEvents events_;
  Membership membership_;
};

// Each line's first byte selects how long the store waits, and whether the watch gets an answer.
void CheckAnswers(std::span<const uint8_t> input) {
  constexpr Duration kWaits[] = {seconds(0), milliseconds(1), milliseconds(300), seconds(1),
                                 seconds(3), seconds(10),     seconds(60),       seconds(400)};
  Node node;
  std::string_view left(reinterpret_cast<const char*>(input.data()), input.size());
  while (!left.empty() && !testing::Test::HasFailure()) {
    const size_t end = std::min(left.find('\n'), left.size());
    const std::string_view line = left.substr(0, end);
    left.remove_prefix(std::min(end + 1, left.size()));
    if (line.empty()) continue;
    const auto how = static_cast<unsigned char>(line.front());
    node.Answer(kWaits[how % 8], (how & 8) != 0, line.substr(1));
  }
}

// Whatever comes is read or refused in a few printable words.
void CheckRefusals(std::span<const uint8_t> input) {
  const std::string_view text(reinterpret_cast<const char*>(input.data()), input.size());
  const auto check = [](const Error& error) {
    EXPECT_FALSE(error.message.empty());
    EXPECT_EQ(core::Printable(error.message), error.message);
    EXPECT_LE(error.message.size(), kWordsMax);
  };
  const auto read = [&](const auto& result) {
    if (!result.ok()) check(result.error());
  };
  read(etcd_json::ReadRange(text));
  read(etcd_json::ReadWrite(text));
  read(etcd_json::ReadGrant(text));
  read(etcd_json::ReadKeepAlive(text));
  read(etcd_json::ReadRevoke(text));
  read(etcd_json::ReadWatch(text));
  const auto version = etcd_json::ReadVersion(text);
  if (version.ok()) {
    EXPECT_EQ(core::Printable(*version), *version);
    etcd_json::Warning(*version);
  }
  read(version);
  check(etcd_json::Refusal(503, text));
}

std::string Base64(std::string_view bytes) {
  constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t word = 0;
    for (size_t j = i; j < i + 3; ++j)
      word = word << 8 | (j < bytes.size() ? static_cast<unsigned char>(bytes[j]) : 0);
    for (size_t j = 0; j < 4; ++j)
      text += i + j <= bytes.size() ? kDigits[word >> (18 - 6 * j) & 63] : '=';
  }
  return text;
}

class Generator {
 public:
  explicit Generator(std::mt19937_64& random) : random_(random) {}

  // Answers in about the order in which a node asks.
  Input Session() {
    std::string text;
    for (uint64_t lines = 1 + Below(12); lines > 0; --lines)
      text += std::string(1, static_cast<char>('0' + Below(16))) + Answer() + "\n";
    Input input(text.begin(), text.end());
    Mutate(&input);
    return input;
  }
  Input OneAnswer() {
    const std::string text = Answer();
    Input input(text.begin(), text.end());
    Mutate(&input);
    return input;
  }

 private:
  uint64_t Below(uint64_t end) { return random_() % end; }
  std::string Number() {
    static constexpr const char* kOdd[] = {"0",
                                           "-1",
                                           "4611686018427387904",
                                           "9223372036854775807",
                                           "-9223372036854775808",
                                           "18446744073709551615",
                                           "99999999999999999999",
                                           "9000000000",
                                           "1e999",
                                           ""};
    const std::string number =
        Below(8) == 0 ? kOdd[Below(std::size(kOdd))] : std::to_string(1 + Below(12));
    return Below(16) == 0 ? number : '"' + number + '"';
  }
  std::string Header() {
    const std::string store = Below(16) == 0 ? Number() : "\"7\"";
    return R"("header":{"cluster_id":)" + store + R"(,"revision":)" + Number() + "}";
  }
  std::string Key() {
    static constexpr const char* kOdd[] = {"/r", "/q/a", "/r/", "/r/a b", "/r/\xff"};
    if (Below(16) == 0) return kOdd[Below(std::size(kOdd))];
    return Below(4) == 0 ? "/r/self" : "/r/" + std::string(1, static_cast<char>('a' + Below(12)));
  }
  std::string Value() {
    switch (Below(8)) {
      case 0: return "";
      case 1: return R"({"address":")" + std::string(Below(300), 'x') + R"("})";
      default: return ToText(RecordOf("", 1 + Below(4)));
    }
  }
  std::string KeyValueText() {
    return R"({"key":")" + Base64(Key()) + R"(","value":")" + Base64(Value()) +
           R"(","mod_revision":)" + Number() + R"(,"lease":)" + Number() + "}";
  }
  std::string Several(const std::function<std::string()>& one) {
    std::string list = "[";
    for (uint64_t count = Below(14); count > 0; --count) list += one() + (count > 1 ? "," : "");
    return list + "]";
  }
  std::string Range() {
    return R"("kvs":)" + Several([this] { return KeyValueText(); });
  }
  std::string Event() {
    return std::string(Below(3) == 0 ? R"({"type":"DELETE","kv":)" : R"({"kv":)") + KeyValueText() +
           "}";
  }
  std::string Body() {
    switch (Below(9)) {
      case 0: return R"(,"ID":)" + Number() + R"(,"TTL":)" + Number();
      case 1: return R"(,"succeeded":true)";
      case 2: return R"(,"responses":[{"response_range":{)" + Range() + "}}]";
      case 3: return R"(,"canceled":true,"cancel_reason":"why")";
      case 4: return "";
      case 5:
      case 6: return R"(,"events":)" + Several([this] { return Event(); });
      default: return "," + Range();
    }
  }
  std::string Answer() {
    switch (Below(24)) {
      case 0: return R"({"error":"no","code":)" + Number() + "}";
      case 1: return R"({"error":{"message":"no","grpc_code":)" + Number() + "}}";
      case 2: return R"({"etcdserver":"3.5.1"})";
      case 3: return std::string(Below(40), "[{\"0,:"[Below(6)]);
      default: break;
    }
    const std::string answer = "{" + Header() + Body() + "}";
    return Below(2) == 0 ? answer : R"({"result":)" + answer + "}";
  }
  void Mutate(Input* input) {
    if (Below(2) == 0) ipc::Mutate(random_, input);
  }

  std::mt19937_64& random_;
};

TEST(EtcdFuzz, AnyAnswersLeaveTheNodeWithNodesThatItCanName) {
  ipc::Fuzz(
      "tests/cluster/corpus/etcd", 2'000,
      [](std::mt19937_64& random) { return Generator(random).Session(); }, CheckAnswers);
}

TEST(EtcdFuzz, AnyAnswerIsReadOrRefusedInWords) {
  ipc::Fuzz(
      "tests/cluster/corpus/etcd", 4'000,
      [](std::mt19937_64& random) { return Generator(random).OneAnswer(); }, CheckRefusals);
}

// With centuries the sums of times would overflow as well.
TEST(EtcdFuzz, ALeaseThatIsSaidToLiveForAgesIsKeptAlive) {
  const std::string header = R"({"header":{"cluster_id":"7","revision":"5"})";
  Node node;
  node.Answer(Duration{0}, /*watch=*/false, header + "}");
  node.Answer(Duration{0}, /*watch=*/true, header + "}");
  node.Answer(Duration{0}, /*watch=*/false, header + R"(,"ID":"12","TTL":"9000000000"})");
  node.Answer(Duration{0}, /*watch=*/false, header + R"(,"succeeded":true})");
  EXPECT_EQ(node.keeps(), 0);
  node.Answer(std::chrono::hours(2), /*watch=*/false, "");
  EXPECT_GT(node.keeps(), 0);
}

constexpr size_t kAnswerMax = size_t{16} << 20;

// `what` until the text has `size` bytes.
std::string Repeated(std::string_view head, std::string_view what, std::string_view tail = "",
                     size_t size = kAnswerMax) {
  std::string text(head);
  text.reserve(kAnswerMax);
  while (text.size() + what.size() + tail.size() <= size) text += what;
  return text.append(tail);
}

// Bytes that one text makes a node allocate, at most.
size_t MostAllocatedFor(const std::string& text) {
  const size_t before = g_allocated;
  g_most = before;
  EXPECT_FALSE(etcd_json::Refusal(503, text).message.empty());
  Node node;
  node.Answer(Duration{0}, /*watch=*/false, text);
  node.Answer(Duration{0}, /*watch=*/true, text);
  return g_most - before;
}

// The client reads answers of up to 16 MiB; parsing one takes a few times its size.
TEST(EtcdFuzz, LongAnswersTakeBoundedMemory) {
  const std::string head = R"({"result":{"header":{"cluster_id":"1","revision":"1"},)";
  const std::string kvs = head + R"("kvs":[{})";
  const std::string events = head + R"("events":[{"kv":{}})";
  // As many values as are read, or nearly.
  constexpr size_t kValues = 260'000;
  const std::vector<std::string> texts = {
      Repeated("", "[[[[[[[["),
      Repeated("", "11111111"),
      Repeated(kvs, ",{}", "]}}", kValues * 3),
      Repeated(kvs, R"(,{"key":"L3IvYQ=="})", "]}}", kValues / 3 * 19),
      Repeated(events, R"(,{"kv":{}})", "]}}", kValues / 3 * 10),
      Repeated(R"({"error":")", "aaaaaaaa", "\"}"),
      Repeated(head + R"("kvs":[{"key":")", "AAAAAAAA", "\"}]}}"),
  };
  for (const std::string& text : texts)
    EXPECT_LE(MostAllocatedFor(text), size_t{64} << 20) << text.substr(0, 100);
}

}  // namespace
}  // namespace ravenstore::cluster
