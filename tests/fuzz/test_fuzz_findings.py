"""Every case that was ever found to crash, to hang or to differ, once more."""

import json
from pathlib import Path

import fuzz_all
import pytest

from tfxc.ops import library

CASES = [json.loads(line) for line in Path(__file__).with_name("findings.jsonl").read_text().splitlines()]
WITHOUT_OPS = ("readers", "hard_negative_files")


@pytest.mark.parametrize("name, case", CASES, ids=[f"{name}-{i}" for i, (name, _) in enumerate(CASES)])
def test_finding(name, case):
    if name not in WITHOUT_OPS and not library.use_compiled():
        pytest.skip("needs the compiled ops")
    with fuzz_all.limited_memory():
        fuzz_all.TARGETS[name].run(case)
