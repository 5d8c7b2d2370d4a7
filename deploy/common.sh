# shellcheck shell=bash disable=SC2034 # the variables are for those who source this
# What deploy's scripts share: where things are, how to speak, how to call Bazel. Sourced, not run.

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
# HOME may be unset where there is no login (cron, CI); Bazel reads the user database then, and so do we.
HOME=${HOME:-$(getent passwd "$(id -u)" | cut -d: -f6)}
export HOME
CACHE=${RAVENSTORE_CACHE:-$HOME/.cache/ravenstore}
# Absolute: Bazel would take a relative path from wherever its server started. Made by who first writes there.
CACHE=$(realpath -m -- "$CACHE")
export RAVENSTORE_CACHE=$CACHE

JOBS=${RAVENSTORE_JOBS:-$(nproc)}

say() { printf '%s\n' "$*"; }
step() { printf '\n==> [%5ds] %s\n' "$SECONDS" "$*"; }
warn() { printf 'warning: %s\n' "$*" >&2; }
die() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

# The comment at the head of the script that runs.
usage() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; }

has_gpu() {
  [[ ${RAVENSTORE_NO_GPU:-} != 1 ]] && command -v nvidia-smi >/dev/null && nvidia-smi -L 2>/dev/null | grep -q .
}

# The packages that the build reads, in one place: deploy/setup installs them, and their versions are part
# of the cache's name, because Bazel does not see a header under /usr change.
BUILD_PACKAGES=(
  bazel-bootstrap g++ python3 protobuf-compiler libprotobuf-dev zlib1g-dev libboost-dev libspdlog-dev
  libfmt-dev libgtest-dev libgmock-dev libbenchmark-dev libcli11-dev libtomlplusplus-dev prometheus-cpp-dev
  libxxhash-dev libssl-dev libcurl4-openssl-dev nlohmann-json3-dev libucx-dev
)
TEST_PACKAGES=(clang-tidy shellcheck strace python3-venv libpython3-dev util-linux git)
# What boots a container for tests/deploy:systemd_test. Where they cannot be had it is skipped.
CONTAINER_PACKAGES=(systemd-container debootstrap)
# Wheels of PyPI, for what the distributions do not have: linters, and CUDA's headers where no toolkit is; and for
# what they have each in another version: the formatter, of which no two versions format alike.
RUFF=ruff==0.15.14
CLANG_FORMAT=clang-format==14.0.6
MYPY=mypy==1.19.1
CUDA_HEADERS=(nvidia-cuda-runtime==13.0.96 nvidia-cuda-crt==13.0.88)
# Each minor version of PyTorch that the Python package supports, from the oldest to the newest that
# client/torch_version.h knows. The tests run with the newest, deploy/torch_versions with each.
TORCH_VERSIONS=(2.9.1 2.10.0 2.11.0 2.12.1 2.13.0 2.14.1 2.15.0)
TORCH_OLDEST=${TORCH_VERSIONS[0]}
TORCH_NEWEST=${TORCH_VERSIONS[-1]}
# The wheels that are fetched with a PyTorch, and the folder with the newest one's.
TORCH_WHEELS=(numpy==2.3.5 setuptools==80.9.0)
TORCH_WHEEL_SIZE="some 3 GB (5 GB unpacked)"
TORCH_FOLDER=$CACHE/torch-$TORCH_NEWEST
# What the examples, Hugging Face's callback and the estimator's fit need besides; without them their tests are skipped.
# torchvision fits the newest PyTorch alone.
MODEL_WHEELS=(transformers==5.24.0 accelerate==1.15.0 torchvision==0.29.2 scipy==1.17.1)
MODEL_WHEELS_SIZE="some 80 MB (400 MB unpacked)"

