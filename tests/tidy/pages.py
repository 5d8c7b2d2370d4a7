"""Rules of the pages: README, CONTRIBUTING, docs. bench/report prints their counts as figures."""

import posixpath
import re
import tomllib

from tree import at, comment_text, folder

# Records of their time, which keep their words.
PAST = ("docs/decisions/",)
README_LINES_MAX = 150
FIRST_SCREEN_WORDS_MAX = 350
SENTENCE_WORDS_MAX = 30
LONG_SENTENCES_MAX_PERCENT = 2
# Words that grew here, or that are old-fashioned: shared prose says the field's or plain ones.
DIALECT = re.compile(
    r"\b(?:told|tells|lies|beside|besides|anew|in vain|at once|makes? way|lets? go|gives? back"
    r"|nobody|whoever|so many|so much|as far as|foretell|behalf)\b",
    re.IGNORECASE,
)
# The most that there may be. A change that lowers a count lowers its number here.
DIALECT_MAX = {"pages": 0, "comments": 8}
TROUBLES = "docs/troubleshooting.md"


def pages(tree):
    """All of them, those of the past included."""
    return [
        name
        for name in tree.files
        if name in ("README.md", "CONTRIBUTING.md")
        or name.startswith("docs/")
        and name.endswith(".md")
    ]


def present_pages(tree):
    return [name for name in pages(tree) if not name.startswith(PAST)]


def prose_of(text):
    """A page without code, tables, headings and links' targets; a list's items are sentences."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    lines = [
        line if re.match(r"\s*(?:[-*]|\d+\.) ", line) is None else "\n" + line
        for line in text.splitlines()
        if not line.startswith(("|", "#", "!["))
    ]
    text = "\n".join(lines)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    return re.sub(r"`[^`]*`", "code", text)


def sentences(text):
    """A page's, without what its table cells say."""
    for paragraph in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", prose_of(text)):
        yield from filter(None, re.split(r"(?<=[.!?])[\"')*]*\s+|:\s*\n", paragraph.strip()))


def long_sentences(tree, names):
    """(page, sentence) of more than SENTENCE_WORDS_MAX words, and how many sentences there are."""
    found, count = [], 0
    for name in names:
        for sentence in sentences(tree.text(name)):
            count += 1
            if len(re.findall(r"[\w'’-]+", sentence)) > SENTENCE_WORDS_MAX:
                found.append((name, " ".join(sentence.split())))
    return found, count


def dialect(tree):
    """How often words of DIALECT are in pages, and in comments."""
    code = [
        n
        for n in tree.files
        if n.endswith((".cc", ".h", ".cu", ".py")) and folder(n) != "third_party"
    ]
    return {
        "pages": sum(len(DIALECT.findall(prose_of(tree.text(n)))) for n in present_pages(tree)),
        "comments": sum(
            len(DIALECT.findall(comment_text(tree.text(n), n.endswith(".py")))) for n in code
        ),
    }


def dialect_is_not_growing(tree):
    """Pages and comments have no more words of DIALECT than before."""
    return [
        f"{kind}: {count} words of pages.py's DIALECT, {DIALECT_MAX[kind]} at most"
        for kind, count in dialect(tree).items()
        if count > DIALECT_MAX[kind]
    ]


def first_screen_words(text):
    return len(text.split("\n## Install")[0].split())


def readme_is_short(tree):
    """README has at most README_LINES_MAX lines, a short first screen, and no long sentence."""
    if "README.md" not in tree.files_set:
        return []
    text = tree.text("README.md")
    found = []
    if (lines := text.count("\n")) > README_LINES_MAX:
        found.append(f"README.md: {lines} lines, {README_LINES_MAX} at most")
    if (words := first_screen_words(text)) > FIRST_SCREEN_WORDS_MAX:
        found.append(
            f"README.md: {words} words on its first screen, {FIRST_SCREEN_WORDS_MAX} at most"
        )
    long, _ = long_sentences(tree, ["README.md"])
    return found + [f"README.md: a long sentence: {sentence}" for _, sentence in long]


def long_sentences_are_few(tree):
    """At most LONG_SENTENCES_MAX_PERCENT of the pages' sentences are long."""
    long, count = long_sentences(tree, present_pages(tree))
    if len(long) * 100 <= count * LONG_SENTENCES_MAX_PERCENT:
        return []
    words = f"{len(long)} of {count} sentences have over {SENTENCE_WORDS_MAX} words"
    return [words] + [f"{name}: {sentence}" for name, sentence in long]


# What runs pages' examples, and what looks into their commands.
EXAMPLE_TESTS = (
    "bench/doors_wheel.py",
    "tests/client/BUILD",
    "tests/python/docs_test.py",
    "tests/python/huggingface_prepare_test.py",
    "tests/python/huggingface_test.py",
)


def examples_are_run(tree):
    """A page with examples in Python, C or C++ is one that a test runs them of."""
    tests = " ".join(tree.text(name) for name in tree.files_set.intersection(EXAMPLE_TESTS))
    return [
        f"{page}: no test of EXAMPLE_TESTS runs its examples"
        for page in present_pages(tree)
        if re.search(r"^```(?:py|python|c|cpp)$", tree.text(page), re.M)
        and page.rpartition("/")[2] not in tests
    ]


