import numpy as np
import pytest
from head_checks import queries

from tfxc._keras import keras
from tfxc._keras.weights import tf_variable
from tfxc.layers import MACHHead, merge_mach_heads


def make_head(first=0, dim=4, num_repetitions=2, **options):
    options = {"seed": 5, "decoder": "mean", "bias_initializer": "normal", **options}
    head = MACHHead(30, 7, num_repetitions, first_repetition=first, **options)
    head.build((None, dim))
    return head


def check_mean(merged, heads, query):
    parts = [head(query[:, 4 * i : 4 * i + 4]) for i, head in enumerate(heads)]
    np.testing.assert_allclose(merged(query), np.mean(parts, axis=0), rtol=1e-5)


def test_the_merged_scores_are_the_mean_of_the_parts():
    heads, query = [make_head(first) for first in (0, 2, 4, 6)], queries(3, 16)
    merged = merge_mach_heads([heads[1], heads[3], heads[2], heads[0]])
    assert (merged.first_repetition, merged.num_repetitions, merged.num_groups) == (0, 8, 4)
    check_mean(merged, heads, query)
    np.testing.assert_array_equal(merged.hashes, make_head(num_repetitions=8).hashes)
    again = merge_mach_heads([merge_mach_heads(heads[2:]), merge_mach_heads(heads[:2])])
    check_mean(again, heads, query)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"first": 4}, "Repetition 2 is missing"),
        ({"first": 1}, "Repetition 1 is there twice"),
        ({"first": 2, "seed": 6}, "seed is 5 for repetition 0 and 6 for repetition 2"),
        ({"first": 2, "num_repetitions": 1}, "num_repetitions is 2"),
        ({"first": 2, "dim": 3}, "width of the query is 4"),
        ({"first": 2, "decoder": "min"}, "decoder is 'mean'"),
    ],
)
def test_heads_that_do_not_fit_together(other, message):
    with pytest.raises(ValueError, match=message):
        merge_mach_heads([make_head(0), make_head(**other)])


def test_how_they_started_and_whether_they_train_on_has_no_part_in_it():
    starts = {first: keras.initializers.RandomNormal(seed=first) for first in (0, 2)}
    heads = [make_head(first, kernel_initializer=start) for first, start in starts.items()]
    heads[0].trainable = False
    merged, query = merge_mach_heads(heads), queries(3, 8)
    check_mean(merged, heads, query)
    assert merged.trainable


def test_other_hash_functions_than_the_seed_says():
    head = make_head(2)
    tf_variable(head.hashes).assign(tf_variable(head.hashes) + 1)
    with pytest.raises(ValueError, match="hash functions from repetition 2 on are not those of its seed, 5"):
        merge_mach_heads([make_head(0), head])


def test_nothing_a_head_that_is_not_built_and_one_alone_which_is_itself():
    with pytest.raises(ValueError, match="There is no head to merge"):
        merge_mach_heads([])
    with pytest.raises(ValueError, match=r"The heads of repetitions \[0\] are not built"):
        merge_mach_heads([MACHHead(30, 7, 2, seed=5)])
    head, query = make_head(), queries(2, 4)
    np.testing.assert_array_equal(merge_mach_heads([head])(query), head(query))
