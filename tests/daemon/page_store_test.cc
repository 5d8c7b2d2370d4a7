#include "daemon/page_store.h"

#include <gtest/gtest.h>

#include "tests/daemon/page_store_fixture.h"

namespace ravenstore::daemon {
namespace {

using core::SlotId;
using core::TensorId;

using PageStoreTest = PageStoreFixture;

TEST_F(PageStoreTest, ATensorLeavesAndComesBack) {
  ExpectComesBack(CreateAway());
}

TEST_F(PageStoreTest, TheStoreMayEndWhileTensorsAreAway) {
  CreateAway();
  ends_ = true;
  workers_.reset();
  store_->EndCopies();
  store_.reset();
}

// An entry of the log that is read late, or a row that its client has scribbled on.
TEST_F(PageStoreTest, UsesThatAreSaidOfAnAwayTensorAreNone) {
  const TensorId tensor = CreateAway();
  Apply(core::GetSeen{tensor});
  Put(tensor, 2);
  ExpectComesBack(tensor);
}

TEST_F(PageStoreTest, UsesThatAreSaidOfATensorThatIsAskedForAreNone) {
  const TensorId tensor = CreateAway();
  Apply(core::FetchRequested{tensor, kDevice, core::kNever});
  Apply(core::GetSeen{tensor});
  Put(tensor, 2);
  EXPECT_EQ(Await<core::FetchReply>(SlotId{0}).tensor, tensor);
}

}  // namespace
}  // namespace ravenstore::daemon
