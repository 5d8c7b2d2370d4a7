#include "daemon/pools.h"

#include <spdlog/spdlog.h>

#include <chrono>
#include <string>
#include <utility>

#include "core/size_text.h"
#include "daemon/links.h"
#include "device/file_medium.h"

namespace ravenstore::daemon {
namespace {

using core::Error;
using core::ErrorCode;

// Of a transfer of a file, beside its bytes.
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

}  // namespace

core::Result<OtherPools> MakeOtherPools(const Config& config, const device::Devices& devices) {
  OtherPools others;
  RAVEN_RETURN_IF_ERROR(AddFilePool(config, devices, &others));
  return others;
}

}  // namespace ravenstore::daemon
