"""The rules of this tree, each a function from a Tree to the list of what breaks it.

They are what a review would say again and again: which floor may know what, what a test may not do,
how long a function may be. tidy_test.py runs each on this tree and on a small tree that breaks it.
"""

import ast
import re

import pages
from tree import CODE, at, class_functions, comment_text, folder, functions

COLUMNS_MAX = 100
FUNCTION_LINES_MAX = 70
CLASS_FUNCTIONS_MAX = 40

# Folder: what its files may include of this tree. The arrows of docs/ARCHITECTURE.md.
ARROWS = {
    "core": ("core/",),
    "proto": ("proto/", "core/types.h", "core/result.h", "core/check.h"),
    "ipc": ("ipc/", "proto/", "core/"),
    "device": ("device/", "ipc/unique_fd.h", "proto/", "core/"),
    # The simulator of a cluster runs on its fake.
    "sim": ("sim/", "cluster/", "transport/", "proto/", "core/"),
    "transport": ("transport/", "ipc/clock.h", "ipc/unique_fd.h", "core/"),
    "cluster": ("cluster/", "transport/", "ipc/clock.h", "ipc/unique_fd.h", "core/"),
    "daemon": ("daemon/", "cluster/", "transport/", "device/", "ipc/", "proto/", "core/"),
    # The exporter listens at an address and reads a secret, as nodes do.
    "client": (
        "client/",
        "device/",
        "ipc/",
        "transport/address.h",
        "transport/secret_file.h",
        "proto/",
        "core/",
    ),
    "elastic": (
        "elastic/",
        "ipc/clock.h",
        "proto/elastic_page.h",
        "proto/trace_file.h",
        "core/",
    ),
    # It loads the client library and the elastic engine at run time, by their C ABIs.
    "interceptor": (
        "interceptor/",
        "client/ravenstore.h",
        "elastic/elastic.h",
        "device/",
        "ipc/",
        "proto/",
        "core/",
    ),
    # Its native part is made of the client's torch adapter.
    "python": ("python/", "client/ravenstore.h", "client/client.h", "client/torch_"),
}
FLOORS = tuple(ARROWS)
PUBLIC_HEADERS = ("client/ravenstore.h", "client/client.h", "client/torch.h")
OPEN_END = r"(?:#|//|\*).*\b(?:TO" r"DO|FIX" r"ME|XX" r"X|HA" r"CK)\b(?!\(#\d+\))"
TORCH_USERS = ("client/torch", "client/examples/", "python/native/")
# Header: the words of the contract that a reader looks for.
CONTRACTS = {
    "client/ravenstore.h": ("Streams", "Threads", "Fork", "bytes", "returns"),
    "client/client.h": ("Errors", "stream", "Owns", "Throws"),
    "client/torch.h": ("Threads", "Streams", "Errors", "Owns"),
    "device/device.h": ("Threads", "Errors", "Owns", "Streams|stream"),
    "transport/transport.h": ("Threads", "Errors", "Owns", "Units"),
    "core/planner.h": ("Threads", "Errors", "Owns", "Cost"),
}
GROUPS = {
    "floor2": {"//cluster/...", "//device/...", "//ipc/...", "//sim/...", "//transport/..."},
    "floor3": {
        "//client/...",
        "//daemon/...",
        "//elastic/...",
        "//interceptor/...",
        "//python/...",
    },
    "observers": {"//bench/...", "//deploy/...", "//tests/..."},
}

CUDA = re.compile(r"^(cuda|cu[A-Z]|cublas|cudnn|cupti|nccl|nvml|nvToolsExt|cooperative_groups)")
TORCH = re.compile(r"^(torch|ATen|c10|caffe2)/")
PROTOBUF = re.compile(r"\.pb\.h$|^google/protobuf/")


def lines_matching(tree, names, pattern, words, text_of=None):
    """A complaint for every match of `pattern` in the code (not the comments) of `names`."""
    found = []
    for name in names:
        text = (text_of or tree.code)(name)
        for match in re.finditer(pattern, text):
            line = text.count("\n", 0, match.start()) + 1
            found.append(at(name, line, words.format(match.group(0).strip())))
    return found


