import re
from pathlib import Path

import pytest
import simulated

from stator.observe import report, trace
from stator.observe.markup import Budget, tag


def session_of(tmp_path, name="trace", **options):
    trace.set_trace(tmp_path / name)
    simulated.emit_gpt(**options)
    trace.set_trace(None)
    return report.load(tmp_path / name)


@pytest.fixture
def page(tmp_path):
    return report.write(tmp_path / "report.html", session_of(tmp_path, error=True))


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """A model with 30 breaks and 10 recompiles, 450 operators a graph."""
    tmp_path = tmp_path_factory.mktemp("large")
    return report.write(tmp_path / "large.html", session_of(tmp_path, breaks=30, recompiles=10, depth=15))


@pytest.fixture
def ranks(tmp_path, monkeypatch):
    for rank, recompiles in enumerate((1, 3, 1)):
        monkeypatch.setenv("RANK", str(rank))
        trace.set_trace(tmp_path / "ranks")
        simulated.emit_gpt(breaks=2, recompiles=recompiles)
        trace.set_trace(None)
    return report.write(tmp_path / "ranks.html", report.load(tmp_path / "ranks"))


def sections(text):
    """Section id -> its text without markup."""
    found = {}
    for key, body in re.findall(r'<section id="([^"]+)">(.*?)</section>', text, re.DOTALL):
        found[key] = re.sub(r"<[^>]+>", " ", body)
    return found


def test_it_stands_alone(page):
    text = page.read_text()
    assert not re.findall(r"""(?:src|href)=["'](?!#)[^"']+|url\(|@import|https?://""", text)
    assert "{{" not in text and 'name="viewport"' in text and "@media print" in text


def test_the_parts(page):
    parts = sections(page.read_text())
    assert list(parts) == ["first", "timeline", "breaks", "recompiles", "kernels", "regions", "rest"]
    assert "error" in parts["first"] and "recompile_number" in parts["first"]
    for stage in ("capture", "aot", "lower", "emit"):
        assert stage in parts["timeline"]
    assert "compiling 22 ms" in parts["breaks"] and "call stack" in parts["breaks"]
    costs = [
        float(value)
        for value in re.findall(r"(\d+) ms\s+\d+ runs|(?<=\s)(\d+) ms\s+1 runs", parts["breaks"])
        for value in value
        if value
    ]
    assert costs == sorted(costs, reverse=True)
    assert (
        re.search(r"temperature\s+1\.0\s+→\s+0\.7", parts["recompiles"])
        and "mark_dynamic(tokens, 1)" in parts["recompiles"]
    )
    assert (
        "fused_gelu_0" in parts["kernels"]
        and "16.0 KiB" in parts["kernels"]
        and "not fused: softmax" in parts["kernels"]
    )
    assert "27 guards" in parts["regions"] and "self.blocks[7].heads == 4" in parts["regions"]
    assert "lowering_failed" in parts["rest"]


def test_links_lead_somewhere(page):
    text = page.read_text()
    ids = set(re.findall(r'id="([^"]+)"', text))
    assert {href for href in re.findall(r'href="#([^"]+)"', text)} <= ids
    assert len(ids) == len(re.findall(r'id="([^"]+)"', text))


def test_a_clean_run_has_a_short_report(tmp_path):
    trace.set_trace(tmp_path)
    simulated.emit_entry(0, 0, "f", simulated.line_of(simulated.Block.forward, "hidden"), "first_call")
    trace.set_trace(None)
    parts = sections(report.render(report.load(tmp_path)))
    assert "breaks" not in parts and "recompiles" not in parts
    assert "not fused" in parts["first"]


def test_user_text_is_escaped(tmp_path):
    from stator import events

    trace.set_trace(tmp_path)
    with events.compiling(events.CompileId(0, 0)):
        events.emit("compile_start", name="<script>alert(1)</script>", file="a<b>.py", line=1, cause="first_call")
        events.emit("residual", text="</pre><script>alert(2)</script>")
        events.emit("compile_end", ok=False, seconds=0.1, stages={}, graphs=0, ops=0, guards=0, error="<b>bold</b>")
    trace.set_trace(None)
    text = report.render(report.load(tmp_path))
    assert text.count("<script>") == 1 and "<b>bold" not in text
    assert tag("a", "<", href='"x"') == '<a href="&quot;x&quot;">&lt;</a>'


