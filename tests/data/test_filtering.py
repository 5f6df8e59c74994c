import numpy as np
import pytest
from refusal_checks import refused

from tfxc.data import Sequences, Vocabulary, k_core


def reference(lists, min_user, min_item):
    lists = dict(enumerate(lists))
    while True:
        counts = {}
        for items in lists.values():
            for item in items:
                counts[item] = counts.get(item, 0) + 1
        rare = [item for item, count in counts.items() if count < min_item]
        short = [u for u, items in lists.items() if len(items) < min_user]
        if short:
            del lists[short[0]]
        elif rare:
            lists = {u: [item for item in items if item != rare[0]] for u, items in lists.items()}
        else:
            return lists


@pytest.mark.parametrize(("min_user", "min_item"), [(1, 1), (3, 2), (2, 5), (4, 4)])
def test_against_a_slow_reference(min_user, min_item):
    rng = np.random.default_rng(min_item)
    lists = [rng.zipf(1.4, rng.integers(1, 9)).clip(max=30).tolist() for _ in range(60)]
    names = [f"user{u}" for u in range(60)]
    core, report = k_core(Sequences.from_lists(lists, user_ids=names), min_user, min_item)
    expected = reference(lists, min_user, min_item)
    assert core.user_ids == [names[u] for u in expected]
    for u, items in enumerate(expected.values()):
        assert core.vocabulary.decode(core[u]) == [str(item) for item in items]
    assert core.counts().min() >= min_item and core.lengths.min() >= min_user
    assert report.num_users_dropped == 60 - len(expected)
    assert report.num_items_dropped == len({i for items in lists for i in items}) - core.num_classes
    assert report.num_interactions_dropped == sum(map(len, lists)) - len(core.items)


def test_cascade_takes_rounds_and_keeps_times():
    # z is rare; without it the second user is short; without that user y is rare; only xx is left.
    sequences = Sequences([0, 0, 1, 1, 2], [0, 3, 5], Vocabulary("xyz"), ["u", "v"], [1, 2, 3, 0, 9])
    core, report = k_core(sequences, min_user=2, min_item=2)
    assert core.vocabulary.names == ["x"] and core.user_ids == ["u"] and core.times.tolist() == [1, 2]
    assert report.num_rounds == 4 and report.num_interactions_dropped == 3


@pytest.mark.parametrize("name", ["min_user", "min_item"])
def test_bad_minimum(name):
    sequences = Sequences.from_lists(["ab"])
    refused("No interaction is left with min_user=5", k_core, sequences)
    for bad in (0, 2.5):
        refused(f"{name} must be an integer of at least 1, but got {bad}", k_core, sequences, **{name: bad})