def includes_matching(tree, names, pattern, words):
    return [
        at(name, line, words.format(header))
        for name in names
        for line, header in tree.includes(name)
        if pattern.search(header)
    ]


# ---- Floors


def floors_include_downwards(tree):
    """A folder includes its own floor and those below, never one next to it or above."""
    found = []
    known = {name.split("/")[0] for name in tree.files if "/" in name}
    for name in tree.code_files(*ARROWS):
        for line, header in tree.includes(name):
            ours = "/" in header and header.split("/")[0] in known
            if ours and not header.startswith(ARROWS[folder(name)]):
                found.append(at(name, line, f"{folder(name)} may not include {header}"))
    return found


def core_is_pure(tree):
    """core has no clock, thread, I/O, log or chance of its own: those come in as arguments."""
    headers = re.compile(
        r"^(thread|mutex|shared_mutex|condition_variable|future|semaphore|latch|barrier|atomic"
        r"|iostream|fstream|ostream|istream|sstream|syncstream|print|filesystem|csignal|ctime"
        r"|time\.h|unistd\.h|fcntl\.h|signal\.h|pthread\.h|errno\.h|cerrno)$"
        r"|^(sys|linux|spdlog|fmt|boost|google|toml\+\+)/|^(cuda|torch|systemd)"
    )
    # A broken invariant has to be said somewhere.
    names = [name for name in tree.code_files("core") if name != "core/check.cc"]
    found = includes_matching(tree, names, headers, "core is pure: {}")
    calls = (
        r"\b\w*(?:_clock|Clock)::now\b|\bclock_gettime\b|\bgetenv\b|\brandom_device\b|\bs?rand\("
        r"|\bv?f?printf\(|\bf?puts\(|\bfopen\("
    )
    return found + lines_matching(tree, names, calls, "core is pure: {}")


def one_thread_needs_no_locks(tree):
    """Code that runs on its caller's thread, not tested under ThreadSanitizer, has no threads."""
    names = tree.code_files("cluster", "sim")
    threads = re.compile(r"^(thread|mutex|shared_mutex|condition_variable|atomic|future)$")
    return includes_matching(tree, names, threads, "of one thread, but includes {}")


def cuda_stays_in_its_files(tree):
    """CUDA's headers are seen by device/cuda*, the interceptor and its elastic engine, torch's
    allocator, tests and benchmarks only."""
    names = [
        name
        for name in tree.code_files(*FLOORS)
        if not name.startswith(
            ("device/cuda", "elastic/", "interceptor/", "client/torch_allocator_cuda")
        )
    ]
    found = includes_matching(tree, names, CUDA, "CUDA belongs into device/cuda*: {}")
    # A libtorch without CUDA has no header to include, so its users have to ask.
    names = [name for name in names if not name.startswith(TORCH_USERS)]
    pattern = r"#[ \t]*(?:if|ifdef|ifndef|elif)\b.*CUDA.*"
    return found + lines_matching(tree, names, pattern, "no backend by #if: {}")


def boost_stays_in_ipc(tree):
    names = [n for n in tree.code_files() if not n.startswith(("ipc/", "tests/ipc/"))]
    found = includes_matching(tree, names, re.compile(r"^boost/"), "Boost belongs into ipc: {}")
    locks = (
        r"\binterprocess_\w*(?:mutex|condition|semaphore)\b|\bnamed_\w*mutex\b"
        r"|PTHREAD_PROCESS_SHARED"
    )
    return found + lines_matching(tree, tree.code_files(), locks, "no lock in shared memory: {}")


def protobuf_stays_inside(tree):
    """Generated types are for daemon, client and traces, never in a header that users include."""
    names = [
        name
        for name in tree.code_files(*FLOORS)
        if folder(name) not in ("proto", "daemon", "client", "sim")
    ]
    found = includes_matching(tree, names, PROTOBUF, "protobuf does not belong here: {}")
    for name in PUBLIC_HEADERS:
        if name in tree.files_set:
            found += [
                at(name, 1, f"a public header reaches {header}")
                for header in sorted(tree.reach(name))
                if PROTOBUF.search(header)
            ]
    return found