def test_ranks_stand_side_by_side_and_divergence_is_marked(ranks):
    text = ranks.read_text()
    parts = sections(text)
    assert "rank 0" in parts["ranks"] and "rank 2" in parts["ranks"] and "1 of 3 regions diverge" in parts["ranks"]
    assert text.count('class="item differs"') == 1
    assert "rank 2 compiled the same as rank 0." in text
    assert len(re.findall(r'<section id="p1', text)) >= 5 and 'id="p2' not in text


def test_a_large_model_stays_small(large):
    assert large.stat().st_size < 3_000_000


def test_what_does_not_fit_is_said():
    budget = Budget(100)
    assert budget.take("x" * 90, "a") == ("x" * 90, "")
    shown, note = budget.take("y" * 90, "b")
    assert not shown and "Left out" in note and budget.left_out == 1


def test_what_is_no_trace_is_an_error_that_says_so(tmp_path):
    with pytest.raises(FileNotFoundError, match="no trace there"):
        report.load(tmp_path / "nothing")
    with pytest.raises(FileNotFoundError, match="STATOR_TRACE"):
        report.load(tmp_path)


def test_a_report_made_elsewhere_still_has_the_users_lines(tmp_path, monkeypatch):
    from stator.observe import records

    (directory,) = [tmp_path / "trace"]
    session_of(tmp_path)
    for path in directory.iterdir():
        path.write_text(path.read_text().replace(simulated.FILE, "/elsewhere/model.py"))
    monkeypatch.setattr(records, "_remembered_lines", {})
    assert "return self.head(x) / temperature" in sections(report.render(report.load(directory)))["recompiles"]


# -- in a real browser


def probe(page, expression):
    """A copy of the page that writes a value into its root element."""
    copy = Path(str(page) + ".probe.html")
    script = f"<script>document.documentElement.dataset.probe = JSON.stringify({expression})</script></body>"
    copy.write_text(page.read_text().replace("</body>", script))
    return copy


def probed(dom):
    import html
    import json

    return json.loads(html.unescape(re.search(r'data-probe="([^"]*)"', dom)[1]))


def test_a_large_report_opens_in_under_a_second(large, chromium):
    times = [int(re.search(r'data-ready="(\d+)"', chromium(large, "--dump-dom"))[1]) for _ in range(3)]
    assert min(times) < 1000, times


@pytest.mark.parametrize("width", [400, 800, 1300])
def test_it_fits_the_screen(page, ranks, chromium, width):
    for document in (page, ranks):
        expression = "[document.documentElement.scrollWidth, innerWidth]"
        needed, available = probed(chromium(probe(document, expression), "--dump-dom", f"--window-size={width},900"))
        assert needed <= available


def test_search(page, chromium):
    dom = chromium(page, "--dump-dom", query="?search=temperature%20recompile_number")
    assert re.search(r'id="found"[^>]*>\d+ of \d+<', dom)
    visible = probed(
        chromium(
            probe(page, "Array.from(document.querySelectorAll('.item:not(.hidden)')).map(item => item.textContent)"),
            "--dump-dom",
            query="?search=temperature%20recompile_number",
        )
    )
    assert visible and all("temperature" in text for text in visible)


def test_a_link_opens_what_it_leads_to(page, chromium):
    expression = "Array.from(document.querySelectorAll('details[open]')).map(part => part.id)"
    assert "e0-1" in probed(chromium(probe(page, expression), "--dump-dom", query="#e0-1"))


def test_dark_and_print(page, chromium, tmp_path):
    expression = "getComputedStyle(document.body).backgroundColor"
    light = probed(chromium(probe(page, expression), "--dump-dom"))
    dark = probed(chromium(probe(page, expression), "--dump-dom", "--blink-settings=preferredColorScheme=0"))
    assert light != dark
    chromium(page, f"--print-to-pdf={tmp_path / 'report.pdf'}")
    data = (tmp_path / "report.pdf").read_bytes()
    assert data.startswith(b"%PDF") and len(re.findall(rb"/Type\s*/Page\b", data)) >= 2


def test_no_script_error(page, chromium):
    script = "<head><script>addEventListener('error', e => document.documentElement.dataset.error = e.message)</script>"
    copy = Path(str(page) + ".errors.html")
    copy.write_text(page.read_text().replace("<head>", script))
    dom = chromium(copy, "--dump-dom", query="?search=gelu#e0-0")
    assert "data-error" not in dom and "data-ready" in dom