def slug(heading):
    """The anchor of a heading, as GitHub makes it."""
    heading = re.sub(r"\]\([^)]*\)", "", re.sub(r"[`*]", "", heading.strip()))
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def anchors(text):
    text = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    return {slug(heading) for heading in re.findall(r"^#+ (.*)$", text, re.M)}


def links(tree):
    """(page, line, path, anchor) of each link to something in the tree."""
    for page in pages(tree):
        fenced = False
        for number, line in enumerate(tree.text(page).splitlines(), 1):
            fenced ^= line.startswith("```")
            for target in [] if fenced else re.findall(r"\]\(([^)\s]+)\)", line):
                if not re.match(r"[a-z]+:", target):
                    path, _, anchor = target.partition("#")
                    yield page, number, path, anchor


def links_lead_somewhere(tree):
    """A link's file is there, and so is its heading."""
    found = []
    for page, number, path, anchor in links(tree):
        target = posixpath.normpath(posixpath.join(posixpath.dirname(page), path)) if path else page
        if not tree.has(target):
            found.append(at(page, number, f"a link to {path}, which is not there"))
        elif anchor and target in tree.files_set and anchor not in anchors(tree.text(target)):
            found.append(at(page, number, f"a link to {path}#{anchor}: there is no such heading"))
    return found


def troubleshooting_quotes_messages(tree):
    """What the page of troubles has in back-ticks in a first column is in some program's text."""
    if TROUBLES not in tree.files_set:
        return []
    source = "\n".join(
        tree.text(name)
        for name in tree.files
        if name.endswith((".cc", ".h", ".py")) and not name.startswith(("tests/", "docs/"))
    )
    found = []
    for number, line in enumerate(tree.text(TROUBLES).splitlines(), 1):
        cells = line.split("|")
        quoted = re.findall(r"`([^`]+)`", cells[1]) if len(cells) > 3 else []
        found += [at(TROUBLES, number, f"no program says: {q}") for q in quoted if q not in source]
    return found


def pages_name_what_is_there(tree):
    """A path in back-ticks in a page exists. In a table's first column a bare name is in the folder
    of the path before it."""
    tops = {folder(name) for name in tree.files if "/" in name}
    found = []
    for page in pages(tree):
        fenced = False
        for number, line in enumerate(tree.text(page).splitlines(), 1):
            fenced ^= line.startswith("```")
            if fenced:
                continue
            named = [word for code in re.findall(r"`([^`]+)`", line) for word in code.split()]
            paths = [word for word in named if "/" in word and folder(word) in tops]
            paths += bare_names(line.split("|")[1]) if line.startswith("|") else []
            for path in paths:
                path = path.rstrip("/,;:.")
                if not tree.has(path):
                    found.append(at(page, number, f"there is no {path}"))
    return found


def bare_names(cell):
    """The names without a folder in a table's cell, each with that of the path before it."""
    found, place = [], ""
    for code in re.findall(r"`([^`]+)`", cell):
        if "/" in code:
            place = code.rpartition("/")[0]
        elif place and re.fullmatch(r"[\w*]+\.\w+", code):
            found.append(f"{place}/{code}")
    return found


KEYS = "docs/configuration.md"


def documented_defaults_are_right(tree):
    """The page's table of keys says what ravenstored.toml says; words stand for 0, [] and ""."""
    if KEYS not in tree.files_set or "deploy/ravenstored.toml" not in tree.files_set:
        return []
    config = tomllib.loads(tree.text("deploy/ravenstored.toml"))
    found = []
    for number, line in enumerate(tree.text(KEYS).splitlines(), 1):
        cells = [cell.strip() for cell in line.split("|")]
        keys = re.findall(r"`(\w+)\.(\w+)`", cells[1]) if len(cells) > 3 else []
        for section, key in keys:
            if section not in config:
                continue
            value = config[section].get(key)
            said = cells[2].replace(" ", "")
            right = not said[:1].isdigit() if value in (0, [], "") else said == str(value)
            if not right or value is None:
                found.append(at(KEYS, number, f"{section}.{key} is {value}, not {cells[2]}"))
    return found


def every_folder_is_listed(tree):
    """CONTRIBUTING's table of folders leaves none out."""
    folders = {folder(name) for name in tree.files if "/" in name and not name.startswith(".")}
    rows = re.findall(r"^\|([^|]*)\|", tree.text("CONTRIBUTING.md"), re.M)
    listed = {folder(path) for row in rows for path in re.findall(r"`([\w/.]+)`", row)}
    return [f"CONTRIBUTING.md: no row for {name}" for name in sorted(folders - listed)]


RULES = [
    pages_name_what_is_there,
    documented_defaults_are_right,
    every_folder_is_listed,
    readme_is_short,
    examples_are_run,
    long_sentences_are_few,
    links_lead_somewhere,
    troubleshooting_quotes_messages,
    dialect_is_not_growing,
]
