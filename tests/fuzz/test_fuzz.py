"""Random calls of every op and reader, the same in every run; ``make fuzz`` makes others for an hour."""

import re
from pathlib import Path

import fuzz_all
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from tfxc.ops import library

EXAMPLES = {"sparse_head_few_gradients": 100, "readers": 400, "hash_tables_op": 30}
WITHOUT_OPS = ("readers", "hard_negative_files")


@pytest.mark.parametrize("name", fuzz_all.TARGETS)
def test_random_calls(name):
    if name not in WITHOUT_OPS and not library.use_compiled():
        pytest.skip("needs the compiled ops")
    target = fuzz_all.TARGETS[name]

    @settings(
        max_examples=EXAMPLES.get(name, 60),
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


def test_every_op_of_the_library_is_a_target():
    """The names that the targets call hold every op there is."""
    ops = library.load()
    if ops is None:
        pytest.skip("needs the compiled ops")
    here = "".join(path.read_text() for path in Path(__file__).parent.glob("fuzz_*.py"))
    names = [name for name in dir(ops) if name.startswith("tfxc_") and not name.endswith("_eager_fallback")]
    assert len(names) > 10
    for name in names:
        assert re.search(rf"\b{name}\b", here), f"no fuzzer calls {name}"
