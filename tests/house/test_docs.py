"""Every page of documentation runs: its Python blocks, top to bottom, in one namespace and a process of its own."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SECONDS = 150


def program_of(page):
    """The page's blocks as one program whose lines have the numbers they have in the page."""
    text = page.read_text()
    lines = [""] * text.count("\n")
    for block in BLOCK.finditer(text):
        first = text.count("\n", 0, block.start(1))
        code = block.group(1).splitlines()
        lines[first : first + len(code)] = code
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_page_runs(page, tmp_path):
    program = program_of(page)
    if not program.strip():
        pytest.skip("no Python on this page")
    script = tmp_path / f"page_{page.stem.replace('-', '_')}.py"
    script.write_text(program)
    paths = os.pathsep.join(filter(None, (str(ROOT / "docs"), os.environ.get("PYTHONPATH"))))  # as if started there
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "STATOR_CACHE_DIR": str(tmp_path / "cache"),
        "PYTHONPATH": paths,
    }
    done = subprocess.run(
        [sys.executable, script], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=SECONDS
    )
    assert done.returncode == 0, f"{page.name}:\n{done.stderr[-3000:]}"


def test_blocks_are_found_with_their_lines(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# Title\n\n```python\na = 1\n```\n\n```text\nnot this\n```\n\n```python\nb = a\n```\n")
    assert program_of(page).splitlines() == ["", "", "", "a = 1", *[""] * 7, "b = a", ""]


def test_the_page_of_reasons_is_current():
    done = subprocess.run([sys.executable, ROOT / "tools" / "reasons_page.py", "--check"], timeout=60)
    assert done.returncode == 0, "run `make reasons-page`"
