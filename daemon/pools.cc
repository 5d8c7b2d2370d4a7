#include "daemon/pools.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "core/size_text.h"
#include "daemon/links.h"
#include "daemon/peers.h"
#include "device/file_medium.h"

namespace ravenstore::daemon {
namespace {

using core::Error;
using core::ErrorCode;

// Of a file transfer, in addition to the time for its bytes.
constexpr core::Duration kFileLatency = std::chrono::microseconds(100);

Error Refused(const char* key, const std::string& value, const Error& why) {
  return {ErrorCode::kInvalidArgument,
          "\"" + std::string(key) + "\" is " + value + ", but " + why.message};
}

core::Result<MediumRates> RatesOf(const Config& config, device::Medium& file) {
  MediumRates rates{config.file_pool_read_bytes_per_second,
                    config.file_pool_write_bytes_per_second};
  if (rates.read > 0 && rates.write > 0) return rates;
  auto measured = MeasureMedium(file);
  if (!measured.ok()) return Refused("file_pool.path", config.file_pool_path, measured.error());
  if (rates.read == 0) rates.read = measured->read;
  if (rates.write == 0) rates.write = measured->write;
  return rates;
}

// Which devices reach the share of `owner`, and how fast; those that do not are logged.
std::map<core::DeviceId, PeerRates> ReachedBy(const device::Devices& devices, size_t owner,
                                              device::VaRange& share, core::Bytes bytes) {
  std::map<core::DeviceId, PeerRates> reached_by;
  for (size_t i = 0; i < devices.size(); ++i) {
    if (i == owner) continue;
    const std::string pair = devices[i]->info().uuid + " and " + devices[owner]->info().uuid;
    if (!devices[i]->Reaches(*devices[owner]) || !devices[owner]->Reaches(*devices[i])) {
      spdlog::info("{} do not reach one another: no peer pool joins them", pair);
      continue;
    }
    const auto rates = CheckPeer(*devices[i], *devices[owner], share, bytes);
    if (!rates.ok()) {
      spdlog::warn("{}: copies between them were tried and are not to be relied on: {}", pair,
                   core::Describe(rates.error()));
      continue;
    }
    reached_by.emplace(core::DeviceId{static_cast<uint16_t>(i)}, *rates);
  }
  return reached_by;
}

// Memory of a device for the others' tensors: a share that is allocated immediately, or harvested
// memory.
struct PeerKind {
  const char* key;
  core::Bytes size;
  core::Bytes chunk;  // of what is harvested; 0: it is a share