# bazel COMMAND ARGS...: with the shared cache, no more jobs than cores and half of the memory. BAZEL_SECONDS: it is
# interrupted then, and the exit code is 124.
run_bazel() {
  local command=$1 limited=()
  shift
  if [[ -n ${BAZEL_SECONDS:-} ]]; then limited=(timeout --foreground --signal=INT --kill-after=60 "$BAZEL_SECONDS"); fi
  local versions
  versions=$({ dpkg-query -W -f '${Package} ${Version}\n' "${BUILD_PACKAGES[@]}" libtorch-dev || true; } 2>/dev/null |
    sha256sum | cut -c1-12)
  (cd "$ROOT" && "${limited[@]}" bazel "$command" --disk_cache="$CACHE/bazel-$versions" \
    --jobs="$JOBS" --local_ram_resources=HOST_RAM*.6 --show_progress_rate_limit="$(progress_seconds)" \
    --color=auto --noshow_loading_progress "$@" </dev/null)
}

# Removes entries of the build caches that no build has read for 14 days.
trim_cache() {
  find "$CACHE"/bazel-* "$CACHE/native-parts" -type f -amin "+$((14 * 24 * 60))" -delete 2>/dev/null || true
  find "$CACHE/native-parts" -mindepth 1 -type d -empty -delete 2>/dev/null || true
}

# ask_bazel COMMAND ARGS...: query and info, which know no build options.
ask_bazel() { (cd "$ROOT" && bazel "$1" --noshow_progress --color=no "${@:2}" </dev/null); }

# A terminal gets live progress; a log gets a line now and then.
progress_seconds() { if [[ -t 1 ]]; then echo 0.2; else echo 20; fi; }

# The version of this tree, which one header says.
version_of_tree() { sed -n 's/^#define RAVENSTORE_VERSION "\(.*\)"/\1/p' "$ROOT/client/ravenstore.h"; }

# When this tree was made, for outputs that are equal each time: of the last commit, else of the changelog.
time_of_tree() { git -C "$ROOT" log -1 --format=%ct 2>/dev/null || stat -c %Y "$ROOT/CHANGELOG.md"; }

# Of the Debian releases that packages and images are made for.
declare -A DEBIAN_NAMES=([12]=bookworm [13]=trixie)

# debian_root NAME RELEASE PACKAGE...: prints a folder with a bare Debian, which is fetched once, as root, and kept in the
# cache as NAME. Those of the packages that it lacks are added.
debian_root() {
  local name=$1 release=$2 root=$CACHE/packages/$1
  shift 2
  if [[ ! -d $root ]]; then
    command -v debootstrap >/dev/null || die "there is no debootstrap (apt-get install debootstrap)"
    step "Fetching a root folder of Debian $release" >&2
    rm -rf "$root.part"
    mkdir -p "$root.part"
    debootstrap --variant=minbase "$release" "$root.part" >"$root.log" 2>&1 </dev/null || {
      tail -n 20 "$root.log" >&2
      die "it could not be made"
    }
    mv "$root.part" "$root"
  fi
  if ! chroot "$root" dpkg --status "$@" >/dev/null 2>&1; then
    chroot "$root" env DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 bash -c '
      apt-get update && apt-get install --yes --no-install-recommends "$@" && apt-get clean' bash "$@" \
      >"$root.log" 2>&1 </dev/null || {
      tail -n 20 "$root.log" >&2
      die "packages could not be added to it"
    }
  fi
  echo "$root"
}

# Sets and exports RAVENSTORE_TORCH_PYTHON, the Python that the package's tests run with: the one it names, else
# python3, else that of deploy/setup's wheel, if it has numpy and a PyTorch that is supported. Returns 1, with it empty,
# when there is none or RAVENSTORE_WITHOUT_TORCH=1 leaves them out.
choose_torch_python() {
  local python chosen=${RAVENSTORE_TORCH_PYTHON:-} candidates=(python3 "$TORCH_FOLDER/bin/python3")
  export RAVENSTORE_TORCH_PYTHON=""
  [[ ${RAVENSTORE_WITHOUT_TORCH:-} != 1 ]] || return 1
  if [[ -n $chosen ]]; then candidates=("$chosen"); fi
  for python in "${candidates[@]}"; do
    if python=$(command -v "$python") && has_supported_torch "$python" && imported_torch "$python" >/dev/null; then
      RAVENSTORE_TORCH_PYTHON=$python
      return
    fi
  done
  [[ -z $chosen ]] ||
    die "RAVENSTORE_TORCH_PYTHON=$chosen is no Python 3.11 or newer with numpy and torch $TORCH_OLDEST to $TORCH_NEWEST"
  return 1
}

