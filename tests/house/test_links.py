"""Pages lead somewhere: links and pictures exist, every page is in the index, every room in the layout."""

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
TARGET = re.compile(r"`make ([a-z0-9-]+)`")


def headings(page):
    """The anchors of a page, as GitHub makes them."""
    lines = re.findall(r"^#+ (.*)$", CODE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", line.lower()).replace(" ", "-") for line in lines}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_resolve(page):
    for link in LINK.findall(CODE.sub("", page.read_text())):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), link
        assert target.is_relative_to(ROOT), link
        assert not anchor or anchor in headings(target), link


def test_every_page_is_in_the_index():
    linked = set(LINK.findall((DOCS / "index.md").read_text()))
    assert {page.name for page in DOCS.glob("*.md")} - {"index.md"} <= linked


def test_every_room_is_in_the_layout():
    text = (DOCS / "layout.md").read_text()
    rooms = {path.parent.name for path in (ROOT / "src" / "stator").glob("*/__init__.py")}
    rooms |= {f"emit/{path.parent.name}" for path in (ROOT / "src" / "stator" / "emit").glob("*/__init__.py")}
    assert {room for room in rooms if f"`{room}/`" not in text} == set()
    named = set(re.findall(r"`([a-z_/]+)/`", text)) | set(re.findall(r"`([a-z_]+\.py)`", text))
    files = {path.name for path in (ROOT / "src" / "stator").rglob("*.py")} | {"check_imports.py"}
    tops = [path for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith(".")]
    folders = [str(path.relative_to(ROOT)) for top in tops for path in (top, *top.rglob("*")) if path.is_dir()]
    assert {name for name in named if name not in files and not any(one.endswith(name) for one in folders)} == set()


def test_make_targets_that_pages_name_exist():
    makefiles = [ROOT / "Makefile", *(ROOT / "make").glob("*.mk")]
    targets = {name for file in makefiles for name in re.findall(r"^([a-z0-9-]+):", file.read_text(), re.MULTILINE)}
    assert {name for page in PAGES for name in TARGET.findall(page.read_text())} <= targets
