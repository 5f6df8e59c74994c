import importlib
import sys
from pathlib import Path

import pytest
from fuzz_targets import CALLS, TARGETS, limited_memory  # noqa: F401

HERE = Path(__file__).resolve().parent
sys.path += [str(HERE.parent / "ops"), str(HERE.parent)]  # references that the tests of ops share
for path in sorted(HERE.glob("fuzz_*.py")):
    importlib.import_module(path.stem)


def marks_of(name):
    return () if name in ("readers", "odd_files", "hard_negative_files") else pytest.mark.kernels
