import numpy as np
import pytest
import tensorflow as tf
from refusal_checks import refused

from tfxc.data import GrowingVocabulary


def batches(*lists):
    """Inputs and labels: all names of a batch but the last, and the last."""
    return tf.data.Dataset.from_generator(
        lambda: ((names[:-1], names[-1:]) for names in lists),
        output_signature=(tf.TensorSpec([None], tf.string), tf.TensorSpec([None], tf.string)),
    )


def train(vocabulary, data):
    """Goes through data as training does; returns ids of inputs, ids of labels and new classes by batch."""
    seen = []
    for x, y in vocabulary.grown(data):
        vocabulary.num_batches.assign_add(1)
        vocabulary.num_given.assign(len(vocabulary))
        seen.append([part.numpy().tolist() for part in (x["inputs"], y, x["new_classes"])])
    return seen


def test_names_take_spare_rows_and_then_those_of_the_least_used():
    vocabulary = GrowingVocabulary(3, half_life=10)
    seen = train(vocabulary, batches(["", "tea", "milk"], ["tea", "tea", "rum"], ["gin", "", "tea"]))
    assert seen == [[[0, 1], [1], [0, 1]], [[1, 1], [2], [2]], [[2, 0], [0], [1]]]
    assert list(vocabulary.names) == ["tea", "gin", "rum"]  # milk was used earlier than rum
    assert vocabulary.encode(["rum", "milk"], unknown=-1).tolist() == [2, -1]
    x, y = next(iter(vocabulary.encoded(batches(["milk", "gin", "rum", ""]))))
    assert (x.numpy().tolist(), y.numpy().tolist()) == ([0, 2, 3], [-1])
    asked = tf.data.Dataset.from_tensors({"items": ["", "rum"], "exclude": ["", "rum"]})  # as of predict
    (x,) = vocabulary.encoded(asked)
    assert {name: ids.numpy().tolist() for name, ids in x.items()} == {"items": [0, 3], "exclude": [-1, 2]}


def least_used(batches, capacity, half_life):
    """The same by counts of each name that are multiplied with every batch."""
    counts, rows = {}, {}
    for batch in batches:
        new = [name for name in dict.fromkeys(batch) if name not in rows]
        excess = max(len(rows) + len(new) - capacity, 0)
        evicted = sorted(set(rows) - set(batch), key=lambda name: (counts[name], rows[name]))[:excess]
        lowest = [rows[name] for name in evicted if counts[name] < counts[evicted[-1]]]
        equal = [rows[name] for name in evicted if counts[name] == counts[evicted[-1]]]
        free = [*range(len(rows), capacity), *sorted(lowest), *sorted(equal)]
        for name in evicted:
            del rows[name], counts[name]
        rows |= zip(new, free, strict=False)
        # Each use counts as at the beginning of its batch.
        counts = {name: counts.get(name, 0) + batch.count(name) for name in rows}
        counts = {name: count * 0.5 ** (len(batch) / half_life) for name, count in counts.items()}
    return rows


@pytest.mark.long
@pytest.mark.parametrize("half_life", [7.0, 1000.0])
def test_rows_are_those_of_decaying_counts(half_life):
    rng = np.random.default_rng(1)
    lists = [
        [f"n{i}" for i in (rng.zipf(1.3, rng.integers(2, 9)) % 30 + step // 20).tolist()]
        for step in range(200)
    ]
    vocabulary = GrowingVocabulary(12, half_life)
    train(vocabulary, batches(*lists))
    expected = least_used(lists, 12, half_life)
    assert len(expected) == 12
    assert vocabulary.ids == expected


def test_a_pipeline_that_is_ahead_changes_nothing_before_its_batches_are_trained_on():
    vocabulary = GrowingVocabulary(2)
    data = batches(["a", "b"], ["c", "d"], ["e", "f"])
    ahead = iter(vocabulary.grown(data))
    next(ahead)
    assert list(vocabulary.names) == []
    vocabulary.num_batches.assign_add(1)
    assert list(vocabulary.names) == ["a", "b"]
    assert train(vocabulary, data.skip(1))[0][2] == [0, 1]  # c and d begin anew, from the same state
    assert list(vocabulary.names) == ["e", "f"]


def test_a_file_holds_names_and_counts(tmp_path):
    vocabulary = GrowingVocabulary(3, half_life=5)
    train(vocabulary, batches(["ä\n", "b"], ["b", "c"]))
    vocabulary.save(tmp_path / "names.json")
    loaded = GrowingVocabulary.load(tmp_path / "names.json")
    assert list(loaded.names) == ["ä\n", "b", "c"]
    assert loaded.get_config() == vocabulary.get_config()
    more = batches(["d", "e"], ["f", "b"])
    assert train(loaded, more) == train(vocabulary, more)


CONFIG = '"config": {"capacity": 2, "half_life": 5}, "num_uses": 3'


@pytest.mark.parametrize(
    "text",
    [
        *("tea\n", "{", "[]", '{"names": []}', f'{{{CONFIG}, "names": ["a", "b"], "scores": [1]}}'),
        f'{{{CONFIG}, "names": ["a", "a"], "scores": [1, 2]}}',
        f'{{{CONFIG}, "names": ["a", "b", "c"], "scores": [1, 2, 3]}}',
    ],
)
def test_a_file_that_is_none_is_refused(text, written):
    refused("log.csv is no GrowingVocabulary, or is damaged", GrowingVocabulary.load, written(text))


def test_what_cannot_be_is_refused():
    refused(r"capacity.*0", GrowingVocabulary, 0)
    refused(r"half_life.*above 0.*-1", GrowingVocabulary, 3, half_life=-1)
    vocabulary = GrowingVocabulary(2)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"3 distinct names.*2 rows.*larger capacity"):
        train(vocabulary, batches(["a", "b", "c"]))
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"name b'a\\xff' is not UTF-8: encode"):
        train(vocabulary, batches([b"a\xff"]))
    refused(r"dense tensors of strings.*int32", vocabulary.grown, tf.data.Dataset.from_tensors(([1], [2])))
    refused(r"names, also for labels.*int32", vocabulary.grown, tf.data.Dataset.from_tensors((["a"], [2])))
    several = tf.data.Dataset.from_tensors(((["a"], ["b"]), ["c"]))
    refused("one tensor or a dict", vocabulary.grown, several)
