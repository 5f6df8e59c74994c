from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf
from refusal_checks import refused

from tfxc import data
from tfxc.data.pipeline import packed_rows

LETTERS = data.Vocabulary("abcdefg")


def random_sequences(num_sequences, seed=0):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, 12, num_sequences)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return data.Sequences(rng.integers(0, 7, offsets[-1]), offsets, LETTERS)


def reference_rows(sequences, max_length, windows):
    rows = []
    for sequence in sequences:
        stop, mine = len(sequence), []
        while stop > 1:
            start = max(stop - max_length - 1, 0)
            items, labels = sequence[start : stop - 1] + 1, sequence[start + 1 : stop]
            padding = [0] * (max_length - len(items))
            mine.append((padding + items.tolist(), [-1] * len(padding) + labels.tolist()))
            stop -= max_length
        rows += mine[:1] if windows == "last" else mine[::-1]
    return rows


def collected(dataset):
    batches = [(items.numpy(), labels.numpy()) for items, labels in dataset]
    assert len(batches) == int(dataset.cardinality())
    return [row for items, labels in batches for row in zip(items.tolist(), labels.tolist(), strict=True)]


WINDOWS = [("all", 1), ("last", 3), ("all", 3), ("all", 20)]
EVERY_WINDOW = pytest.mark.parametrize(("windows", "max_length"), WINDOWS)


@EVERY_WINDOW
def test_rows_match_the_reference(windows, max_length):
    sequences = random_sequences(17)
    rows = reference_rows(sequences, max_length, windows)
    kept = data.sequence_training_dataset(sequences, max_length, 5, windows, seed=None)
    assert collected(kept) == rows
    shuffled = data.sequence_training_dataset(sequences, max_length, 5, windows, seed=1)
    assert sorted(collected(shuffled)) == sorted(rows)


def histories_in(rows):
    """What stands between the zeros of rows of items and further values, row by row."""
    histories = []
    for parts in rows:
        cuts = [-1, *np.flatnonzero(np.array(parts[0]) == 0), len(parts[0])]
        for before, cut in zip(cuts, cuts[1:], strict=False):
            if cut > before + 1:
                histories.append(tuple(part[before + 1 : cut] for part in parts))
    return histories


@EVERY_WINDOW
def test_packed_rows_hold_the_histories_of_padded_ones(windows, max_length):
    sequences = random_sequences(20)
    padded = reference_rows(sequences, max_length, windows)
    for seed in (None, 1):
        rows = collected(data.sequence_training_dataset(sequences, max_length, 5, windows, seed, packed=True))
        assert len(rows) <= len(padded) and all(len(items) == max_length for items, _ in rows)
        assert all((item == 0) == (label == -1) for row in rows for item, label in zip(*row, strict=True))
        assert sorted(histories_in(rows)) == sorted(histories_in(padded))
    assert max_length < 20 or len(rows) < len(padded) / 2


def packed(lengths, max_length, seed=0):
    order, splits = packed_rows(np.asarray(lengths), max_length, seed)
    assert sorted(order.tolist()) == list(range(len(lengths))) and splits[-1] == len(lengths)
    return [order[start:stop].tolist() for start, stop in zip(splits, splits[1:], strict=False)]


def first_fit(lengths, max_length):
    rooms = []
    for length in sorted(lengths, reverse=True):
        fitting = next((row for row, room in enumerate(rooms) if room > length), None)
        if fitting is None:
            fitting = len(rooms)
            rooms.append(max_length + 1)
        rooms[fitting] -= length + 1
    return len(rooms)


@pytest.mark.parametrize("max_length", [1, 2, 7, 50])
def test_takes_the_rows_of_a_slow_first_fit(max_length):
    random = np.random.default_rng(max_length)
    for num_histories in (1, 2, 30, 300):
        lengths = np.minimum(random.geometric(0.2, num_histories), max_length)
        rows = packed(lengths, max_length)
        assert all(row and lengths[row].sum() + len(row) - 1 <= max_length for row in rows)
        assert len(rows) == first_fit(lengths.tolist(), max_length)


