"""A source tree as the tidy rules see it: files, includes, functions and BUILD targets."""

import ast
import fnmatch
import functools
import pathlib
import re
import subprocess

CODE = (".cc", ".h", ".cu")


def folder(name):
    return name.split("/")[0]


def at(name, line, words):
    return f"{name}:{line}: {words}"


def comment_text(text, python=False):
    """The comments of C++, or the comments and docstrings of Python."""
    pattern = r'#[^\n]*|""".*?"""' if python else r"//[^\n]*|/\*.*?\*/"
    return "\n".join(re.findall(pattern, text, re.DOTALL))


def strip_comments(text):
    """C++ without comments and without the insides of literals; lines keep their numbers."""
    pattern = re.compile(
        r'R"(?P<raw>[^()\s\\]*)\(.*?\)(?P=raw)"|//[^\n]*|/\*.*?\*/'
        r'|"(?:\\.|[^"\\\n])*"|(?<![0-9a-fA-F])\'(?:\\.|[^\'\\\n])+\'',
        re.DOTALL,
    )

    def blank(match):
        text = match.group(0)
        kept = "\n" * text.count("\n")
        if text.startswith("/"):
            return " " + kept
        return text[0].replace("R", '"') + kept + ('"' if text[-1] == '"' else "'")

    return pattern.sub(blank, text)


def functions(text):
    """Yields (name, first line, line count) of every C++ function body that clang-format laid out.

    The brace distinguishes them: a body's stands after a space, an initialiser's after a name.
    """
    code = strip_comments(text)
    # Macros are no functions; their lines stay.
    macros = re.compile(r"^[ \t]*#.*(?:\\\n.*)*", re.M)
    code = macros.sub(lambda m: "\n" * m.group(0).count("\n"), code)
    head_start, depth, body_depth, begin = 0, 0, None, None
    for position, letter in enumerate(code):
        if letter == "{":
            head = code[head_start:position]
            depth += 1
            if body_depth is None and opens_function(head):
                body_depth = depth
                begin = head_start + len(head) - len(head.lstrip())
                name = function_name(head)
            if not re.search(r"[\w>]$|[=,(]\s*$", head):  # not an initialiser
                head_start = position + 1
        elif letter == "}":
            if body_depth == depth:
                first = code.count("\n", 0, begin) + 1
                yield name, first, code.count("\n", begin, position) + 1
                body_depth = None
            depth -= 1
            if body_depth is None and not re.match(r"\s*[,{)]", code[position + 1 : position + 3]):
                head_start = position + 1
        elif letter == ";" and body_depth is None:
            head_start = position + 1


def class_functions(text):
    """Yields (class, its member functions) of every class and struct with a body in a header."""
    code = strip_comments(text)
    for match in re.finditer(r"\b(?:class|struct)\s+(?:\w+\s*::\s*)*(\w+)[^;{()]*\{", code):
        depth, body = 1, ""
        for letter in code[match.end() :]:
            depth += {"{": 1, "}": -1}.get(letter, 0)
            if depth == 0:
                break
            body += letter if depth == 1 or letter == "{" and depth == 2 else ""
            body += ";" if letter == "}" and depth == 1 else ""
        parts = re.sub(r"\b(public|private|protected)\s*:", "", body).split(";")
        no_member = r"\s*(using|friend|typedef|static_assert|struct|class|enum)\b|[^(]*[={]|[^(]*$"
        yield match.group(1), sum(not re.match(no_member, part) for part in parts)


def opens_function(head):
    head = re.sub(r"^\s*(public|private|protected)\s*:", "", head.strip())
    if not re.search(r"\)[\w\s:&<>,.*\[\](){}\-+=\"']*$", head):
        return False
    if re.match(r"(namespace|class|struct|enum|union|extern\s*\"|typedef)\b", head):
        return False
    if head.endswith(("=", ",", "(", "return")):
        return False
    # An initialiser list's brace stands right behind a name.
    return not re.search(r"[\w>]$", head) or bool(
        re.search(r"\b(const|noexcept|override|final|try|mutable)$|->\s*[\w:<>,\s*&]+$", head)
    )


def function_name(head):
    found = re.search(r"((?:[\w:~]+::)?operator[^\s(]+|[~\w:]+)\s*\(", head)
    return found.group(1) if found else "?"


class Target:
    """One call in a BUILD file, with its package and its string lists resolved to labels."""

    def __init__(self, package, rule, arguments):
        self.package = package
        self.rule = rule
        self.name = arguments.get("name", "")
        self.arguments = arguments
        self.label = f"//{package}:{self.name}"

    def strings(self, *keys):
        found = []
        for key in keys:
            value = self.arguments.get(key, [])
            values = [value] if isinstance(value, str) else list(value or [])
            found += [item for item in values if isinstance(item, str)]
        return found

    def labels(self, *keys):
        return [absolute(self.package, item) for item in self.strings(*keys)]


