import numpy as np
import pytest

from tfxc.samplers import DNS, MIDX, InBatch, LogUniform, Mixture, Uniform, Unigram
from tfxc.samplers.has_index import has_index

INDEXED = {
    "midx": lambda: MIDX(2),
    "counting": lambda: Unigram(2),
    "mixed": lambda: Mixture([Uniform(2), Mixture([InBatch(), MIDX(2)])]),
}
UNINDEXED = {
    "uniform": lambda: Uniform(2),
    "given counts": lambda: Unigram(2, counts=np.ones(5)),
    "batch": lambda: InBatch(),
    "scored": lambda: DNS(2, num_candidates=4),
    "mixed, without": lambda: Mixture([Uniform(2), LogUniform(2)]),
}


@pytest.mark.parametrize("name", [*INDEXED, *UNINDEXED])
def test_a_sampler_has_an_index_if_a_refresh_changes_a_part_of_it(name):
    assert has_index({**INDEXED, **UNINDEXED}[name]()) == (name in INDEXED)
