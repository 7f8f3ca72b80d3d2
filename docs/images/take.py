"""Takes the pictures of `reading-a-report.md` from a real run of the example in that page, with headless Chromium."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
EXAMPLE = HERE.parent.parent / "examples" / "report_example.py"

# Picture -> window size, the one section it shows (empty: all), whether dark.
PICTURES = {
    "report-overview.png": ((1200, 1400), "", False),
    "report-breaks.png": ((1200, 330), "breaks", False),
    "report-entry.png": ((1200, 1100), "regions", False),
    "report-dark.png": ((1200, 900), "", True),
    "report-phone.png": ((420, 900), "", False),
}

# In a picture of one section the rest is hidden, and the first entry, its graph and a kernel are open.
ONE_SECTION = """<style>
h1, h1 + div, .tiles, section:not(#{section}) {{ display: none; }} h2 {{ margin-top: 0; }}
</style>
<script>
for (const part of document.querySelectorAll("#{section} details")) {{
  const title = part.querySelector("summary").textContent;
  part.open = part.querySelector("[id='e0-0']") || part.id === "e0-0" || /captured|by the line|kernel_0/.test(title);
}}
</script></body>"""


def main() -> int:
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        print("no chromium on this machine (apt-get install chromium)", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.html"
        command = [sys.executable, "-m", "stator", "run", "--report", str(report), EXAMPLE.name]
        subprocess.run(command, check=True, cwd=EXAMPLE.parent)
        for name, ((width, height), part, dark) in PICTURES.items():
            page = report
            if part:
                page = Path(scratch) / f"{part}.html"
                text = report.read_text(encoding="utf-8")
                page.write_text(text.replace("</body>", ONE_SECTION.format(section=part)), encoding="utf-8")
            flags = ["--blink-settings=preferredColorScheme=0"] if dark else []
            command = [
                browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
                "--disable-background-networking", "--disable-component-update", "--disable-sync",
                "--hide-scrollbars", f"--user-data-dir={scratch}/profile", f"--window-size={width},{height}",
                f"--screenshot={HERE / name}", *flags, f"file://{page}",
            ]  # fmt: skip
            subprocess.run(command, check=True, capture_output=True, timeout=120)
            print(HERE / name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
