"""A vocabulary that takes names in while a model trains, and lets the least used go when it is full."""

import json
import os
from collections import deque
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import tensorflow as tf

from tfxc.arguments import local_path, positive_int, real_number
from tfxc.atomic_write import atomic_write
from tfxc.data.batching import WithCardinality
from tfxc.data.names import Names
from tfxc.data.vocabulary import Vocabulary

NEW_CLASSES = "new_classes"  # the input by which a batch tells a model which rows have other names
_AHEAD = 2  # batches


def _no_model():
    return None


class GrowingVocabulary(Vocabulary):
    """Two-way map between raw names and class ids `0 .. capacity - 1`, changed by the training of a model.

    An `ExtremeClassifier` with such `class_names` trains on batches of names, from a log that never ends. A
    name that it has not seen takes the next spare row. If there is none, it takes the row of the name that
    was used least: vectors, slots of the optimizer and counts of the sampler begin anew. Spare rows are
    neither ranked nor drawn. A vocabulary belongs to one model, which is saved with it.

    Uses are counted, and the counts halve every `half_life` uses (of all names together): a short one keeps
    the names of late, a long one those that were used most. Names of one batch never take each other's rows.

    Names in the inputs of a batch become id + 1, in its labels and its input "exclude" the id; an empty name
    is padding, 0 and -1.

    Args:
        capacity: rows, at least 1: at least the distinct names of a batch, better those of as long a time as
            they are to be remembered.
        half_life: above 0, uses of names; None for twice the capacity.

    Raises:
        ValueError: for a capacity or a half-life that is not positive.

    Example:
        >>> vocabulary = GrowingVocabulary(3)
        >>> encoder = keras.Sequential([keras.Input((2,), dtype="int32"), keras.layers.Embedding(4, 8),
        ...                             keras.layers.Flatten(), keras.layers.Dense(8)])
        >>> model = tfxc.ExtremeClassifier(encoder, tfxc.layers.DenseHead(3), class_names=vocabulary, k=2)
        >>> model.compile(tfxc.optimizers.LazyAdam(0.01), loss=tfxc.losses.SoftmaxCrossentropy())
        >>> log = [["", "tea"], ["tea", "tea"], ["milk", "tea"]], ["tea", "milk", "rum"]
        >>> batches = tf.data.Dataset.from_tensor_slices(log).batch(1)
        >>> history = model.fit(batches, verbose=0)
        >>> model.class_names
        ['tea', 'milk', 'rum']
        >>> history = model.fit(tf.data.Dataset.from_tensors(([["rum", "tea"]], ["gin"])), verbose=0)
        >>> model.class_names
        ['tea', 'gin', 'rum']

    Reference:
        Lee et al., "LRFU: A Spectrum of Policies that Subsumes the Least Recently Used and Least Frequently
        Used Policies", 2001 (the counts); Liu et al., "Monolith: Real Time Recommendation System With
        Collisionless Embedding Table", 2022 (rows that expire).
    """

    def __init__(self, capacity: int, half_life: float | None = None) -> None:
        self.normalize = None
        self.capacity = positive_int(capacity, "capacity")
        self.half_life = real_number(2 * self.capacity if half_life is None else half_life, "half_life")
        if not 0 < self.half_life < float("inf"):
            raise ValueError(f"half_life must be a finite number of uses above 0, but got {half_life}.")
        # Steps of training move these: how many rows have names, and how many batches were trained on.
        self.num_given = tf.Variable(0, trainable=False)
        self.num_batches = tf.Variable(0, trainable=False, dtype=tf.int64)
        self.owner = _no_model  # a weak reference to the model that trains it
        self._trained = _Rows(self.capacity, self.half_life)
        self._changes: deque[_Change] = deque()
        self._num_followed = self._num_starts = 0

    def get_config(self) -> dict[str, Any]:
        """The arguments by which another is made alike, without names."""
        return {"capacity": self.capacity, "half_life": self.half_life}

    def __getstate__(self):
        return {**vars(self), "owner": _no_model}  # a copy belongs to no model

    def __repr__(self) -> str:
        return f"GrowingVocabulary({len(self)} names of at most {self.capacity})"

    def __len__(self) -> int:
        return len(self._rows.names)

    @property
    def names(self) -> Names:  # type: ignore[override]
        """The names of the rows, in id order, as after the last step of training."""
        return Names(self._rows.names)

    @property
    def ids(self) -> dict[str, int]:  # type: ignore[override]
        """The class id of each name."""
        return self._rows.ids

    @property
    def _rows(self):
        """The rows as after the last step of training: the pipeline is some batches ahead."""
        num_batches = int(self.num_batches.numpy())
        while self._num_followed < num_batches:
            self._trained.apply(self._changes.popleft())
            self._num_followed += 1
        return self._trained

    def follow(self) -> None:
        """Takes over what the steps since the last call changed, which waits in memory until then."""
        self._rows  # noqa: B018

    def state(self) -> dict[str, Any]:
        """The names and their counts, for a backup: numbers and arrays."""
        rows = self._rows
        names = np.frombuffer(json.dumps(rows.names).encode(), np.uint8)
        return {"names": names, "scores": rows.scores[: len(rows.names)].copy(), "num_uses": rows.num_uses}

    def restore(self, state: dict[str, Any]) -> None:
        """Takes over what `state` gave."""
        self._take_over(json.loads(bytes(state["names"])), state["scores"], state["num_uses"])

    def _take_over(self, names, scores, num_uses):
        self._trained = _Rows(self.capacity, self.half_life, names, scores, num_uses)
        self.num_given.assign(len(names))
        self._forget_changes()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes names and counts to a file of JSON, which replaces an older one at once."""
        rows = self._rows
        saved = {"config": self.get_config(), "names": rows.names, "num_uses": rows.num_uses}
        saved["scores"] = rows.scores[: len(rows.names)].tolist()
        with atomic_write(path) as aside, open(aside, "w", encoding="utf-8") as file:
            json.dump(saved, file, ensure_ascii=False)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "GrowingVocabulary":
        """Reads what `save` wrote; ValueError for another file."""
        path = local_path(path)
        try:
            with open(path, encoding="utf-8") as file:
                saved = json.load(file)
            loaded, names = cls(**saved["config"]), saved["names"]
            scores = np.array(saved["scores"], np.float64)
            if not len(set(names)) == len(scores) == len(names) <= loaded.capacity:
                raise ValueError(f"{len(set(names))} names, {len(scores)} counts, {loaded.capacity} rows")
            loaded._take_over(names, scores, saved["num_uses"])
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(
                f"{path} is no GrowingVocabulary, or is damaged ({error!r}): write it again by "
                "GrowingVocabulary.save. A Vocabulary has its own load."
            ) from error
        return loaded

    def encoded(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        """Batches with ids in place of names, for `evaluate` and `predict`; an unknown name is padding.

        The names are those of the moment at which a batch is read. Raises ValueError for data without names.
        """
        return dataset.map(lambda *batch: _with_ids(batch, self._known, dataset))

    def grown(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        """Batches with ids in place of names, of which new ones get rows: what `fit` makes of its data.

        The input "new_classes" of a batch tells which rows have other names from there on. Each time the
        dataset is read, it begins with the names as after the last step of training. Raises ValueError for
        inputs or labels that are no names, and other inputs than a tensor or dict.
        """

        def begin(_):
            # Steps that read an older iterator would be followed by changes of this one: there are none.
            scout = tf.numpy_function(self._begin, [], tf.int64)
            return dataset.map(lambda *batch: _with_ids(batch, self._taken, dataset, scout))

        grown = tf.data.Dataset.range(1).flat_map(begin).prefetch(_AHEAD)
        return WithCardinality(grown, dataset)

    def _begin(self):
        """Starts anew with the names as after the last step; returns the number of this start."""
        rows = self._rows
        self._scout = _Rows(self.capacity, self.half_life, rows.names, rows.scores, rows.num_uses)
        self._forget_changes()
        self._num_starts += 1
        return np.int64(self._num_starts)

    def _forget_changes(self):
        self._changes.clear()
        self._num_followed = int(self.num_batches.numpy())

    def _taken(self, names, start):
        """Rows of names, each of which has one from now on; and those whose name is another than before."""
        if start != self._num_starts:
            raise ValueError("The batches are read by an iterator that another one has replaced.")
        indices, names, counts = _distinct(names)
        change = self._scout.taken(names, counts)
        self._changes.append(change)
        return np.append(change.rows, -1)[indices], change.rows[change.new]

    def _known(self, names):
        indices, names, _ = _distinct(names)
        ids = self._rows.ids
        return np.array([*(ids.get(name, -1) for name in names), -1])[indices], []


class _Change(NamedTuple):
    """What a batch changes: rows [n] of its distinct names, their counts, and which of them are new."""

    rows: np.ndarray
    counts: np.ndarray
    new: np.ndarray
    new_names: list


class _Rows:
    """Which name has which row, and how often it was used of late.

    A row's score is the logarithm, to base 2, of the sum of `2^(t / half_life)` over the times t at which its
    name was used. It orders rows as counts that halve every `half_life` do, but changes with uses alone.
    """

    def __init__(self, capacity, half_life, names=(), scores=(), num_uses=0):
        self.capacity, self.half_life = capacity, half_life
        self.names, self.num_uses = list(names), int(num_uses)
        self.ids = {name: row for row, name in enumerate(names)}
        self.scores = np.full(capacity, -np.inf)
        self.scores[: len(scores)] = scores

    def taken(self, names, counts):
        """Gives each of n distinct names a row; returns the `_Change`."""
        if len(names) > self.capacity:
            raise ValueError(
                f"A batch holds {len(names)} distinct names, but the vocabulary has {self.capacity} rows: "
                "give GrowingVocabulary a larger capacity, or make smaller batches."
            )
        rows = np.array([self.ids.get(name, -1) for name in names], np.int64)
        new = np.flatnonzero(rows < 0)
        num_spare = min(len(new), self.capacity - len(self.names))
        rows[new[:num_spare]] = len(self.names) + np.arange(num_spare)
        num_evicted = len(new) - num_spare
        if num_evicted:
            scores = self.scores.copy()
            scores[rows[rows >= 0]] = np.inf
            highest = np.partition(scores, num_evicted - 1)[num_evicted - 1]
            lower, equal = np.flatnonzero(scores < highest), np.flatnonzero(scores == highest)
            rows[new[num_spare:]] = np.append(lower, equal[: num_evicted - len(lower)])
        change = _Change(rows, counts, new, [names[i] for i in new])
        self.apply(change)
        return change

    def apply(self, change):
        """Goes through the change that a batch makes."""
        rows = change.rows
        for row, name in zip(rows[change.new].tolist(), change.new_names, strict=True):
            if row < len(self.names):
                del self.ids[self.names[row]]
                self.names[row] = name
            else:
                self.names.append(name)
            self.ids[name] = row
        self.scores[rows[change.new]] = -np.inf
        now = self.num_uses / self.half_life
        self.scores[rows] = np.logaddexp2(self.scores[rows], np.log2(change.counts) + now)
        self.num_uses += int(change.counts.sum())


def _distinct(names):
    """For bytes [M] the position of each among n distinct names, -1 for an empty one; names and counts."""
    try:
        encoded = pa.array(names, pa.large_binary()).cast(pa.large_string())
    except pa.ArrowInvalid as error:
        bad = next(name for name in names if name.decode(errors="ignore").encode() != name)
        raise ValueError(f"The name {bad!r} is not UTF-8: encode the names so, or in Base64.") from error
    encoded = pc.if_else(pc.equal(encoded, ""), None, encoded).dictionary_encode()
    indices, distinct = encoded.indices.fill_null(-1).to_numpy(), encoded.dictionary.to_pylist()
    return indices, distinct, np.bincount(indices[indices >= 0], minlength=len(distinct))


def _with_ids(batch, ids_of, dataset, *start):
    """A batch with ids in place of names, as `ids_of(names, *start)` gives them; with a start, new ones."""
    x, *rest = batch
    parts, num_inputs = tf.nest.flatten(batch), len(tf.nest.flatten(x))
    places = [place for place, part in enumerate(parts) if tf.is_tensor(part) and part.dtype == tf.string]
    named = [parts[place] for place in places]
    are_ids = start and rest and num_inputs not in places
    if not named or are_ids or any(not isinstance(part, tf.Tensor) for part in named):
        kinds = [getattr(part, "dtype", type(part)) for part in parts]
        raise ValueError(
            "The data must hold names, also for labels, in dense tensors of strings, padded with '', but "
            f"hold {kinds}."
        )
    excluded = x.get("exclude") if isinstance(x, dict) else None  # class ids, as the labels are
    offsets = [int(place < num_inputs and parts[place] is not excluded) for place in places]

    def encode(*arrays):
        arrays, start = arrays[: len(offsets)], arrays[len(offsets) :]
        flat = np.concatenate([array.reshape(-1) for array in arrays])
        ids, new = ids_of(flat, *start)
        sizes = [array.size for array in arrays]
        ids = np.asarray(ids, np.int32) + np.repeat(np.int32(offsets), sizes)
        ids = np.split(ids, np.cumsum(sizes)[:-1])
        shaped = [own.reshape(array.shape) for own, array in zip(ids, arrays, strict=True)]
        return [*shaped, np.asarray(new, np.int32)]

    *ids, new = tf.numpy_function(encode, [*named, *start], [tf.int32] * (len(named) + 1))
    for place, own in zip(places, ids, strict=True):
        parts[place] = tf.ensure_shape(own, parts[place].shape)
    batch = tf.nest.pack_sequence_as(batch, parts)
    x, *rest = batch
    if start:
        x = x if isinstance(x, dict) else {"inputs": x}
        if not all(tf.is_tensor(part) for part in x.values()):
            raise ValueError(
                f"The inputs must be one tensor or a dict of tensors by name, but are {dataset.element_spec}."
            )
        x = {**x, NEW_CLASSES: tf.ensure_shape(new, [None])}
    return (x, *rest) if isinstance(dataset.element_spec, tuple) else x
