# shellcheck shell=bash
# A cluster's nodes on one machine: a network namespace for each, one more with the bridge that joins them and with
# etcd, and the daemons in them, with simulated devices. Sourced, not run, by cluster-demo and bench/cluster_real.py.
#
# PREFIX begins the namespaces' names, and RUN is the folder of everything else; RAVENSTORED and ETCD are what runs.
# NODE_NAMES are letters, from a on: the address of each is 192.0.2.1 and so on. Encrypted sockets (TLS 1.3) are between them.
# Every node is told of 4 GiB of memory by a file in the place of its /proc/meminfo, so that what is wanted back is
# taken of nobody.

read -ra NODES <<<"${NODE_NAMES:-a b c}"
STORE=http://192.0.2.9:2379
LEASE=${LEASE:-3}         # seconds
RESERVE=${RESERVE:-1024}  # MiB that every node keeps free of what it lends
DEVICE=${DEVICE:-64MiB}   # of each node
HOST=${HOST:-64MiB}       # its host pool
MEMORY=$((4096 << 10))    # KiB, as each node is told

address() { echo "192.0.2.$(($(printf '%d' "'$1") - 96))"; }

find_etcd() { command -v etcd || echo "$CACHE/etcd/usr/bin/etcd"; }

# why_not: on one line what is missing here; nothing when nodes can be made.
why_not() {
  if ((EUID != 0)); then
    echo "needs root: it makes network namespaces"
  elif ! command -v ip >/dev/null; then
    echo "needs ip (Debian: iproute2)"
  elif [[ ! -x $(find_etcd) ]]; then
    echo "needs etcd (Debian: etcd-server): neither in PATH nor at $(find_etcd); deploy/setup --for test fetches it"
  elif ! unshare --net true 2>/dev/null; then
    echo "needs network namespaces, which cannot be made here"
  fi
}

# ---- The network

make_network() {
  local name
  ip netns add "$PREFIX-hub" && ip -n "$PREFIX-hub" link set lo up &&
    ip -n "$PREFIX-hub" link add bridge type bridge stp_state 0 forward_delay 0 &&
    ip -n "$PREFIX-hub" address add 192.0.2.9/24 dev bridge && ip -n "$PREFIX-hub" link set bridge up || return
  for name in "${NODES[@]}"; do
    ip netns add "$PREFIX-$name" && ip -n "$PREFIX-$name" link set lo up &&
      ip -n "$PREFIX-hub" link add "to-$name" type veth peer name net netns "$PREFIX-$name" &&
      ip -n "$PREFIX-hub" link set "to-$name" master bridge up &&
      ip -n "$PREFIX-$name" address add "$(address "$name")/24" dev net &&
      ip -n "$PREFIX-$name" link set net up || return
  done
}

remove_network() {
  local name
  for name in "${NODES[@]}" hub; do ip netns delete "$PREFIX-$name" 2>/dev/null || true; done
}

link() { ip -n "$PREFIX-hub" link set "to-$1" "$2"; }

# ---- Files

make_key() { (umask 077 && head -c 32 /dev/urandom | od -An -v -tx1 | tr -d ' \n' >"$RUN/key"); }

# has_free NODE MIB: what that node is told of its memory from now on. In place, and always of one length: the file is
# mounted, and read while it is written.
has_free() {
  printf 'MemTotal: %12d kB\nMemAvailable: %12d kB\n' "$MEMORY" $(($2 << 10)) 1<>"$RUN/$1.meminfo"
}

# write_config NODE LINE...: the lines are of its [cluster].
write_config() {
  local names
  names=$(printf '"%s", ' "${NODES[@]}")
  cat >"$RUN/$1.toml" <<END_OF_CONFIG
[socket]
path = "$RUN/$1"
[devices]
backend = "host"
[host_pool]
size = "$HOST"
step = "2MiB"
ahead = "2MiB"
[history]
path = ""
[harvest]
rise_s = 0
[host_backend]
total = "$DEVICE"
[cluster]
node = "$1"
listen = "$(address "$1"):7420"
key = "$RUN/key"
state = "$RUN/state-$1"
machine = "machine-$1"
nodes = [${names%, }]
etcd = ["$STORE"]
lease_s = $LEASE
reserve = "${RESERVE}MiB"
$(printf '%s\n' "${@:2}")
END_OF_CONFIG
}

# ---- The processes. Each of these becomes what it starts: the caller runs it in the background, or as a process.

inside() { exec ip netns exec "$PREFIX-$1" "${@:2}"; }

# Its elections are short: it is alone.
run_etcd() {
  inside hub "$ETCD" --data-dir "$RUN/etcd" --listen-client-urls "$STORE" --advertise-client-urls "$STORE" \
    --listen-peer-urls http://127.0.0.1:2380 --initial-advertise-peer-urls http://127.0.0.1:2380 \
    --initial-cluster default=http://127.0.0.1:2380 --election-timeout 500 >>"$RUN/etcd.log" 2>&1
}

run_node() {
  # ip has made a mount namespace for the process, in which the mount ends with it.
  # shellcheck disable=SC2016 # the parameters are of the inner shell
  inside "$1" bash -c 'mount --bind "$1" /proc/meminfo && exec "${@:2}"' bash "$RUN/$1.meminfo" \
    "$RAVENSTORED" --config "$RUN/$1.toml" >>"$RUN/$1.log" 2>&1
}
