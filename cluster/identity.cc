#include "cluster/identity.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/pem.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <type_traits>

#include "cluster/hex.h"
#include "core/check.h"
#include "transport/secret_file.h"

namespace ravenstore::cluster {
namespace {

using core::Error;
using core::ErrorCode;
using core::Result;
using core::Status;
using ipc::UniqueFd;

constexpr const char* kKeyFile = "node.key";
constexpr const char* kIncarnationsFile = "incarnations";
constexpr size_t kKeyFileMax = 4096;
// What the machine's id is hashed with, so that the hash of another application is another.
constexpr std::string_view kApplication = "ravenstore node 8c1f0ad6";

template <auto kFree>
struct Freed {
  template <typename T>
  void operator()(T* what) const {
    kFree(what);
  }
};
using Memory = std::unique_ptr<BIO, Freed<BIO_free_all>>;
using Digest = std::unique_ptr<EVP_MD_CTX, Freed<EVP_MD_CTX_free>>;
using AnyKey = std::unique_ptr<EVP_PKEY, Freed<EVP_PKEY_free>>;

Error Failed(const std::string& path, const char* what) {
  const ErrorCode code = errno == EACCES ? ErrorCode::kPermission : ErrorCode::kSystem;
  return {code, path + " " + what + ": " + std::strerror(errno)};
}

// Replaces the file as a whole, and is on the disk when it returns.
Status WriteDurably(int folder, const std::string& path, const char* name, std::string_view text) {
  const std::string fresh = std::string(name) + ".new";
  const UniqueFd file(::openat(folder, fresh.c_str(),
                               O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW,
                               S_IRUSR | S_IWUSR));
  if (!file) return Failed(path, "cannot be made");
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t more = ::write(file.get(), text.data() + done, text.size() - done);
    if (more < 0) return Failed(path, "cannot be written");
    done += static_cast<size_t>(more);
  }
  if (::fsync(file.get()) != 0 || ::renameat(folder, fresh.c_str(), folder, name) != 0 ||
      ::fsync(folder) != 0) {
    return Failed(path, "cannot be written");
  }
  return core::Ok();
}

// What is signed with this key for another purpose never serves here.
std::string Signed(std::string_view message) {
  return "ravenstore node\n" + std::string(message);
}

const unsigned char* BytesOf(std::string_view text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}
template <size_t kCount>
const unsigned char* BytesOf(const std::array<std::byte, kCount>& bytes) {
  return reinterpret_cast<const unsigned char*>(bytes.data());
}
template <size_t kCount>
unsigned char* BytesOf(std::array<std::byte, kCount>& bytes) {
  return reinterpret_cast<unsigned char*>(bytes.data());
}

MachineId Hash(std::string_view machine) {
  unsigned char hash[EVP_MAX_MD_SIZE];
  MachineId id;
  RAVEN_CHECK(HMAC(EVP_sha256(), machine.data(), static_cast<int>(machine.size()),
                   BytesOf(kApplication), kApplication.size(), hash, nullptr) != nullptr);
  static_assert(sizeof(id) <= 32 && std::is_trivially_copyable_v<MachineId>);
  std::memcpy(&id, hash, sizeof(id));
  return id;
}

Result<MachineId> FindMachine(const IdentityOptions& options) {
  if (!options.machine.empty()) return Hash("configured\n" + options.machine);
  std::string digits;
  std::ifstream(options.machine_file) >> digits;
  if (const auto id = FromHex<MachineId>(digits)) return Hash(digits);
  return Error{ErrorCode::kNotFound,
               options.machine_file +
                   " holds no machine id, by which copies find two machines: run "
                   "systemd-machine-id-setup, or name the machine by cluster.machine"};
}

// Whether the key is one of the few points for which there are signatures that hold for almost any
// message, so that to know it proves nothing.
bool HasSmallOrder(PublicKey key) {
  constexpr std::string_view kPoints[] = {
      "0000000000000000000000000000000000000000000000000000000000000000",
      "0100000000000000000000000000000000000000000000000000000000000000",
      "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
      "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
      "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
      "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
      "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
  };
  key.back() &= std::byte{0x7f};  // the sign of the other coordinate
  return std::ranges::find(kPoints, ToHex(key)) != std::end(kPoints);
}

}  // namespace

void NodeIdentity::FreeKey::operator()(evp_pkey_st* key) const {
  EVP_PKEY_free(key);
}

Result<NodeIdentity> NodeIdentity::Open(const IdentityOptions& options) {
  NodeIdentity identity;
  RAVEN_ASSIGN_OR_RETURN(identity.machine_, FindMachine(options));
  RAVEN_RETURN_IF_ERROR(identity.TakeFolder(options.folder));
  RAVEN_RETURN_IF_ERROR(identity.ReadOrMakeKey(options.folder));
  RAVEN_RETURN_IF_ERROR(identity.BeginIncarnation(options.folder));
  return identity;
}