def public_headers_stand_alone(tree):
    """A user's compiler needs client/*.h, the standard library and (torch.h) libtorch only."""
    found = []
    for name in PUBLIC_HEADERS:
        if name in tree.files_set:
            for line, header in tree.includes(name):
                own = header in PUBLIC_HEADERS or "/" not in header
                if not own and not (name == "client/torch.h" and TORCH.search(header)):
                    found.append(at(name, line, f"a public header may not include {header}"))
    return found


def torch_stays_in_its_targets(tree):
    names = [name for name in tree.code_files(*FLOORS) if not name.startswith(TORCH_USERS)]
    return includes_matching(tree, names, TORCH, "libtorch belongs into the adapter: {}")


def torch_never_meets_protobuf(tree):
    """A torch wheel brings an old protobuf: no file and no target may see both it and ours."""
    found = []
    for name in tree.code_files():
        reach = tree.reach(name)
        torch = [header for header in reach if TORCH.search(header)]
        ours = [header for header in reach if PROTOBUF.search(header)]
        if torch and ours:
            found.append(at(name, 1, f"sees {min(torch)} and {min(ours)}"))
    by_label = {target.label: target for target in tree.targets}
    for target in tree.targets:
        reach = compiled_into(by_label, target)
        if "@libtorch//:libtorch" in reach and "//proto:control_cc_proto" in reach:
            where = f"{target.package}/BUILD"
            found.append(at(where, 1, f"{target.label} links libtorch and protobuf"))
    return found


def compiled_into(by_label, target):
    """Labels that `target` is compiled and linked with. A shared library's insides are its own."""
    seen, todo = set(), target.labels("deps", "implementation_deps")
    while todo:
        label = todo.pop()
        if label in seen:
            continue
        seen.add(label)
        below = by_label.get(label)
        if below and below.rule not in ("cc_binary", "cc_import", "genrule"):
            todo += below.labels("deps", "implementation_deps")
    return seen


# ---- BUILD files


def visibility_names_floors(tree):
    """The floors are package groups of //BUILD; a package grants them, or something narrower."""
    found = []
    groups = {t.name: t for t in tree.targets if t.rule == "package_group" and not t.package}
    for name, packages in GROUPS.items():
        if name not in groups:
            found.append(f"BUILD: package_group {name} is missing")
        elif set(groups[name].strings("packages")) != packages:
            found.append(f"BUILD: package_group {name} is not {sorted(packages)}")
    above = "proto|sim|cluster|client|daemon|interceptor|python|tests|bench|deploy"
    narrow = re.compile(rf"^//(?:{above})(?:/[\w/]*)?:__(?:pkg|subpackages)__$")
    for target in tree.targets:
        if folder(target.package) not in FLOORS:
            continue
        for label in target.labels("visibility", "default_visibility"):
            own = label.startswith(f"//{folder(target.package)}") and "__" in label
            group = label.startswith("//:") and label[3:] in groups
            if not (own or group or label == "//visibility:private" or narrow.match(label)):
                where = at(f"{target.package}/BUILD", 1, f"{target.rule} {target.name}")
                found.append(f"{where} is visible to {label}")
    return found


def every_source_is_built(tree):
    """A .cc or .h that no BUILD target of its package names is dead or untested."""
    named = set()
    packages = {target.package for target in tree.targets}
    packages |= {n.rpartition("/")[0] for n in tree.files if n.split("/")[-1] == "BUILD"}
    for target in tree.targets:
        for item in target.strings("srcs", "hdrs", "textual_hdrs", "data", "src"):
            named.add(f"{target.package}/{item.removeprefix(':')}".lstrip("/"))
    for name in tree.files:  # the other branch of a conditional expression counts as well
        if name.split("/")[-1] == "BUILD":
            package = name.rpartition("/")[0]
            sources = re.findall(r'"([\w/.-]+\.(?:cc|h|cu))"', tree.text(name))
            named |= {f"{package}/{source}" for source in sources}
    found = []
    for name in tree.code_files(*FLOORS, "tests", "bench"):
        package = name.rpartition("/")[0]
        while package and package not in packages:
            package = package.rpartition("/")[0]
        if name not in named:
            found.append(at(name, 1, f"no target of //{package} names it"))
    return found


