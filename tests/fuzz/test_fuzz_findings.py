import json
from pathlib import Path

import fuzz_all
import pytest

CASES = [json.loads(line) for line in Path(__file__).with_name("findings.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    "name, case",
    [
        pytest.param(name, case, marks=fuzz_all.marks_of(name), id=f"{name}-{i}")
        for i, (name, case) in enumerate(CASES)
    ],
)
def test_finding(name, case):
    with fuzz_all.limited_memory():
        fuzz_all.TARGETS[name].run(case)
