import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from stator import config
from stator.observe import logs, trace

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def _quiet():
    """Observers fail loudly in tests, and none is left on."""
    with config.patch(strict=True):
        yield
    logs.set_logs()
    trace.set_trace(None)


CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.fixture
def chromium(tmp_path):
    """Runs headless Chromium on a page and returns what it prints."""
    if CHROMIUM is None:
        pytest.skip("no chromium on this machine (apt-get install chromium)")

    def run(page, *arguments, query=""):
        command = [
            CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
            "--disable-background-networking", "--disable-component-update", "--disable-sync",
            f"--user-data-dir={tmp_path / 'profile'}", *arguments, f"file://{page}{query}",
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run