def absolute(package, label):
    if label.startswith("@") and "//" not in label:
        return f"{label}//:{label[1:]}"
    if label.startswith("//") and ":" not in label:
        return f"{label}:{label.rsplit('/', 1)[-1]}"
    if label.startswith(("@", "//")):
        return label
    return f"//{package}:{label.removeprefix(':')}"


class Anything(list):
    """Stands for what a .bzl file defines: adds to lists, is callable, is true."""

    def __call__(self, *_, **__):
        return Anything()

    def __bool__(self):
        return True

    def __mod__(self, _):
        return ""


class Tree:
    """The files of a checkout. `root` may also be a folder that a test made."""

    def __init__(self, root):
        self.root = pathlib.Path(root)

    @functools.cached_property
    def files(self):
        """Paths of tracked and new files, relative and sorted; without those that git ignores."""
        git = subprocess.run(
            ["git", "ls-files", "-co", "--exclude-standard", "-z"],
            cwd=self.root, capture_output=True, text=True,
        )  # fmt: skip
        if git.returncode == 0 and (self.root / ".git").exists():
            names = git.stdout.split("\0")
        else:
            skip = re.compile(r"^(\.git|bazel-[^/]*)/|__pycache__")
            found = (p.relative_to(self.root).as_posix() for p in self.root.rglob("*"))
            names = [name for name in found if not skip.search(name)]
        return sorted(n for n in set(names) if n and (self.root / n).is_file())

    @functools.cache
    def text(self, name):
        return (self.root / name).read_text(encoding="utf-8", errors="replace")

    @functools.cache
    def code(self, name):
        return strip_comments(self.text(name))

    def code_files(self, *folders):
        """C++ files, of these top folders if any are named."""
        return [
            name
            for name in self.files
            if name.endswith(CODE) and (not folders or name.split("/")[0] in folders)
        ]

    @functools.cache
    def includes(self, name):
        """[(line number, header)] with the form lost."""
        pattern = re.compile(r'^[ \t]*#[ \t]*include[ \t]*[<"]([^>"]+)[>"]', re.M)
        text = self.text(name)
        return [(text.count("\n", 0, m.start()) + 1, m.group(1)) for m in pattern.finditer(text)]

    @functools.cache
    def reach(self, name):
        """Every header that `name` includes, through this tree's own headers as well."""
        seen, todo = set(), [name]
        while todo:
            for _, header in self.includes(todo.pop()):
                if header not in seen:
                    seen.add(header)
                    if header in self.files_set:
                        todo.append(header)
        return seen

    @functools.cached_property
    def files_set(self):
        return set(self.files)

    @functools.cached_property
    def folders(self):
        return {str(parent) for name in self.files for parent in pathlib.PurePath(name).parents}

    def has(self, pattern):
        """Whether a file or a folder has this path; it may hold a *."""
        if pattern in self.files_set or pattern in self.folders:
            return True
        return "*" in pattern and bool(fnmatch.filter(self.files, pattern))

    @functools.cached_property
    def targets(self):
        """Every rule call of every BUILD file. A BUILD file is Python enough to be run as such."""
        found = []
        for name in self.files:
            if name.split("/")[-1] == "BUILD" and not name.startswith("third_party/"):
                found += self.evaluate(name)
        return found

    def evaluate(self, name):
        package = name.rpartition("/")[0]
        folder = self.root / package
        found = []

        def rule(kind):
            return lambda *_, **kw: found.append(Target(package, kind, kw))

        def glob(include, exclude=(), **_):
            files = [p.relative_to(folder).as_posix() for i in include for p in folder.glob(i)]
            gone = {p.relative_to(folder).as_posix() for e in exclude for p in folder.glob(e)}
            return sorted(set(files) - gone)

        def select(branches):
            return [item for branch in branches.values() for item in branch]

        parsed = ast.parse(self.text(name), name)
        calls = [node.func for node in ast.walk(parsed) if isinstance(node, ast.Call)]
        called = {node.id for node in calls if isinstance(node, ast.Name)}
        used = {node.id for node in ast.walk(parsed) if isinstance(node, ast.Name)}
        scope = {word: Anything() for word in used} | {word: rule(word) for word in called}
        scope |= {"glob": glob, "select": select, "load": lambda *_, **__: None}
        scope |= {"len": len, "range": range, "dict": dict}
        exec(compile(parsed, name, "exec"), scope)
        return found
