"""Builds the native core; everything else about the package is in pyproject.toml.

Plain C11 and no torch headers: a build takes under a second and one binary serves every supported torch.
`STATOR_SANITIZE=1` builds with the address and undefined-behaviour sanitizers (see `make test-sanitize`).
"""

import os
from glob import glob

from setuptools import Extension, setup

FLAGS = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Wno-unused-parameter", "-Wno-missing-field-initializers"]
if os.environ.get("STATOR_SANITIZE"):
    FLAGS += ["-fsanitize=address,undefined", "-fno-omit-frame-pointer", "-g", "-O1"]


def extension(name: str, folder: str) -> Extension:
    return Extension(
        f"stator._native.{name}",
        sources=sorted(glob(f"src/stator/_native/{folder}/*.c")),
        depends=sorted(glob("src/stator/_native/**/*.h", recursive=True)),
        include_dirs=["src/stator/_native"],
        extra_compile_args=FLAGS,
        extra_link_args=["-fsanitize=address,undefined"] if os.environ.get("STATOR_SANITIZE") else [],
    )


# core: the dispatcher, the guard machine and the tensor reads. program: the runtime of compiled graphs.
EXTENSIONS = [extension(name, name) for name in ("core", "program") if glob(f"src/stator/_native/{name}/*.c")]

setup(ext_modules=EXTENSIONS)