Status NodeIdentity::TakeFolder(const std::string& folder) {
  if (::mkdir(folder.c_str(), S_IRWXU) != 0 && errno != EEXIST) {
    return Failed(folder, "cannot be made");
  }
  folder_ = UniqueFd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  struct stat status {};
  if (!folder_ || ::fstat(folder_.get(), &status) != 0) return Failed(folder, "cannot be opened");
  if (status.st_uid != ::geteuid() || (status.st_mode & 022) != 0) {
    return Error{ErrorCode::kPermission,
                 "the state folder " + folder +
                     " belongs to another user, or others can write to it: it is to be this "
                     "user's, with mode 0700"};
  }
  lock_ = UniqueFd(::openat(folder_.get(), "lock", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW,
                            S_IRUSR | S_IWUSR));
  if (!lock_) return Failed(folder + "/lock", "cannot be made");
  if (::flock(lock_.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return Failed(folder + "/lock", "cannot be locked");
    return Error{ErrorCode::kWrongState, "another process has the state folder " + folder +
                                             ": end it, or give this one a folder of its own"};
  }
  return core::Ok();
}

Status NodeIdentity::ReadOrMakeKey(const std::string& folder) {
  const std::string path = folder + "/" + kKeyFile;
  auto text = transport::ReadSecretFile("the node's key", path, kKeyFileMax);
  if (text.ok()) {
    const Memory memory(BIO_new_mem_buf(text->data(), static_cast<int>(text->size())));
    // Asked for a passphrase OpenSSL would turn to the terminal.
    const auto no_passphrase = [](char*, int, int, void*) { return -1; };
    key_.reset(PEM_read_bio_PrivateKey(memory.get(), nullptr, no_passphrase, nullptr));
    ::explicit_bzero(text->data(), text->size());
  } else if (text.error().code == ErrorCode::kNotFound) {
    key_.reset(EVP_PKEY_Q_keygen(nullptr, nullptr, "ED25519"));
    const Memory memory(BIO_new(BIO_s_secmem()));
    char* pem = nullptr;
    RAVEN_CHECK(PEM_write_bio_PrivateKey(memory.get(), key_.get(), nullptr, nullptr, 0, nullptr,
                                         nullptr) == 1);
    const auto length = static_cast<size_t>(BIO_get_mem_data(memory.get(), &pem));
    RAVEN_RETURN_IF_ERROR(WriteDurably(folder_.get(), path, kKeyFile, {pem, length}));
  } else {
    return text.error();
  }
  size_t length = public_key_.size();
  if (key_ == nullptr || EVP_PKEY_get_id(key_.get()) != EVP_PKEY_ED25519 ||
      EVP_PKEY_get_raw_public_key(key_.get(), BytesOf(public_key_), &length) != 1) {
    return Error{ErrorCode::kCorrupt,
                 "the node's key " + path +
                     " is no Ed25519 key in PEM: restore it, or remove it and the node gets a new "
                     "one"};
  }
  return core::Ok();
}

Status NodeIdentity::BeginIncarnation(const std::string& folder) {
  const std::string path = folder + "/" + kIncarnationsFile;
  const UniqueFd file(
      ::openat(folder_.get(), kIncarnationsFile, O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!file && errno != ENOENT) return Failed(path, "cannot be read");
  if (file) {
    std::ifstream lines(path);
    std::string line;
    while (std::getline(lines, line)) {
      const auto incarnation = FromHex<Incarnation>(line);
      if (!incarnation || predecessors_.size() == kPredecessorsMax) {
        return Error{ErrorCode::kCorrupt,
                     path +
                         " holds no incarnations: remove it, and the node waits until what its "
                         "last start held has expired"};
      }
      predecessors_.push_back(*incarnation);
    }
  }
  RAVEN_CHECK(::getentropy(&incarnation_, sizeof(incarnation_)) == 0);
  std::string text;
  const size_t kept = std::min(predecessors_.size(), kPredecessorsMax - 1);
  for (size_t i = predecessors_.size() - kept; i < predecessors_.size(); ++i) {
    text += ToHex(predecessors_[i]) + "\n";
  }
  text += ToHex(incarnation_) + "\n";
  return WriteDurably(folder_.get(), path, kIncarnationsFile, text);
}

Identity NodeIdentity::identity() const {
  return {.incarnation = incarnation_,
          .machine = machine_,
          .key = public_key_,
          .sign = [this](std::string_view message) { return Sign(message); },
          .verify = &NodeIdentity::Verify};
}

Signature NodeIdentity::Sign(std::string_view message) const {
  const std::string text = Signed(message);
  const Digest digest(EVP_MD_CTX_new());
  Signature signature;
  size_t length = signature.size();
  RAVEN_CHECK(EVP_DigestSignInit(digest.get(), nullptr, nullptr, nullptr, key_.get()) == 1);
  RAVEN_CHECK(
      EVP_DigestSign(digest.get(), BytesOf(signature), &length, BytesOf(text), text.size()) == 1);
  RAVEN_CHECK(length == signature.size());
  return signature;
}

bool NodeIdentity::Verify(const PublicKey& key, std::string_view message,
                          const Signature& signature) {
  const std::string text = Signed(message);
  const AnyKey public_key(
      EVP_PKEY_new_raw_public_key(EVP_PKEY_ED25519, nullptr, BytesOf(key), key.size()));
  const Digest digest(EVP_MD_CTX_new());
  return public_key != nullptr && !HasSmallOrder(key) &&
         EVP_DigestVerifyInit(digest.get(), nullptr, nullptr, nullptr, public_key.get()) == 1 &&
         EVP_DigestVerify(digest.get(), BytesOf(signature), signature.size(), BytesOf(text),
                          text.size()) == 1;
}

}  // namespace ravenstore::cluster
