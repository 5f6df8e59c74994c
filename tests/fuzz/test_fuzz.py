import json
import re
from pathlib import Path

import fuzz_all
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from long_cases import long_after

from tfxc.ops import library

EXAMPLES = {"sparse_head_few_gradients": 100, "readers": 200, "odd_files": 200, "hash_tables_op": 30}
TARGETS = [pytest.param(name, marks=fuzz_all.marks_of(name)) for name in fuzz_all.TARGETS]
FINDINGS = [json.loads(line) for line in Path(__file__).with_name("findings.jsonl").read_text().splitlines()]


# Arrow prints an error of its own for a row of too many fields that is not UTF-8 either, and then stops.
@pytest.mark.filterwarnings("ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("share", long_after(1, 0.15, 1.0))
def test_random_calls(name, share):
    target = fuzz_all.TARGETS[name]

    @settings(
        max_examples=round(share * EXAMPLES.get(name, 60)),
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(target.strategy)
    def calls(case):
        target.run(case)

    with fuzz_all.limited_memory():
        calls()


@pytest.mark.parametrize(
    "name, case",
    [
        pytest.param(name, case, marks=fuzz_all.marks_of(name), id=f"{name}-{i}")
        for i, (name, case) in enumerate(FINDINGS)
    ],
)
def test_finding(name, case):
    with fuzz_all.limited_memory():
        fuzz_all.TARGETS[name].run(case)


@pytest.mark.kernels
def test_every_op_of_the_library_is_a_target():
    ops = library.load()
    here = "".join(path.read_text() for path in Path(__file__).parent.glob("fuzz_*.py"))
    names = [name for name in dir(ops) if name.startswith("tfxc_") and not name.endswith("_eager_fallback")]
    assert len(names) > 10
    for name in names:
        assert re.search(rf"\b{name}\b", here), f"no fuzzer calls {name}"