# ---- Files


def sources_have_mirrored_tests(tree):
    """x/y.cc is tested by tests/x/**/y_test.cc, or by the test that mirrors.txt names for it."""
    found = []
    stand_ins = {}
    for line in table(tree, "tests/tidy/mirrors.txt"):
        source, _, test = line.partition(" ")
        stand_ins[source] = test.strip()
        if source not in tree.files_set:
            found.append(f"tests/tidy/mirrors.txt: {source} is no longer there")
        if test.strip() not in tree.files_set:
            found.append(f"tests/tidy/mirrors.txt: {test.strip()} does not exist")
    for name in tree.code_files(*FLOORS):
        path, _, base = name.rpartition("/")
        if not name.endswith(".cc") or base == "main.cc" or "/examples" in path:
            continue
        mirror = re.compile(rf"tests/{re.escape(path)}/(?:.*/)?{re.escape(base[:-3])}_test\.cc$")
        mirrored = any(mirror.match(other) for other in tree.files)
        if not mirrored and name not in stand_ins:
            found.append(at(name, 1, f"has no tests/{path}/{base[:-3]}_test.cc"))
        if mirrored and name in stand_ins:
            found.append(f"tests/tidy/mirrors.txt: {name} has its own test now, strike it")
    return found


def table(tree, name):
    """The lines of a list file without comments and blanks."""
    if name not in tree.files_set:
        return []
    lines = (line.split("#")[0].strip() for line in tree.text(name).splitlines())
    return [line for line in lines if line]


def lines_are_short(tree):
    found = []
    for name in ours(tree, *CODE, ".py", ".bzl", ".proto"):
        for number, line in enumerate(tree.text(name).splitlines(), 1):
            if len(line) > COLUMNS_MAX:
                found.append(at(name, number, f"{len(line)} columns, {COLUMNS_MAX} at most"))
    return found


def ours(tree, *endings):
    return [
        name
        for name in tree.files
        if name.endswith(endings) and not name.startswith("third_party/bazel/")
    ]


