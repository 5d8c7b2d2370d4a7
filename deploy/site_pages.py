#!/usr/bin/python3
"""Lays out the pages of the site: site_pages.py CHECKOUT FOLDER, which deploy/site calls.

The repository's pages keep their names, so that their links hold. A link to a file that is no page
becomes its name; public headers and the configuration have a page each, with their text.
"""

import ast
import pathlib
import posixpath
import re
import shutil
import sys

# In the tree: in the site.
MOVED = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
# In the tree: its page, its title, its language.
SHOWN = {
    "client/ravenstore.h": ("reference/c.md", "C", "c"),
    "client/client.h": ("reference/cpp.md", "C++", "cpp"),
    "client/torch.h": ("reference/libtorch.md", "libtorch", "cpp"),
    "deploy/ravenstored.toml": ("reference/configuration.md", "Configuration file", "toml"),
}
FOLDERS = {"docs/decisions": "decisions/index.md"}


def place_of(path):
    """Where a file of the tree is in the site; None if it is not there."""
    if path in MOVED:
        return MOVED[path]
    if path in SHOWN:
        return SHOWN[path][0]
    if path in FOLDERS:
        return FOLDERS[path]
    return path.removeprefix("docs/") if path.startswith("docs/") else None


def with_links(root, page, text):
    """The text of a page of the tree with links as they are in the site."""
    here = place_of(page).split("/")[:-1]

    def link(match):
        label, target = match.groups()
        path, mark, anchor = target.partition("#")
        if re.match(r"[a-z]+:", target) or not path:
            return match.group(0)
        source = posixpath.normpath(posixpath.join(posixpath.dirname(page), path))
        place = place_of(source)
        if place is None or (root / source).is_dir() and place not in FOLDERS.values():
            return label if label.startswith("`") else f"{label} (`{source}`)"
        return f"[{label}]({'../' * len(here)}{place}{mark}{anchor})"

    return re.sub(r"(?<!!)\[([^\]]*)\]\(([^)\s]+)\)", link, text)


def put(folder, name, text):
    target = folder / name
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text, encoding="utf-8")


def title_of(text):
    return re.search(r"^# (.*)$", text, re.M).group(1)


def reference(root):
    """The page of the Python package: what ravenstore exports, functions first."""
    tree = ast.parse((root / "python/ravenstore/__init__.py").read_text())
    names = []
    for node in ast.walk(tree):
        targets = getattr(node, "targets", [getattr(node, "target", None)])
        if (
            isinstance(node, ast.Assign | ast.AnnAssign)
            and getattr(targets[0], "id", "") == "__all__"
        ):
            names = ast.literal_eval(node.value)
    public = sorted((n for n in names if not n.startswith("_")), key=lambda n: (not n.islower(), n))
    return "# Python\n\n" + "\n\n".join(f"::: ravenstore.{name}" for name in public) + "\n"


def main():
    root, folder = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    site = folder / "pages"
    pages = [*MOVED, *sorted(str(page.relative_to(root)) for page in root.glob("docs/**/*.md"))]
    for page in pages:
        put(site, place_of(page), with_links(root, page, (root / page).read_text(encoding="utf-8")))
    for picture in root.glob("docs/**/*.svg"):
        shutil.copyfile(picture, site / picture.relative_to(root / "docs"))
    for source, (name, title, language) in SHOWN.items():
        text = (root / source).read_text(encoding="utf-8")
        put(site, name, f"# {title}\n\n`{source}`:\n\n````{language}\n{text}\n````\n")
    rows = [
        f"- [{path.stem[:4]}]({path.name}) {title_of(path.read_text(encoding='utf-8'))}"
        for path in sorted(root.glob("docs/decisions/*.md"))
    ]
    put(
        site,
        "decisions/index.md",
        "# Decisions\n\nThose that still bind.\n\n" + "\n".join(rows) + "\n",
    )
    put(site, "reference/python.md", reference(root))
    settings = (root / "deploy/mkdocs.yml").read_text(encoding="utf-8")
    paths = f"          paths: [{root / 'python'}]\n"
    put(
        folder,
        "mkdocs.yml",
        settings.replace("          options:\n", paths + "          options:\n"),
    )


if __name__ == "__main__":
    main()