# has_supported_torch PYTHON: by the installed files, without importing them.
has_supported_torch() {
  "$1" -c 'import importlib.metadata as m, importlib.util as u, sys
found, oldest, newest = ([int(part) for part in version.split(".")[:2]]
                         for version in (m.version("torch"), *sys.argv[1:]))
supported = oldest <= found <= newest
sys.exit(sys.version_info < (3, 11) or not u.find_spec("numpy") or not supported)' \
    "$TORCH_OLDEST" "$TORCH_NEWEST" 2>/dev/null
}

# Sets and exports LIBTORCH and says which libtorch the build will use: $LIBTORCH, else that of the Python that
# choose_torch_python chose, else the wheel that python3 imports, else the wheel that deploy/setup put into the cache,
# else the distribution's package. Returns 1, with LIBTORCH empty, when there is none.
choose_libtorch() {
  local where=""
  if [[ -n ${LIBTORCH:-} ]]; then
    [[ -e $LIBTORCH/include/torch/csrc/api/include/torch/torch.h ]] ||
      die "LIBTORCH=$LIBTORCH holds no include/torch/csrc/api/include/torch/torch.h"
    where="from LIBTORCH"
  elif [[ -n ${RAVENSTORE_TORCH_PYTHON:-} ]] && LIBTORCH=$(imported_torch "$RAVENSTORE_TORCH_PYTHON"); then
    where="the torch of $RAVENSTORE_TORCH_PYTHON"
  elif LIBTORCH=$(imported_torch python3); then
    where="the torch that python3 imports"
  elif LIBTORCH=$(imported_torch "$TORCH_FOLDER/bin/python3"); then
    where="the torch wheel in deploy/setup's cache"
  elif [[ -e /usr/include/torch/csrc/api/include/torch/torch.h ]]; then
    LIBTORCH=/usr
    where="the distribution's libtorch-dev"
  fi
  export LIBTORCH
  [[ -n $LIBTORCH ]] || return 1
  LIBTORCH_WORDS="$(torch_version) ($where, $LIBTORCH)"
}

# Sets and exports CUDA_HOME where it finds cuda.h and what it includes: the usual place, beside a torch wheel, or in
# deploy/setup's cache. Call it after choose_libtorch. Returns 1 when there is none.
choose_cuda() {
  local folder
  for folder in "${CUDA_HOME:-}" /usr/local/cuda "${LIBTORCH:-}"/../nvidia/{cu13,cuda_runtime} \
    "$CACHE"/tools/lib/python3*/site-packages/nvidia/cu13; do
    if [[ -n $folder && -e $folder/include/cuda.h && -e $folder/include/crt/host_defines.h ]]; then
      CUDA_HOME=$(cd "$folder" && pwd -P)
      export CUDA_HOME
      return
    fi
  done
  return 1
}

# imported_torch PYTHON: prints the folder of its torch if that has headers and truly imports. Importing
# takes seconds, so a success is remembered by the wheel's version file.
imported_torch() {
  local python folder stamp
  python=$(command -v "$1") || return 1
  folder=$("$python" -c 'import importlib.util as u, os
s = u.find_spec("torch")
print(os.path.dirname(os.path.realpath(s.origin)) if s and s.origin else "")' 2>/dev/null) || return 1
  [[ -n $folder && -e $folder/include/torch/csrc/api/include/torch/torch.h ]] || return 1
  stamp=$CACHE/imports-$(cat "$folder/version.py" <(echo "$python $folder") 2>/dev/null | sha256sum | cut -c1-12)
  if [[ ! -e $stamp ]]; then
    timeout 120 "$python" -c 'import torch' >/dev/null 2>&1 || return 1
    mkdir -p "$CACHE"
    : >"$stamp"
  fi
  echo "$folder"
}

torch_version() {
  local header
  for header in torch/headeronly/version.h torch/csrc/api/include/torch/version.h; do
    [[ -e $LIBTORCH/include/$header ]] || continue
    awk '$2 ~ /^TORCH_VERSION_(MAJOR|MINOR|PATCH)$/ { v = v sep $3; sep = "." } END { print "libtorch " v }' \
      "$LIBTORCH/include/$header"
    return
  done
  echo "libtorch"
}
