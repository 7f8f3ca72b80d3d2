"""What holds for every test: no persistent state of one test, or of the user, reaches another."""

import os
import tempfile

# Compiled code and profiles go to a folder of this run, so that no test sees what an earlier run left.
if "STATOR_CACHE_DIR" not in os.environ:
    _folder = tempfile.TemporaryDirectory(prefix="stator-tests-")
    os.environ["STATOR_CACHE_DIR"] = _folder.name
# What turned dynamic in one test must not decide how another starts; the profile's own tests turn it on.
os.environ.setdefault("STATOR_DYNAMIC_PROFILE", "0")
