#include "cluster/etcd_json.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

namespace ravenstore::cluster::etcd_json {
namespace {

using core::ErrorCode;

// As etcd 3.4.23 answered.
constexpr const char* kHeader =
    R"("header":{"cluster_id":"14841639068965178418","member_id":"3319814642761637952",)"
    R"("revision":"7","raft_term":"2"})";

std::string With(const std::string& rest) {
  return "{" + std::string(kHeader) + (rest.empty() ? "" : ",") + rest + "}";
}

std::string Streamed(const std::string& rest) {
  return R"({"result":)" + With(rest) + "}";
}

constexpr const char* kValue =
    R"({"key":"L3IvYQ==","create_revision":"2","mod_revision":"6","version":"1",)"
    R"("value":"AP8K","lease":"2324035638612981258"})";

TEST(EtcdJsonTest, AsksForAllThatBeginsWithThePrefix) {
  EXPECT_EQ(RangeBody("/r/", 5), R"({"key":"L3Iv","limit":5,"range_end":"L3Iw"})");
  // One that ends with the last byte there is, and one of nothing else: "\0" is no end.
  EXPECT_EQ(RangeBody("a\xff", 1), R"({"key":"Yf8=","limit":1,"range_end":"Yg=="})");
  EXPECT_EQ(RangeBody("\xff", 1), R"({"key":"/w==","limit":1,"range_end":"AA=="})");
}

TEST(EtcdJsonTest, AWriteComparesWithAbsenceOrTheWholeValue) {
  const std::string absent = WriteBody({.key = "k", .expected = {}, .value = "v"});
  EXPECT_NE(absent.find(R"("target":"VERSION","version":"0")"), std::string::npos) << absent;
  const std::string value = WriteBody({.key = "k", .expected = "old", .value = "v"});
  EXPECT_NE(value.find(R"("target":"VALUE","value":"b2xk")"), std::string::npos) << value;
}

TEST(EtcdJsonTest, AsksForWholeSecondsAndNotForNone) {
  EXPECT_EQ(GrantBody(std::chrono::milliseconds(4001)), R"({"TTL":5})");
  EXPECT_EQ(GrantBody(std::chrono::seconds(0)), R"({"TTL":1})");
}

TEST(EtcdJsonTest, ReadsKeysValuesAndTheirLeases) {
  const auto read = ReadRange(With(R"("kvs":[)" + std::string(kValue) + R"(],"more":true)"));
  ASSERT_TRUE(read.ok()) << Describe(read.error());
  EXPECT_EQ(read->at.store, 14841639068965178418u);
  EXPECT_EQ(read->at.revision, 7);
  ASSERT_EQ(read->values.size(), 1u);
  EXPECT_EQ(read->values[0].key, "/r/a");
  EXPECT_EQ(read->values[0].value, std::string("\0\xff\n", 3));
  EXPECT_EQ(read->values[0].modified, 6);
  EXPECT_EQ(read->values[0].lease, StoreLease{2324035638612981258});
  EXPECT_TRUE(read->more);
  EXPECT_TRUE(ReadRange(With(""))->values.empty());
}

TEST(EtcdJsonTest, ReadsTheOutcomeOfAWrite) {
  EXPECT_TRUE(ReadWrite(With(R"("succeeded":true,"responses":[{"response_put":{}}])"))->written);
  const auto other =
      ReadWrite(With(R"("responses":[{"response_range":{"kvs":[)" + std::string(kValue) + "]}}]"));
  ASSERT_TRUE(other.ok());
  EXPECT_FALSE(other->written);
  EXPECT_EQ(other->found->key, "/r/a");
  const auto missing = ReadWrite(With(R"("responses":[{"response_range":{}}])"));
  ASSERT_TRUE(missing.ok());
  EXPECT_FALSE(missing->found);
  EXPECT_EQ(ReadWrite(With("")).error().code, ErrorCode::kCorrupt);
}

TEST(EtcdJsonTest, ALeaseWithoutTimeIsGone) {
  EXPECT_EQ(ReadKeepAlive(Streamed(R"("ID":"12","TTL":"5")"))->duration, std::chrono::seconds(5));
  EXPECT_EQ(ReadKeepAlive(Streamed(R"("ID":"12")")).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(ReadGrant(With(R"("ID":"12","TTL":"5")"))->lease, StoreLease{12});
  EXPECT_EQ(ReadGrant(With(R"("TTL":"5")")).error().code, ErrorCode::kCorrupt);
}

TEST(EtcdJsonTest, ReadsTheChangesOfAWatch) {
  EXPECT_TRUE(ReadWatch(Streamed(R"("created":true)"))->changes.empty());
  const auto read = ReadWatch(Streamed(R"("events":[{"kv":)" + std::string(kValue) +
                                       R"(},{"type":"DELETE","kv":{"key":"L3IvYg==",)" +
                                       R"("mod_revision":"7"}}])"));
  ASSERT_TRUE(read.ok()) << Describe(read.error());
  ASSERT_EQ(read->changes.size(), 2u);
  EXPECT_FALSE(read->changes[0].deleted);
  EXPECT_EQ(read->changes[0].now.key, "/r/a");
  EXPECT_TRUE(read->changes[1].deleted);
  EXPECT_EQ(read->changes[1].now.key, "/r/b");
  EXPECT_EQ(read->changes[1].now.modified, 7);
  for (const char* ended : {R"("canceled":true,"compact_revision":"5")",
                            R"("canceled":true,"cancel_reason":"no reason")"}) {
    EXPECT_EQ(ReadWatch(Streamed(ended)).error().code, ErrorCode::kUnavailable);
  }
}

TEST(EtcdJsonTest, ErrorsKeepTheirMeaning) {
  const auto code = [](const char* text) { return ReadRevoke(text).error().code; };
  EXPECT_EQ(code(R"({"error":"etcdserver: requested lease not found","code":5})"),
            ErrorCode::kNotFound);
  EXPECT_EQ(code(R"({"error":{"grpc_code":14,"message":"no leader"}})"), ErrorCode::kUnavailable);
  EXPECT_EQ(code(R"({"error":"etcdserver: mvcc: database space exceeded","code":8})"),
            ErrorCode::kLimit);
  EXPECT_EQ(code(R"({"error":"etcdserver: user name is empty","code":3})"), ErrorCode::kPermission);
  EXPECT_EQ(Refusal(503, R"({"error":"etcdserver: no leader","code":14})").code,
            ErrorCode::kUnavailable);
}

TEST(EtcdJsonTest, WhatIsNoEtcdIsSaidInASentence) {
  EXPECT_EQ(ReadVersion(R"({"etcdserver":"3.4.23","etcdcluster":"3.4.0"})").value(), "3.4.23");
  EXPECT_EQ(ReadVersion(R"({"etcdserver":"4.0.0"})").value(), "4.0.0");
  for (const char* old : {R"({"etcdserver":"3.3.25"})", R"({"etcdserver":"2.9"})",
                          R"({"etcdserver":"x"})", R"({"etcdserver":"3"})"}) {
    EXPECT_NE(ReadVersion(old).error().message.find("3.4 or newer is needed"), std::string::npos);
  }
  for (const char* other : {"<html>hello\x1b[2J</html>", "", "{}", "[1]", R"({"etcdserver":3})"}) {
    const auto error = ReadVersion(other).error();
    EXPECT_EQ(error.code, ErrorCode::kVersionMismatch);
    EXPECT_NE(error.message.find("is no etcd"), std::string::npos);
    EXPECT_EQ(error.message.find('\x1b'), std::string::npos);
  }
  EXPECT_NE(Refusal(404, "404 page not found").message.find("HTTP 404"), std::string::npos);
  EXPECT_NE(
      Refusal(400, "Client sent an HTTP request to an HTTPS server.\n").message.find("https://"),
      std::string::npos);
}

TEST(EtcdJsonTest, KnowsTheVersionsThatLoseData) {
  EXPECT_NE(Warning("3.5.1"), "");
  EXPECT_EQ(Warning("3.5.16"), "");
  EXPECT_EQ(Warning("3.4.23"), "");
}

// As values in memory these would take many times their length.
TEST(EtcdJsonTest, TextsThatNestDeeplyOrHaveTooManyValuesAreRefused) {
  const auto nested = [](size_t depth) {
    return With(R"("kvs":[],"x":)" + std::string(depth, '[') + std::string(depth, ']'));
  };
  EXPECT_TRUE(ReadRange(nested(8)).ok());
  EXPECT_FALSE(ReadRange(nested(20)).ok());
  EXPECT_FALSE(ReadRange(nested(1000)).ok());
  EXPECT_FALSE(ReadRange(std::string(1 << 20, '[')).ok());
  const auto wide = [](size_t values) {
    std::string list = "0";
    for (size_t i = 1; i < values; ++i) list += ",0";
    return With(R"("kvs":[],"x":[)" + list + "]");
  };
  EXPECT_TRUE(ReadRange(wide(100'000)).ok());
  EXPECT_FALSE(ReadRange(wide(300'000)).ok());
}

// The parser keeps several copies of a number before it is known to be one.
TEST(EtcdJsonTest, NumbersOfTooManyDigitsAreRefused) {
  const auto with = [](const std::string& value) { return ReadRange(With(R"("x":)" + value)); };
  EXPECT_TRUE(with("18446744073709551615").ok());
  EXPECT_TRUE(with("-1.25e-3").ok());
  EXPECT_FALSE(with(std::string(65, '1')).ok());
  EXPECT_FALSE(with("0." + std::string(65, '1')).ok());
  EXPECT_TRUE(with('"' + std::string(65, '1') + '"').ok());
  EXPECT_TRUE(with(R"("\"\\\")" + std::string(65, '1') + '"').ok());
}

TEST(EtcdJsonTest, RevisionsAndTimesThatNoStoreReachesAreRefused) {
  EXPECT_FALSE(ReadRange(R"({"header":{"cluster_id":"1","revision":"9223372036854775807"}})").ok());
  EXPECT_FALSE(ReadGrant(With(R"("ID":"12","TTL":"-5")")).ok());
}

// An error's text is quoted even where it is no UTF-8.
TEST(EtcdJsonTest, AnErrorOfOtherBytesIsQuoted) {
  EXPECT_FALSE(Refusal(503, "{\"error\":{\"x\":\"\xff\"}}").message.empty());
}

// Whatever comes, it is read or refused, and what is read again says the same.
TEST(EtcdJsonTest, DamagedAnswersAreRefusedOrRead) {
  constexpr uint32_t kSeed = 33;
  constexpr int kRounds = 20'000;
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  std::mt19937 random(kSeed);
  const std::vector<std::string> answers = {
      With(R"("kvs":[)" + std::string(kValue) + R"(],"count":"1")"),
      With(R"("responses":[{"response_range":{"kvs":[)" + std::string(kValue) + "]}}]"),
      Streamed(R"("ID":"12","TTL":"5")"),
      Streamed(R"("events":[{"kv":)" + std::string(kValue) + R"(},{"type":"DELETE"}])"),
      R"({"error":{"grpc_code":14,"message":"no leader"}})",
      R"({"etcdserver":"3.4.23"})",
  };
  int refused = 0;
  for (int round = 0; round < kRounds; ++round) {
    std::string text = answers[random() % answers.size()];
    for (uint32_t damages = 1 + random() % 3; damages > 0; --damages) {
      const size_t at = random() % text.size();
      if (random() % 3 == 0) {
        text.erase(at, 1 + random() % 8);
      } else {
        text[at] = random() % 2 == 0 ? "\"{}[],:0"[random() % 8] : static_cast<char>(random());
      }
      if (text.empty()) text = "x";
    }
    const auto range = ReadRange(text);
    if (range.ok()) {
      EXPECT_NE(range->at.store, 0u);
      EXPECT_GE(range->at.revision, 0);
    }
    const auto changes = ReadWatch(text);
    refused += range.ok() ? 0 : 1;
    EXPECT_TRUE(changes.ok() || !changes.error().message.empty());
    const auto write = ReadWrite(text);
    EXPECT_TRUE(write.ok() || !write.error().message.empty());
    const auto lease = ReadKeepAlive(text);
    EXPECT_TRUE(!lease.ok() || lease->lease != kNoLease);
    const auto version = ReadVersion(text);
    EXPECT_TRUE(version.ok() || version.error().code == ErrorCode::kVersionMismatch);
  }
  EXPECT_GT(refused, kRounds / 2);
}

}  // namespace
}  // namespace ravenstore::cluster::etcd_json