def long_functions(tree):
    """{"path name": lines} of every function above the bound."""
    found = {}
    for name in tree.code_files():
        for function, _, lines in functions(tree.text(name)):
            if lines > FUNCTION_LINES_MAX:
                found[f"{name} {function}"] = lines
    for name in ours(tree, ".py"):
        for node in ast.walk(ast.parse(tree.text(name))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = node.end_lineno - node.lineno + 1
                if lines > FUNCTION_LINES_MAX:
                    found[f"{name} {node.name}"] = lines
    return found


def ratchet(tree, list_name, actual, most, what):
    """What is above its bound: the list's for the keys that it names. None of these may grow."""
    found = []
    allowed = {}
    for line in table(tree, f"tests/tidy/{list_name}"):
        key, _, count = line.rpartition(" ")
        allowed[key] = int(count)
    for key, count in sorted(actual.items()):
        if count > allowed.get(key, most):
            found.append(f"{key}: {count} {what}, {allowed.get(key, most)} at most")
    for key, count in sorted(allowed.items()):
        if actual.get(key, 0) < count:
            found.append(f"{list_name}: {key} has {actual.get(key, 0)} {what} now, say so")
    return found


def functions_are_short(tree):
    """The ratchet: tests/tidy/long_functions.txt lists those that are longer; none may grow."""
    return ratchet(tree, "long_functions.txt", long_functions(tree), FUNCTION_LINES_MAX, "lines")


def large_classes(tree):
    """{"path name": member functions} of every class of the product above the bound."""
    return {
        f"{name} {each}": count
        for name in tree.code_files()
        if name.endswith(".h") and not name.startswith(("tests/", "third_party/"))
        for each, count in class_functions(tree.text(name))
        if count > CLASS_FUNCTIONS_MAX
    }


def classes_are_small(tree):
    """The ratchet: tests/tidy/large_classes.txt lists those that are larger; none may grow."""
    return ratchet(
        tree, "large_classes.txt", large_classes(tree), CLASS_FUNCTIONS_MAX, "member functions"
    )


# The core on pages (docs/decisions/0065).
PAGED_CORE = ("core/books/", "core/decide/", "core/execution/", "core/plan/", "core/schedule/")
PAGED_FILE_MAX = 400


def largest_of_paged_core(tree):
    """The longest file of the core on pages and its lines; its largest class and its functions."""
    names = [name for name in tree.code_files("core") if name.startswith(PAGED_CORE)]
    files = [(len(tree.text(name).splitlines()), name) for name in names]
    classes = [(count, f"{name} {each}") for name in names if name.endswith(".h")
               for each, count in class_functions(tree.text(name))]  # fmt: skip
    return max(files, default=(0, "")), max(classes, default=(0, ""))


def paged_core_stays_small(tree):
    """Here the list of large classes allows none."""
    (lines, file), (functions_of, largest) = largest_of_paged_core(tree)
    found = []
    if lines > PAGED_FILE_MAX:
        found.append(f"{file}: {lines} lines, {PAGED_FILE_MAX} at most")
    if functions_of > CLASS_FUNCTIONS_MAX:
        found.append(f"{largest}: {functions_of} member functions, {CLASS_FUNCTIONS_MAX} at most")
    return found


def words_are_allowed(tree):
    """Habits that hurt a host process, hide a race, or switch a check off."""
    guests = [
        name
        for name in tree.code_files("client", "interceptor")
        if not name.startswith(("client/ctl/", "client/examples/", "client/exporter/"))
    ]
    tests = tree.code_files("tests")
    code = tree.code_files()
    found = lines_matching(
        tree, guests,
        r"(?<![\w.>])(?:std::|::)?_?(?:exit|_Exit|abort|quick_exit|terminate)\(",
        "a guest never ends its host's process: {}",
    )  # fmt: skip
    found += lines_matching(
        tree, guests, r"std::(?:cout|cerr|clog)|\bf?printf\(|\bputs\(",
        "a guest does not print: {}",
    )  # fmt: skip
    # A store may sleep: that is a method.
    sleeps = r"\b(?:sleep_for|sleep_until|usleep\(|nanosleep)|(?<![.\w])sleep\(|\btime\.sleep\("
    found += lines_matching(tree, tests, sleeps, "no sleeps in tests: {}")
    found += lines_matching(tree, code, r"(?<![\w_])assert\(", "RAVEN_CHECK, not {}")
    found += lines_matching(tree, code, r"\bFRIEND_TEST\b", "products know no tests: {}")
    headers = [name for name in code if name.endswith(".h")]
    found += lines_matching(tree, headers, r"\busing namespace\b", "not in a header: {}")
    for name in ours(tree, *CODE, ".py", ".bzl", ".proto", "BUILD"):
        for number, line in enumerate(tree.text(name).splitlines(), 1):
            if re.search(OPEN_END, line):
                found.append(at(name, number, "an open end names its issue, as in (#12)"))
    return found


def no_place_of_one_machine(tree):
    """Nothing here depends on where one person or one server keeps things."""
    found = []
    folders = r"(?<![\w.)}$-])/(?:home|root|work|Users|mnt)/[\w.]"
    hosts = r"\b(?:\d{1,3}\.){3}\d{1,3}\b"
    local = ("127.0.0.1", "0.0.0.0", "255.255.255.255")
    documentation = "192.0.2."  # RFC 5737: no network's
    for name in tree.files:
        if name.startswith(("tests/tidy/", "third_party/bazel/")) or "/corpus/" in name:
            continue
        if name.endswith((".bin", ".png", ".svg")):
            continue
        for number, line in enumerate(tree.text(name).splitlines(), 1):
            hit = re.search(folders, line)
            if hit:
                found.append(at(name, number, f"a path of one machine: {hit.group(0)}"))
            far = re.search(r"://(?!127\.0\.0\.1|192\.0\.2\.)", line)
            if name.startswith((".ci/", "deploy/", "third_party/")) and far:
                found.append(at(name, number, "no host of a registry or a mirror"))
            for host in re.findall(hosts, line):
                known = host in local or host.startswith(documentation)
                if not known and name.endswith((*CODE, ".py", ".sh", ".toml")):
                    found.append(at(name, number, f"an address of one network: {host}"))
    return found


def headers_say_what_they_are(tree):
    """Every header opens with a comment, guards itself, and the public ones keep their contract."""
    found = []
    for name in tree.code_files(*FLOORS):
        if not name.endswith(".h"):
            continue
        text = tree.text(name)
        if not text.startswith(("//", "/*")):
            found.append(at(name, 1, "opens with no comment that says what it is for"))
        if not re.search(r"^#pragma once$|^#ifndef \w+_H_$", text, re.M):
            found.append(at(name, 1, "has no #pragma once"))
        for word in CONTRACTS.get(name, ()):
            comments = comment_text(text)
            if not re.search(word, comments):
                found.append(at(name, 1, f"its contract does not speak of {word}"))
    return found


CONSTANT = re.compile(r"\bconstexpr\s+[\w:]+\s+(k[A-Z]\w*)\s*[={][^;]*\d")
TABLE = "core/tuned.def"
TUNED = re.compile(r'^TUNED\([^,]+, (k\w+), [^"]*"(\d{4})"\)$', re.M)
FIXED = re.compile(r"^FIXED\(\w+,([^)]*)\)$", re.M)
TUNED_MAX = 20


def constants_are_tuned_or_fixed(tree):
    """Every number of core that has a name stands in the table of what is tuned, with its source,
    or is named there as one that is not."""
    text = tree.text(TABLE) if TABLE in tree.files_set else ""
    tuned = dict(TUNED.findall(text))
    fixed = {name for names in FIXED.findall(text) for name in re.findall(r"k\w+", names)}
    defined, used = {}, set()
    for name in tree.code_files("core"):
        used.update(re.findall(r"\bk[A-Z]\w*", tree.code(name)))
        for match in CONSTANT.finditer(tree.code(name)):
            line = tree.code(name).count("\n", 0, match.start()) + 1
            defined.setdefault(match.group(1), at(name, line, match.group(1)))
    for name in tree.code_files("sim"):  # which has rules of the plan on pages
        used.update(re.findall(r"\bk[A-Z]\w*", tree.code(name)))
    found = [
        f"{where} is neither TUNED nor FIXED in {TABLE}"
        for name, where in sorted(defined.items())
        if name not in fixed
    ]
    found += [f"{TABLE}: nothing is called {name}" for name in sorted(fixed - defined.keys())]
    found += [f"{TABLE}: nobody uses {name}" for name in sorted(tuned.keys() - used)]
    decisions = {name.split("/")[-1][:4] for name in tree.files if "docs/decisions/" in name}
    found += [
        f"{TABLE}: {name} has no decision {source}"
        for name, source in sorted(tuned.items())
        if source not in decisions
    ]
    lines = text.count("\nTUNED(")
    if lines != len(tuned):
        found.append(f"{TABLE}: {lines} constants, {len(tuned)} as they should be written")
    if lines > TUNED_MAX:
        found.append(f"{TABLE}: {lines} constants, {TUNED_MAX} at most")
    return found


# A test that waits, or looks at the clock.
TIMED = {
    CODE: r"\b(?:Eventually|EventuallyWith|TimeLimit|Stretched)\b|\bipc::Now\(\)|_clock::now\(\)",
    (".py",): r"\b(?:eventually|TimeLimit|stretch)\("
    r"|\btime\.(?:monotonic|perf_counter|sleep|time)\(",
}
# A limit of its own, which a busy machine reaches.
OWN_LIMITS = {
    CODE: r"(?:\bif \(|\|\| )[^;\n]*(?:ipc::Now|_clock::now)\(\) >=? "
    r"|&& (?:ipc::Now|\S*_clock::now)\(\) < "
    r"|(?:EXPECT_L[TE]|ASSERT_L[TE]|RAVEN_CHECK)\((?:ipc::Now|\S*_clock::now)\(\)(?: -|,| <)",
    (".py",): r"\btime\.(?:sleep\(|\w+\(\) >=? )|assertLess(?:Equal)?\(time\.monotonic\(",
}
# Tests of pure code may measure its time; they bound no wait by it.
UNTIMED = ("tests/core/", "tests/sim/")
# The helper itself, the planted breaches, and programs that last for a while.
OF_THEIR_OWN = ("tests/timing/", "tests/tidy/", "tests/hostile/")
TEST_RULES = ("cc_test", "sh_test", "python_test", "full_cc_test", "full_sh_test")


def sources_of_test(tree, target):
    """Of a test in Python, which a wrapper may start, its script."""
    names = target.strings("srcs", "script") + [target.name + ".py"]
    paths = [f"{target.package}/{name}" for name in names]
    return [path for path in paths if path in tree.files]


def tests_that_wait_are_tagged(tree):
    """deploy/test --flaky runs the tests that are tagged "timing", and only those, many times."""
    found = []
    for target in tree.targets:
        place = f"{target.package}/"
        if not place.startswith("tests/") or place.startswith(UNTIMED):
            continue
        if target.rule not in TEST_RULES:
            continue
        waits = any(
            name.endswith(endings) and re.search(pattern, tree.code(name))
            for name in sources_of_test(tree, target)
            for endings, pattern in TIMED.items()
        )
        tagged = "timing" in target.strings("tags")
        where = at(f"{target.package}/BUILD", 1, target.name)
        if waits and not tagged:
            found.append(f'{where} waits or looks at the clock, but has no tag "timing"')
        if tagged and not waits:
            found.append(f'{where} has the tag "timing", but neither waits nor looks at the clock')
    return found


SLOW = "tests/slow_tests.txt"
SLOW_MAX = 10


def slow_tests_are_few(tree):
    """At most ten tests of deploy/test may take more than 10 s; the list says why each does."""
    lines = table(tree, SLOW)
    labels = {target.label for target in tree.targets if target.rule in TEST_RULES}
    found = []
    if len(lines) > SLOW_MAX:
        found.append(f"{SLOW}: {len(lines)} tests, {SLOW_MAX} at most")
    for line in lines:
        label, _, reason = line.partition(" ")
        if label not in labels:
            found.append(f"{SLOW}: there is no test {label}")
        if not reason.strip():
            found.append(f"{SLOW}: {label} has no reason")
    return found


def limits_know_the_load(tree):
    """A test waits by tests/timing, whose limits are longer on a busy machine."""
    found = []
    for endings, pattern in OWN_LIMITS.items():
        names = [n for n in ours(tree, *endings) if n.startswith("tests/")]
        names = [n for n in names if not n.startswith((*UNTIMED, *OF_THEIR_OWN))]
        found += lines_matching(tree, names, pattern, "a limit of its own, not tests/timing's: {}")
    return found


RULES = [
    floors_include_downwards,
    core_is_pure,
    one_thread_needs_no_locks,
    cuda_stays_in_its_files,
    boost_stays_in_ipc,
    protobuf_stays_inside,
    public_headers_stand_alone,
    torch_stays_in_its_targets,
    torch_never_meets_protobuf,
    visibility_names_floors,
    every_source_is_built,
    sources_have_mirrored_tests,
    lines_are_short,
    functions_are_short,
    classes_are_small,
    paged_core_stays_small,
    constants_are_tuned_or_fixed,
    words_are_allowed,
    slow_tests_are_few,
    tests_that_wait_are_tagged,
    limits_know_the_load,
    no_place_of_one_machine,
    headers_say_what_they_are,
    *pages.RULES,
]