def test_the_seed_decides_which_histories_share_a_row():
    lengths = np.tile([1, 2, 3], 50)
    assert packed(lengths, 9) == packed(lengths, 9) != packed(lengths, 9, seed=1)
    assert packed(lengths, 9, seed=None)[0] == [2, 5, 0] and packed(lengths, 9, seed=-(2**63))
    refused("seed must be an integer", packed, lengths, 9, seed=0.5)


def test_element_spec():
    items, labels = data.sequence_training_dataset(random_sequences(5), 3, 2).element_spec
    assert items.shape.as_list() == labels.shape.as_list() == [None, 3]
    assert items.dtype == labels.dtype == "int32"
    dataset = data.sequence_evaluation_dataset(data.Sequences.from_lists(["abc"]), 3, 2, exclude_seen=True)
    inputs, labels = dataset.element_spec
    assert inputs["items"].shape.as_list() == labels.shape.as_list() == [None, 3]
    assert inputs["exclude"].shape.as_list() == [None, None] and inputs["exclude"].dtype == "int32"
    assert (
        data.stream_dataset(random_sequences(5), 3, 2).element_spec == (tf.TensorSpec([2, 3], tf.int32),) * 2
    )


@pytest.mark.long
@pytest.mark.parametrize("packed", [False, True])
def test_shuffled_anew_each_epoch_and_reproducible(packed):
    sequences = data.Sequences.from_lists([[u, u] for u in range(50)])
    first, second = (data.sequence_training_dataset(sequences, 1, 8, seed=3, packed=packed) for _ in range(2))
    epochs = [collected(first), collected(first)]
    assert epochs[0] != epochs[1] and epochs[0] != sorted(epochs[0])
    assert sorted(epochs[0]) == sorted(epochs[1])
    assert [collected(second), collected(second)] == epochs
    assert collected(data.sequence_training_dataset(sequences, 1, 8, seed=4)) != epochs[0]


@pytest.mark.parametrize(
    ("make", "lists", "arguments", "message"),
    [
        (data.sequence_training_dataset, ["ab"], (1, 1, "some"), "one of .'last', 'all'., but got 'some'"),
        (data.sequence_training_dataset, ["a", "b"], (1, 1), "No sequence has 2 items"),
        (data.sequence_evaluation_dataset, ["ab", "a"], (2, 2), "1 of 2 sequences .* sequences.select"),
        (data.sequence_evaluation_dataset, [], (2, 2), "no sequence to evaluate on: pass at least one of 2"),
        *((data.stream_dataset, lists, (2, 2), "needs 2 items") for lists in (["a"], [""])),
        *(
            (make, ["abcde"], sizes, f"{name} must be an integer of at least 1, but got {min(sizes)}")
            for make in (data.sequence_training_dataset, data.stream_dataset)
            for name, sizes in (("max_length", (0, 2)), ("batch_size", (2, 0)), ("max_length", (1.5, 2)))
        ),
    ],
)
def test_bad_arguments(make, lists, arguments, message):
    refused(message, make, data.Sequences.from_lists(lists), *arguments)


def test_evaluation_rows():
    sequences = data.Sequences.from_lists(["abcd", "ba", "ccbc"], data.Vocabulary("abcd"))
    dataset = data.sequence_evaluation_dataset(sequences, 2, batch_size=2)
    assert collected(dataset) == [([2, 3], [-1, 3]), ([0, 2], [-1, 0]), ([3, 2], [-1, 2])]


def test_excluded_is_the_whole_history_without_the_target():
    sequences = data.Sequences.from_lists(["abcdb", "ba", "ccbc"], data.Vocabulary("abcd"))
    batches = list(data.sequence_evaluation_dataset(sequences, 1, batch_size=2, exclude_seen=True))
    assert [inputs["items"].numpy().tolist() for inputs, _ in batches] == [[[4], [2]], [[2]]]
    assert [labels.numpy().tolist() for _, labels in batches] == [[[1], [0]], [[2]]]
    assert batches[0][0]["exclude"].numpy().tolist() == [[0, -1, 2, 3], [-1, -1, -1, 1]]
    assert batches[1][0]["exclude"].numpy().tolist() == [[-1, -1, 1]]


