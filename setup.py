"""Compiles custom_ops/ into the package; everything else about it is in pyproject.toml."""

import os
import shutil
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

ROOT = Path(__file__).resolve().parent
SKIPS_OPS = os.environ.get("TFXC_SKIP_OPS") == "1"
sys.path.insert(0, str(ROOT))  # a build front end does not run here

from custom_ops import build  # noqa: E402


class BuildOps(build_ext):
    """Builds one TensorFlow op library, which is no Python extension module.

    A machine without a compiler gets the package without it (tfxc then runs its
    TensorFlow reference path) and one warning. A compiler that fails stops the
    installation with its own message, unless ``TFXC_SKIP_OPS=1`` says to go on without: such a wheel is one
    for every system.
    ``TFXC_PREBUILT_OPS=folder`` packs libraries that were compiled before (custom_ops/build_wheel.py).
    """

    def run(self):
        library = (ROOT if self.inplace else Path(self.build_lib)) / "tfxc" / "ops" / "_tfxc_ops.so"
        if prebuilt := os.environ.get("TFXC_PREBUILT_OPS"):
            shutil.copytree(prebuilt, library.parent, dirs_exist_ok=True)
            return
        if SKIPS_OPS:
            for left in library.parent.rglob(
                "_tfxc_ops.*"
            ):  # an earlier build's would not match these sources
                left.unlink()
            return
        try:
            build.build(library)
        except build.CompilerNotFoundError as error:
            library.unlink(missing_ok=True)
            warn(f"tfxc is installed without its compiled ops, so training is slower. {error}")
        except build.CompileError as error:
            raise CompileError(
                f"{error}\nTo install tfxc without its compiled ops set TFXC_SKIP_OPS=1."
            ) from error

    def get_outputs(self):
        return []

    def get_output_mapping(self):
        return {}


class Python3Wheel(bdist_wheel):
    """A wheel for every Python 3 of one platform: the op library calls TensorFlow, never Python.

    Without a library it is for any platform.
    """

    def get_tag(self):
        return "py3", "none", "any" if SKIPS_OPS else super().get_tag()[2]


def warn(message):
    """pip hides what a successful build prints, so a terminal is told directly."""
    text = f"\nWARNING: {message}\n"
    try:
        with open("/dev/tty", "w") as terminal:
            terminal.write(text)
    except OSError:
        sys.stderr.write(text)


COMMANDS = {"build_ext": BuildOps, "bdist_wheel": Python3Wheel}
# The extension has no sources: it marks the wheel as bound to a platform.
setup(ext_modules=[Extension("tfxc.ops._tfxc_ops", sources=[])], cmdclass=COMMANDS)
