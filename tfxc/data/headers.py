"""What the first line of a text file says: names of columns, their delimiter, and RecBole's types."""

import csv
import io
import re
from collections.abc import Iterable

DELIMITERS = (",", "\t", ";", "|")
_TYPED = re.compile(r"(.+):(?:token|float)(?:_seq)?")


def plain_names(header: Iterable[str]) -> list[str]:
    """Returns names of columns without blanks around them, and without types if all have one, as in "
    "RecBole."""
    names = [name.strip() for name in header]
    return [name.rpartition(":")[0] for name in names] if is_typed(names) else names


def is_typed(fields: list[str]) -> bool:
    """Whether all fields are names with a type of RecBole, such as `user_id:token`."""
    return bool(fields) and all(map(_TYPED.fullmatch, fields))


def own_names(wanted: list[str], header: list[str]) -> list[str] | None:
    """Returns how a header spells the wanted names, once each, or None if it lacks one of them."""
    plain = plain_names(header)
    if not all(name in header or name in plain for name in wanted):
        return None
    return [name if name in header else header[plain.index(name)] for name in wanted]


def delimiter_of(head: str, wanted: list[str], usual: str) -> str:
    """Returns the delimiter by which the first record of a text has all wanted names, or the usual one."""
    for delimiter in dict.fromkeys((usual, *DELIMITERS)):
        try:
            header = next(csv.reader(io.StringIO(head), delimiter=delimiter), [])
        except csv.Error:
            continue
        if own_names(wanted, header) is not None:
            return delimiter
    return usual