def with_columns(sequences):
    position = np.arange(len(sequences.items))
    country = data.Column(position % 3 - 1, data.Vocabulary(["de", "fr"]))
    return replace(sequences, columns={"country": country, "price": data.Column(position / 2)})


def test_other_columns_stand_beside_the_history():
    sequences = with_columns(data.Sequences.from_lists(["ab", "abcd"]))
    ((inputs, labels),) = data.sequence_training_dataset(sequences, 3, 2, seed=None)
    assert inputs["items"].numpy().tolist() == [[0, 0, 1], [1, 2, 3]]
    assert inputs["country"].numpy().tolist() == [[0, 0, 0], [2, 0, 1]]  # 0 where it is missing, too
    assert inputs["price"].numpy().tolist() == [[0, 0, 0], [1, 1.5, 2]]
    assert labels.numpy().tolist() == [[-1, -1, 1], [1, 2, 3]]
    ((inputs, _),) = data.sequence_evaluation_dataset(sequences, 2, 2, exclude_seen=True)
    assert inputs.keys() == {"items", "country", "price", "exclude"}
    assert inputs["country"].numpy().tolist() == [[0, 0], [0, 1]]


def test_other_columns_stand_beside_packed_histories():
    sequences = with_columns(random_sequences(30))
    rows = {}
    for packed in (False, True):
        batches = data.sequence_training_dataset(sequences, 12, 4, packed=packed)
        rows[packed] = [
            row
            for inputs, labels in batches
            for row in zip(*(part.numpy().tolist() for part in (*inputs.values(), labels)), strict=True)
        ]
    assert len(rows[True]) < len(rows[False])
    assert sorted(histories_in(rows[True])) == sorted(histories_in(rows[False]))


def test_columns_and_arrays_from_disk(tmp_path):
    sequences = with_columns(random_sequences(17))

    def mapped(name, array):
        np.save(tmp_path / name, array)
        return np.load(tmp_path / name, mmap_mode="r")

    columns = {
        name: replace(c, values=mapped(f"{name}.npy", c.values)) for name, c in sequences.columns.items()
    }
    on_disk = replace(sequences, items=mapped("items.npy", sequences.items), columns=columns)
    assert isinstance(on_disk.items, np.memmap) and isinstance(on_disk.columns["price"].values, np.memmap)
    for mine, theirs in zip(
        data.sequence_training_dataset(on_disk, 3, 5, "all", seed=2, packed=True),
        data.sequence_training_dataset(sequences, 3, 5, "all", seed=2, packed=True),
        strict=True,
    ):
        tf.nest.map_structure(np.testing.assert_array_equal, mine, theirs)


@pytest.mark.parametrize(
    ("lengths", "max_length", "batch_size"),
    [((100,), 7, 3), ((40, 33, 2), 5, 4), ((2,), 1, 1), ((2,), 6, 5), ((9,), 2, 4), ((7,), 1, 3)],
)
def test_in_streams_every_item_but_the_first_is_a_target_once(lengths, max_length, batch_size):
    names = [str(i) for i in range(sum(lengths))]
    lists = [names[stop - length : stop] for length, stop in zip(lengths, np.cumsum(lengths), strict=True)]
    dataset = data.stream_dataset(data.Sequences.from_lists(lists), max_length, batch_size)
    got = [(items.numpy(), labels.numpy()) for items, labels in dataset]
    assert len(got) == len(dataset)
    rows = [np.concatenate([part[i] for part in got], 1) for i in (0, 1)]
    assert all(part.shape == (batch_size, max_length) for pair in got for part in pair)
    items, labels = (row.ravel()[row.ravel() >= least] for row, least in zip(rows, (1, 0), strict=True))
    total = sum(lengths)
    np.testing.assert_array_equal(items - 1, np.arange(total - 1))  # streams one after the other
    np.testing.assert_array_equal(labels, np.arange(1, total))
    np.testing.assert_array_equal(rows[0] == 0, rows[1] == -1)
    for row in rows[0]:  # padding stands at the end alone
        assert (row[np.count_nonzero(row) :] == 0).all()
