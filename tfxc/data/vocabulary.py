"""Maps raw item names to class ids and back."""

import os
import re
import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tfxc.arguments import integers, local_path, one_of, positive_int
from tfxc.atomic_write import atomic_write
from tfxc.data.names import Names, first_repeated, places_of, texts

_HEADER = "tfxc-vocabulary 2"
_ESCAPES = str.maketrans({"\\": "\\\\", "\n": "\\n", "\r": "\\r"})


class Vocabulary:
    """Two-way map between raw item names and class ids `0 .. L-1`.

    The name at position i belongs to class i. Names are texts or UTF-8 bytes. An integer counts as its `str`,
    so `encode([17])` finds the item that a file calls `17`.

    Args:
        names: the L distinct item names, in the order of their class ids.
        normalize: None, or a normal form of Unicode such as `"NFC"`. Names then are taken in that form, with
            no-break spaces as blanks, and without blanks at the ends or marks that are not seen, such as
            spaces of no width; of names that become the same the first counts. Names that are looked up are
            treated alike.

    Raises:
        ValueError: for another normal form; if a name occurs twice, is missing (None, NaN, the missing values
            of pandas and Arrow) or a float; for a set, which has no order.

    Example:
        >>> vocabulary = Vocabulary(["tea", "milk", "sugar"])
        >>> vocabulary.encode(["sugar", "tea"]).tolist(), vocabulary.decode([[1, 0]])
        ([2, 0], [['milk', 'tea']])
        >>> Vocabulary(["tea ", "tea", "cafe\u0301"], normalize="NFC").encode(["caf\u00e9", "tea"]).tolist()
        [1, 0]
    """

    def __init__(self, names: Iterable, normalize: str | None = None) -> None:
        self.normalize = one_of(normalize, "normalize", (None, "NFC", "NFD", "NFKC", "NFKD"))
        self.names = Names(names)
        if normalize is not None:
            self.names = Names(pc.unique(self.normalized(self.names.array)))
        repeated = first_repeated(self.names.array)
        if repeated is not None:
            raise ValueError(f"The name {repeated!r} occurs twice; names in a vocabulary must be distinct.")

    @classmethod
    def merge(cls, old: "Vocabulary | Iterable", names: Iterable) -> "Vocabulary":
        """Makes the vocabulary of another list of names, in which names that stay keep their ids.

        New names take the free ids of names that are gone, in order, and then ids after the last one. If
        there are fewer names than before, names with ids from L' on move to free ids. So hardly any row of a
        table moves when a catalogue changes a little every day.

        Args:
            old: the present `Vocabulary`, or its names.
            names: the L' distinct names of the other list, in any order.

        Raises:
            ValueError: if a name occurs twice.

        Example:
            >>> Vocabulary.merge(Vocabulary(["tea", "milk", "salt"]), ["rum", "salt", "tea", "gin"]).names
            ['tea', 'rum', 'salt', 'gin']
        """
        old = old if isinstance(old, Vocabulary) else cls(old)
        given = cls(names, old.normalize).names
        place = places_of(old.names.array, given.array)
        stay, move = place[: len(given)], place[len(given) :]
        is_new = np.ones(len(given), bool)
        is_new[place[place >= 0]] = False
        chosen = np.full(len(given), -1)
        chosen[: len(stay)] = stay
        chosen[chosen < 0] = np.concatenate([move[move >= 0], np.flatnonzero(is_new)])
        return cls(given[chosen], old.normalize)

    @cached_property
    def ids(self) -> dict[str, int]:
        """The class id of each name, in any form that `normalize` makes the same; made at the first use."""
        ids = {name: i for i, name in enumerate(self.names)}
        return ids if self.normalize is None else _Ids(ids, self)

    def normalized(self, names: pa.Array) -> pa.Array:
        """Returns names [M] in the normal form of this vocabulary."""
        return names if self.normalize is None else normal_names(names, self.normalize)

    def __len__(self) -> int:
        return len(self.names)

    def __contains__(self, name) -> bool:
        return self.ids.get(texts([name], keep_missing=True)[0]) is not None

    def __eq__(self, other) -> bool:
        if not isinstance(other, Vocabulary):
            return False
        return self.names == other.names and self.normalize == other.normalize

    def __repr__(self) -> str:
        return f"Vocabulary({len(self)} names)"

    def encode(self, names: Iterable, unknown: int | None = None) -> np.ndarray:
        """Returns the class ids [M] int32 of M names.

        Args:
            names: raw names.
            unknown: the id for a name that is missing or not in the vocabulary, usually -1; None refuses it.

        Raises:
            ValueError: for a float, a single text or another `unknown`; without one, for an unknown name.
        """
        if isinstance(names, str):
            raise ValueError(f"names must be a list of names, but is the text {names!r}: pass [{names!r}].")
        own, ids = texts(names, keep_missing=unknown is not None), self.ids
        if unknown is not None:
            unknown = positive_int(unknown, "unknown", -(2**31), 2**31 - 1)
            return np.array([ids.get(name, unknown) for name in own], np.int32)
        try:
            return np.array([ids[name] for name in own], np.int32)
        except KeyError as error:
            raise ValueError(
                f"The name {error.args[0]!r} is not among the {len(self)} names of the vocabulary"
                f"{self.other_spelling(error.args[0])}. Pass unknown=-1 to map unknown names to -1."
            ) from None

    def other_spelling(self, name: str) -> str:
        """Returns what to say of an unknown name in another spelling, "7" of "7.0" or "007", or nothing."""
        first = next(iter(self.ids), "")
        others = name.removesuffix(".0"), f"{name}.0", name.lstrip("0"), name.zfill(len(first))
        other = next((own for own in others if own in self.ids), None)
        if other is None:
            return ""
        return (
            f", but {other!r} is: ids that go through a float gain '.0', and through an integer lose their "
            "first zeros; write them as before"
        )

    def decode(self, ids) -> list:
        """Returns the names of class ids in [0, L) of any shape, as equally nested lists."""
        ids = integers(ids, "Class ids")
        outside = (ids < 0) | (ids >= len(self))
        if outside.any():
            is_empty = (ids[outside] == -1).all()
            remedy = " A model returns -1 if no class is left to rank: decode ids[ids >= 0]."
            raise ValueError(
                f"The class id {ids[outside][0]} is outside [0, {len(self)}).{remedy if is_empty else ''}"
            )
        flat = np.empty(ids.size, object)
        flat[:] = list(self.names[ids.reshape(-1)])
        return flat.reshape(ids.shape).tolist()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a UTF-8 text file: a header with number, checksum and normal form, then one name a line.

        A backslash, newline or carriage return inside a name is written as `\\\\`, `\\n` or `\\r`. A complete
        new file replaces an older one.
        """
        text = "".join(name.translate(_ESCAPES) + "\n" for name in self.names).encode()
        with atomic_write(path) as aside, open(aside, "wb") as file:
            form = f" {self.normalize}" if self.normalize else ""
            file.write(f"{_HEADER} {len(self)} {zlib.crc32(text):08x}{form}\n".encode())
            file.write(text)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Vocabulary":
        """Reads what `save` wrote; ValueError for another file, or one that does not match its header."""
        with open(local_path(path), "rb") as file:
            header, text = file.readline(), file.read()
        told = re.fullmatch(rb"%b (\d+) ([0-9a-f]{8})(?: (NFK?[CD]))?\r?\n" % _HEADER.encode(), header)
        if told is None:
            raise ValueError(f"{path} is not a vocabulary: it does not begin '{_HEADER} <count> <checksum>'.")
        try:
            lines = text.decode().split("\n")
        except UnicodeDecodeError:
            lines = []
        if (len(lines) - 1, zlib.crc32(text)) != (int(told[1]), int(told[2], 16)) or lines[-1]:
            raise ValueError(
                f"{path} is damaged, cut short, edited or of other line ends: it lacks the "
                f"{told[1].decode()} names or the checksum of its header. Write it again by Vocabulary.save."
            )
        names = (_unescape(line) for line in lines[:-1])
        return cls(names, None if told[3] is None else told[3].decode())


class _Ids(dict):
    """Ids by name, which a name in another form finds, too."""

    get: Any = Mapping.get  # that of a dict does not ask __missing__

    def __init__(self, ids: dict[str, int], vocabulary: Vocabulary):
        super().__init__(ids)
        self._vocabulary = vocabulary

    def __missing__(self, name):
        own = self._vocabulary.normalized(pa.array([name], pa.large_string()))[0].as_py()
        if own == name:
            raise KeyError(name)
        return self[own]


def normal_names(names: pa.Array, form: str) -> pa.Array:
    """Returns names in a normal form of Unicode, without blanks at the ends and marks that are not seen."""
    plain = pc.replace_substring_regex(pc.utf8_normalize(names, form), "[\u00a0\u2007\u202f]", " ")
    plain = pc.replace_substring_regex(plain, "[\u00ad\u200b\u200e\u200f\u2060\ufeff]", "")
    return pc.utf8_trim_whitespace(plain)


def require_vocabulary(vocabulary):
    """Raises ValueError for anything but None and a ``Vocabulary``, such as a list of names."""
    if not isinstance(vocabulary, Vocabulary | None):
        raise ValueError(
            f"vocabulary must be a tfxc.data.Vocabulary, but got {type(vocabulary).__name__}: pass "
            "tfxc.data.Vocabulary(names), where names may be model.class_names."
        )


def name_ids(vocabulary: Vocabulary | None = None) -> Mapping:
    """Returns a map from name to id: the vocabulary's, or one that numbers new names as they come."""
    require_vocabulary(vocabulary)
    if vocabulary is not None:
        return vocabulary.ids
    ids: defaultdict = defaultdict()
    ids.default_factory = ids.__len__
    return ids


def _unescape(line: str) -> str:
    if "\\" not in line:
        return line
    return re.sub(r"\\([\\nr])", lambda escaped: {"n": "\n", "r": "\r"}.get(escaped[1], "\\"), line)