  bool harvested() const { return chunk > core::Bytes{}; }
};
// Of harvested memory, this much is allocated for a while to see which devices reach it.
constexpr core::Bytes kTried = core::MiB(64);

core::Status AddPeerPool(const PeerKind& kind, const device::Devices& devices, size_t owner,
                         const core::LinkModel& to_host, OtherPools* others) {
  const auto refused = [&](const Error& why) {
    return Refused(kind.key, core::SizeText(kind.size), why);
  };
  auto range = devices[owner]->ReserveVaRange(kind.size);
  if (!range.ok()) return refused(range.error());
  const core::Bytes made = kind.harvested() ? std::min(kind.size, kTried) : kind.size;
  if (const auto there = (*range)->Create(core::Bytes{}, made); !there.ok())
    return refused(there.error());
  const auto reached_by = ReachedBy(devices, owner, **range, made);
  if (kind.harvested()) RAVEN_RETURN_IF_ERROR((*range)->Unmap(core::Bytes{}));
  others->pairs_left_out += static_cast<uint32_t>(devices.size() - 1 - reached_by.size());
  if (reached_by.empty()) return core::Ok();
  const core::PoolId id{static_cast<uint16_t>(1 + devices.size() + others->pools.size())};
  const core::DeviceId number{static_cast<uint16_t>(owner)};
  others->pools.push_back({core::PoolKind::kPeer, core::ToInt(number), kind.size,
                           core::kExtentAlignment, /*addressable=*/false, kind.chunk,
                           /*covered=*/kind.harvested()});
  others->links.push_back({core::kHostPool, id, to_host.latency, to_host.up_bytes_per_second,
                           to_host.down_bytes_per_second});
  std::set<core::DeviceId> direct;
  for (const auto& [device, rates] : reached_by) {
    direct.insert(device);
    others->links.push_back({core::PoolOf(device), id, to_host.latency, rates.out, rates.in});
    spdlog::info("{} of {} on {}, from {}: {:.1f} GB/s out, {:.1f} GB/s in",
                 kind.harvested() ? "harvest" : "peer pool", core::SizeText(kind.size),
                 devices[owner]->info().uuid, devices[core::ToInt(device)]->info().uuid,
                 rates.out / 1e9, rates.in / 1e9);
  }
  others->memory.push_back(PeerMemory(devices, number, *std::move(range),
                                      kind.harvested() ? core::Bytes{} : kind.size,
                                      std::move(direct)));
  if (kind.harvested()) {
    others->harvests.emplace(id, number);
  } else {
    others->shares[owner] = kind.size;
  }
  return core::Ok();
}

core::Status AddPeerPools(const PeerKind& kind, const device::Devices& devices,
                          const std::vector<core::LinkModel>& links, OtherPools* others) {
  if (kind.size == core::Bytes{0}) return core::Ok();
  if (devices.size() == 1) {
    spdlog::warn("\"{}\" is {}, but there is one device: no peer pool is made", kind.key,
                 core::SizeText(kind.size));
    return core::Ok();
  }
  for (size_t owner = 0; owner < devices.size(); ++owner)
    RAVEN_RETURN_IF_ERROR(AddPeerPool(kind, devices, owner, links[owner], others));
  if (others->pairs_left_out > 0)
    spdlog::warn("peer pools: {} pair(s) of devices are left out", others->pairs_left_out);
  return core::Ok();
}

core::Status AddFilePool(const Config& config, const device::Devices& devices, OtherPools* others) {
  if (config.file_pool_size == core::Bytes{0}) return core::Ok();
  auto file = device::FileMedium::Create(config.file_pool_path, config.file_pool_size, {});
  if (!file.ok()) {
    return file.error().code == ErrorCode::kOutOfMemory
               ? Refused("file_pool.size", core::SizeText(config.file_pool_size), file.error())
               : Refused("file_pool.path", config.file_pool_path, file.error());
  }
  if (!(*file)->direct()) {
    spdlog::warn(
        "\"file_pool.path\" is {}, whose file system has no O_DIRECT: the pool's pages "
        "take main memory as well",
        config.file_pool_path);
  }
  RAVEN_ASSIGN_OR_RETURN(const MediumRates rates, RatesOf(config, **file));
  const core::PoolId id{static_cast<uint16_t>(1 + devices.size() + others->pools.size())};
  others->pools.push_back(
      {core::PoolKind::kFile, 0, (*file)->size(), (*file)->granularity(), /*addressable=*/false});
  others->links.push_back({core::kHostPool, id, kFileLatency, rates.write, rates.read});
  spdlog::info("file pool of {} in {}: {:.1f} GB/s read, {:.1f} GB/s written",
               core::SizeText((*file)->size()), config.file_pool_path, rates.read / 1e9,
               rates.write / 1e9);
  others->memory.push_back(MemoryOf(devices, *std::move(file)));
  return core::Ok();
}

void AddRemotePool(const device::Devices& devices, RemoteMemory remote, OtherPools* others) {
  const device::PiecedMedium& medium = *remote.medium;
  const core::PoolId id{static_cast<uint16_t>(1 + devices.size() + others->pools.size())};
  others->pools.push_back({core::PoolKind::kRemote, 0, medium.size(), medium.granularity(),
                           /*addressable=*/false, medium.piece()});
  others->links.push_back({core::kHostPool, id, remote.latency, remote.write, remote.read});
  others->memory.push_back(MemoryInPieces(devices, std::move(remote.medium)));
  others->remote = id;
}

}  // namespace

core::Result<OtherPools> MakeOtherPools(const Config& config, const device::Devices& devices,
                                        const std::vector<core::LinkModel>& links,
                                        RemoteMemory remote) {
  OtherPools others;
  others.shares.resize(devices.size());
  if (config.peer_pool_size > core::Bytes{0} && config.harvest_size > core::Bytes{0}) {
    return Refused("harvest.size", core::SizeText(config.harvest_size),
                   {ErrorCode::kInvalidArgument,
                    "\"peer_pool.size\" is " + core::SizeText(config.peer_pool_size) +
                        ": of a device either a share is taken or what is idle"});
  }
  for (const PeerKind& kind : {PeerKind{"peer_pool.size", config.peer_pool_size, core::Bytes{}},
                               PeerKind{"harvest.size", config.harvest_size, config.harvest_step}})
    RAVEN_RETURN_IF_ERROR(AddPeerPools(kind, devices, links, &others));
  RAVEN_RETURN_IF_ERROR(AddFilePool(config, devices, &others));
  if (remote.medium != nullptr) AddRemotePool(devices, std::move(remote), &others);
  return others;
}

}  // namespace ravenstore::daemon
