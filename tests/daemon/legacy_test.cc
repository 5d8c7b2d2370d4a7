#include "daemon/legacy.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "proto/elastic_page.h"
#include "proto/packet.h"
#include "tests/daemon/ledger_page.h"
#include "tests/daemon/stalled_write.h"

namespace ravenstore::daemon {
namespace {

using core::Bytes;
using core::MiB;

using Page = LedgerPage;

const std::vector<std::string> kDevices{"GPU-0", "GPU-1"};

core::Result<ProcessSlots::Slot> Add(LegacyLedger& ledger, uint64_t key, const Page& page,
                                     uid_t uid = 7, const char* mode = "account") {
  LegacyLedger::Newcomer job;
  job.mode = mode;
  job.client = static_cast<uint32_t>(key + 100);
  job.pid = static_cast<pid_t>(key + 1000);
  job.uid = uid;
  job.name = "job";
  job.page = page.Descriptor();
  return ledger.Add(key, std::move(job));
}

// The page of an elastic job's engines, whose row 1 has `live` live bytes.
ipc::UniqueFd ElasticPage(uint64_t live, size_t bytes = proto::kElasticPageBytes) {
  ipc::UniqueFd file(memfd_create("elastic", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(ftruncate(file.get(), static_cast<off_t>(bytes)), 0);
  auto row = std::make_unique<proto::ElasticPageRow>();
  row->sequence = 2;
  row->written_ns = 1;
  row->live = live;
  EXPECT_GT(pwrite(file.get(), row.get(), sizeof(*row), proto::kElasticRowBytes), 0);
  EXPECT_EQ(fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
  return file;
}

// The job can make its write of the page take any time. Other writers of the file wait.
TEST(LegacyLedgerTest, AJobThatNeverEndsWritingItsPageDelaysNoOther) {
  LegacyLedger ledger(Bytes{0}, kDevices);
  Page page;
  ASSERT_TRUE(Add(ledger, 1, page).ok());
  const ipc::UniqueFd file = page.Descriptor();
  StalledWrite stalled(file.get(), 64);
  if (!stalled.stands()) GTEST_SKIP() << "no page faults of one's own here";
  auto set = std::async(std::launch::async, [&] { ledger.SetTenant(7, MiB(1)); });
  EXPECT_EQ(set.wait_for(std::chrono::seconds(10)), std::future_status::ready);
}

TEST(LegacyLedgerTest, SumsWhatJobsHoldOfEachDeviceWithoutTheStoresSlabs) {
  LegacyLedger ledger(Bytes{0}, kDevices);
  Page first, second;
  first.Row(0, "GPU-0").used = 300;
  first.Row(0, "GPU-0").served = 100;
  first.Row(1, "GPU-1").used = 5;
  second.Row(0, "GPU-0").used = 40;
  second.Row(1, "GPU-1").used = 7;
  second.Row(1, "GPU-1").served = 9;  // which cannot be
  ASSERT_TRUE(Add(ledger, 1, first).ok());
  ASSERT_TRUE(Add(ledger, 2, second).ok());
  EXPECT_EQ(ledger.HeldByDevice(), (std::vector{Bytes{240}, Bytes{5}}));
  second.Row(0, "GPU-0").used = UINT64_MAX;
  EXPECT_EQ(ledger.HeldByDevice().at(0), Bytes(UINT64_MAX));
}

// A job can fill its page with any rows: only the first of each of the daemon's devices counts.
TEST(LegacyLedgerTest, RowsOfNoDeviceAndSecondRowsOfOneAreShownAndCountForNothing) {
  LegacyLedger ledger(Bytes{0}, kDevices);
  Page page;
  page.Row(0, "GPU-9").used = 1;
  page.Row(1, "GPU-1").used = 20;
  page.Row(2, "GPU-1").used = 300;
  ASSERT_TRUE(Add(ledger, 1, page, 7, "elastic").ok());
  ASSERT_TRUE(ledger.SetElasticPage(1, ElasticPage(300)));
  EXPECT_EQ(ledger.HeldByDevice(), (std::vector{Bytes{0}, Bytes{20}}));
  const auto uses = ledger.UsesByDevice();
  ASSERT_EQ(uses.size(), 2u);
  EXPECT_TRUE(uses[0].empty());
  ASSERT_EQ(uses[1].size(), 1u);
  EXPECT_EQ(uses[1][0].bytes, Bytes{20});
  const auto holdings = ledger.Holdings();
  ASSERT_EQ(holdings.size(), 1u);
  EXPECT_EQ(holdings[0].device, 1u);
  proto::ExplainJob query;
  query.set_client(101);
  const auto explained = ledger.Explain(7, query, core::Tick{});
  ASSERT_TRUE(explained.ok());
  EXPECT_EQ(explained->job().devices_size(), 3);
  EXPECT_EQ(explained->elastic().uuid(), "GPU-1");
}

TEST(LegacyLedgerTest, ReadsWhatTheJobWrote) {
  LegacyLedger ledger(Bytes{0}, kDevices);
  Page page;
  auto& row = page.Row(0, "GPU-0");
  ASSERT_TRUE(Add(ledger, 1, page).ok());
  row.used = 300;
  row.served = 100;
  row.kinds[2] = 300;
  proto::LegacyJobs jobs;
  ledger.Fill(std::nullopt, {}, &jobs);
  ASSERT_EQ(jobs.jobs_size(), 1);
  ASSERT_EQ(jobs.jobs(0).devices_size(), 1);
  EXPECT_EQ(jobs.jobs(0).devices(0).kinds(2), 300u);
}

TEST(LegacyLedgerTest, BudgetsStandInThePageWhenTheCallReturns) {
  LegacyLedger ledger(MiB(50), kDevices);
  Page page;
  auto& row = page.Row(0, "GPU-0");
  ASSERT_TRUE(Add(ledger, 1, page).ok());
  EXPECT_EQ(row.visible, MiB(50).count());
  ledger.SetTenant(7, MiB(30));
  EXPECT_EQ(row.visible, MiB(30).count());
  ledger.SetTenant(8, MiB(10));
  EXPECT_EQ(row.visible, MiB(30).count());
  ledger.SetClient(101, MiB(20));
  EXPECT_EQ(row.visible, MiB(20).count());
  EXPECT_EQ(ledger.VisibleOfClient(101), MiB(20));
  ledger.SetClient(101, std::nullopt);
  EXPECT_EQ(row.visible, MiB(30).count()) << "its tenant's";
  ledger.SetTenant(7, std::nullopt);
  EXPECT_EQ(row.visible, MiB(50).count()) << "the configuration's";
}

TEST(LegacyLedgerTest, OnlyAnElasticJobIsPaused) {
  LegacyLedger ledger(Bytes{0}, kDevices);
  Page page;
  Page elastic_page;
  auto& row = page.Row(0, "GPU-0");
  auto& elastic_row = elastic_page.Row(0, "GPU-0");
  ASSERT_TRUE(Add(ledger, 1, page).ok());
  ASSERT_TRUE(Add(ledger, 2, elastic_page, 7, "elastic").ok());
  const auto refused = ledger.SetPaused(101, true);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("mode account"), std::string::npos);
  EXPECT_EQ(row.paused, 0u);
  ASSERT_TRUE(ledger.SetPaused(102, true).ok());
  EXPECT_EQ(elastic_row.paused, 1u);
  ledger.SetTenant(7, MiB(30));
  EXPECT_EQ(elastic_row.paused, 1u) << "other limits leave it";
  ASSERT_TRUE(ledger.SetPaused(102, false).ok());
  EXPECT_EQ(elastic_row.paused, 0u);
  EXPECT_FALSE(ledger.SetPaused(999, true).ok());
}

TEST(LegacyLedgerTest, ATenantsJobsHaveItsBudgetTogetherAndOneMayGoPastIt) {
  LegacyLedger ledger(MiB(50), kDevices);
  Page page;
  Page other;
  auto& row = page.Row(0, "GPU-0");
  auto& other_row = other.Row(0, "GPU-0");
  ASSERT_TRUE(Add(ledger, 1, page).ok());
  ASSERT_TRUE(Add(ledger, 2, other).ok());
  ledger.SetClient(101, MiB(80));
  EXPECT_EQ(row.visible, MiB(80).count());
  EXPECT_EQ(row.together, MiB(80).count());
  EXPECT_EQ(other_row.together, MiB(50).count());
  ledger.SetClient(101, MiB(20));
  EXPECT_EQ(row.visible, MiB(20).count());
  EXPECT_EQ(row.together, MiB(50).count());
}

TEST(LegacyLedgerTest, AJobThatHungUpIsNotShownButKeepsItsProcessSlotUntilItsProcessEnds) {
  LegacyLedger ledger(Bytes{0}, kDevices);
  Page page;
  page.Row(0, "GPU-0").used = 5;
  ASSERT_TRUE(Add(ledger, 1, page).ok());
  EXPECT_TRUE(ledger.HangUp(1));
  EXPECT_FALSE(ledger.Has(1));
  EXPECT_TRUE(ledger.HasProcessSlot(1));
  ledger.Remove(1);
  EXPECT_FALSE(ledger.HasProcessSlot(1));
  EXPECT_FALSE(ledger.HangUp(2));
}

TEST(LegacyLedgerTest, AProcessThatAttachesAgainHasOneEntry) {
  LegacyLedger ledger(Bytes{0}, kDevices);
  Page page;
  const auto first = Add(ledger, 1, page);
  LegacyLedger::Newcomer again;
  again.pid = 1001;
  again.uid = 7;
  again.page = page.Descriptor();
  const auto second = ledger.Add(2, std::move(again));
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(second->slot, first->slot);
  EXPECT_EQ(ledger.size(), 1u);
  EXPECT_EQ(ledger.KeyOfProcess(1001), 2u);
}

TEST(LegacyLedgerTest, RefusesWhatCanBeResizedUnderIt) {
  LegacyLedger ledger(Bytes{0}, kDevices);
  EXPECT_FALSE(Add(ledger, 1, Page(F_SEAL_GROW)).ok());
  EXPECT_FALSE(Add(ledger, 1, Page(F_SEAL_SHRINK | F_SEAL_GROW, 8192)).ok());
  LegacyLedger::Newcomer nothing;
  EXPECT_FALSE(ledger.Add(1, std::move(nothing)).ok());
  EXPECT_EQ(ledger.size(), 0u);
}

TEST(LegacyLedgerTest, ShowsEachUserItsOwn) {
  LegacyLedger ledger(Bytes{0}, kDevices);
  Page mine;
  Page yours;
  ASSERT_TRUE(Add(ledger, 1, mine, 7).ok());
  ASSERT_TRUE(Add(ledger, 2, yours, 8).ok());
  proto::LegacyJobs jobs;
  ledger.Fill(uid_t{8}, {}, &jobs);
  ASSERT_EQ(jobs.jobs_size(), 1);
  EXPECT_EQ(jobs.jobs(0).client(), 102u);
}

TEST(LegacyLedgerTest, ListsPageByPage) {
  LegacyLedger ledger(Bytes{0}, kDevices);
  Page page;
  for (uint64_t key = 1; key <= 150; ++key) ASSERT_TRUE(Add(ledger, key, page).ok());
  int seen = 0;
  proto::ListLegacy query;
  do {
    proto::LegacyJobs jobs;
    ledger.Fill(std::nullopt, query, &jobs);
    seen += jobs.jobs_size();
    query.set_cursor(jobs.next_cursor());
  } while (query.cursor() != 0);
  EXPECT_EQ(seen, 150);
}

TEST(LegacyLedgerTest, APageOfTheLargestJobsFitsAPacket) {
  LegacyLedger ledger(Bytes{0}, kDevices);
  Page page;
  for (uint32_t i = 0; i < proto::kLedgerDevices; ++i) {
    auto& row = page.Row(i, std::string(sizeof(proto::LedgerRow::uuid) - 1, 'G').c_str());
    row.asked = row.used = row.served = ~uint64_t{0};
    for (auto& kind : row.kinds) kind = ~uint64_t{0};
  }
  for (uint64_t key = 1; key <= 150; ++key) ASSERT_TRUE(Add(ledger, key, page).ok());
  int seen = 0;
  proto::ListLegacy query;
  do {
    proto::DaemonPacket packet;
    packet.set_request(~uint64_t{0});
    proto::LegacyJobs& jobs = *packet.mutable_legacy_jobs();
    ledger.Fill(std::nullopt, query, &jobs);
    ASSERT_LE(packet.ByteSizeLong(), proto::kControlPacketMax);
    ASSERT_GT(jobs.jobs_size(), 0);
    seen += jobs.jobs_size();
    query.set_cursor(jobs.next_cursor());
  } while (query.cursor() != 0);
  EXPECT_EQ(seen, 150);
}

TEST(LegacyLedgerTest, PrintsNothingOfAStrangerThatIsNotText) {
  LegacyLedger ledger(Bytes{0}, kDevices);
  Page page;
  page.Row(0, "GPU\n\x01").used = 1;
  ASSERT_TRUE(Add(ledger, 1, page).ok());
  ASSERT_EQ(ledger.Read(1).size(), 1u);
  EXPECT_EQ(ledger.Read(1)[0].uuid, "GPU??");
}

TEST(LegacyLedgerTest, AnEndedJobHoldsNothing) {
  LegacyLedger ledger(Bytes{0}, kDevices);
  Page page;
  page.Row(0, "GPU-0").used = 5;
  ASSERT_TRUE(Add(ledger, 1, page).ok());
  EXPECT_EQ(ledger.KeyOfProcess(1001), 1u);
  ledger.Remove(1);
  EXPECT_EQ(ledger.KeyOfProcess(1001), 0u);
}

TEST(LegacyLedgerTest, OnlyASealedFileOfTheRightSizeIsAnElasticPage) {
  EXPECT_TRUE(LegacyLedger::IsElasticPage(ElasticPage(1).get()));
  EXPECT_FALSE(LegacyLedger::IsElasticPage(
      ElasticPage(1, proto::kElasticPageBytes + proto::kLedgerBytes).get()));
  const ipc::UniqueFd open(memfd_create("open", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(open.get(), proto::kElasticPageBytes), 0);
  EXPECT_FALSE(LegacyLedger::IsElasticPage(open.get()));
  EXPECT_FALSE(LegacyLedger::IsElasticPage(-1));
}

TEST(LegacyLedgerTest, AJobIsExplainedToItsUserByWhatItHoldsAndWhatItsEnginesShow) {
  LegacyLedger ledger(Bytes{0}, kDevices);
  Page page;
  page.Row(0, "GPU-0").used = 5;
  page.Row(1, "GPU-1").used = 6;
  page.Row(2, "GPU-2");
  ASSERT_TRUE(Add(ledger, 1, page, 7, "elastic").ok());
  proto::ExplainJob query;
  query.set_client(101);
  const auto nothing = ledger.Explain(7, query, core::Tick{});
  ASSERT_TRUE(nothing.ok());
  EXPECT_EQ(nothing->job().devices_size(), 2);
  EXPECT_FALSE(nothing->has_elastic());
  EXPECT_TRUE(ledger.SetElasticPage(1, ElasticPage(300)));
  EXPECT_FALSE(ledger.SetElasticPage(1, ElasticPage(400))) << "the first one stays";
  const auto explained = ledger.Explain(std::nullopt, query, core::Tick{});
  ASSERT_TRUE(explained.ok());
  EXPECT_EQ(explained->elastic().uuid(), "GPU-1");
  EXPECT_EQ(explained->elastic().live(), 300u);
  EXPECT_EQ(explained->next_cursor(), 2u);
  query.set_cursor(2);
  const auto last = ledger.Explain(7, query, core::Tick{});
  ASSERT_TRUE(last.ok());
  EXPECT_FALSE(last->has_elastic());
  EXPECT_EQ(last->next_cursor(), 0u);
  query.set_cursor(~0u);
  EXPECT_TRUE(ledger.Explain(7, query, core::Tick{}).ok());
  EXPECT_FALSE(ledger.Explain(8, query, core::Tick{}).ok()) << "another user's";
  query.set_client(999);
  EXPECT_FALSE(ledger.Explain(std::nullopt, query, core::Tick{}).ok());
}

// The daemon may have other devices than the job, or simulated ones.
TEST(LegacyLedgerTest, AnEngineOnADeviceThatIsNotTheDaemonsIsShown) {
  LegacyLedger ledger(Bytes{0}, kDevices);
  Page page;
  page.Row(0, "GPU-8").used = 5;
  page.Row(1, "GPU-9").used = 6;
  ASSERT_TRUE(Add(ledger, 1, page, 7, "elastic").ok());
  ASSERT_TRUE(ledger.SetElasticPage(1, ElasticPage(300)));
  proto::ExplainJob query;
  query.set_client(101);
  const auto explained = ledger.Explain(7, query, core::Tick{});
  ASSERT_TRUE(explained.ok());
  EXPECT_EQ(explained->elastic().uuid(), "GPU-9");
  EXPECT_EQ(explained->elastic().live(), 300u);
}

TEST(LegacyLedgerTest, ARunIsLoweredInAllItsProcessesAndNeverRaised) {
  LegacyLedger ledger(Bytes{0}, kDevices);
  const auto add = [&](uint64_t key, pid_t pid, uint32_t run, uid_t uid) {
    LegacyLedger::Newcomer job;
    job.client = static_cast<uint32_t>(key);
    job.pid = pid;
    job.run = run;
    job.uid = uid;
    job.page = LedgerPage().Descriptor();
    ASSERT_TRUE(ledger.Add(key, std::move(job)).ok());
  };
  add(1, 10, 10, 7);
  add(2, 11, 10, 7);
  add(3, 12, 12, 7);
  add(4, 13, 10, 8);
  ledger.LowerRun({10, 1}, core::TenantId{7}, core::GiB(4));
  EXPECT_EQ(ledger.VisibleOfClient(1), core::GiB(4));
  EXPECT_EQ(ledger.VisibleOfClient(2), core::GiB(4));
  EXPECT_EQ(ledger.VisibleOfClient(3), Bytes{0}) << "another run";
  EXPECT_EQ(ledger.VisibleOfClient(4), Bytes{0}) << "another user";
  ledger.LowerRun({10, 1}, core::TenantId{7}, core::GiB(5));
  EXPECT_EQ(ledger.VisibleOfClient(1), core::GiB(4));
}

}  // namespace
}  // namespace ravenstore::daemon
