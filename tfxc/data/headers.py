"""What the first line of a text file says: names of columns, their delimiter, and RecBole's types."""

import csv
import io
import re
from collections.abc import Iterable

from tfxc.data.table import check_columns
from tfxc.data.warn import warn

DELIMITERS = (",", "\t", ";", "|")
USER_NAMES = {"user", "session", "customer", "visitor", "reviewer"}  # as `normalized` returns them
_TYPED = re.compile(r"(.+):(?:token|float)(?:_seq)?")


def plain_names(header: Iterable[str]) -> list[str]:
    """Returns names of columns without blanks around them, and without RecBole's types if all have one."""
    names = [name.strip() for name in header]
    return [name.rpartition(":")[0] for name in names] if is_typed(names) else names


def is_typed(fields: list[str]) -> bool:
    """Whether all fields are names with a type of RecBole, such as `user_id:token`."""
    return bool(fields) and all(map(_TYPED.fullmatch, fields))


def warn_of_lists(own: Iterable[str], source):
    """Warns of columns that hold several values a field, as a header of RecBole says."""
    lists = [name.strip() for name in own if re.search(r":(token|float)_seq\s*$", name)]
    if lists:
        warn(
            f"{source}: the fields of {lists} hold several values each, and are read as one name: write a "
            "row for each value, or read whole sequences with tfxc.data.Sequences.from_lists."
        )


def normalized(name: str) -> str:
    """Returns the name of a column as the names of roles are written: "user" of "User_ID"."""
    return name.lower().replace("_", "").replace(" ", "").removesuffix("id")


def delimiter_hint(fields: Iterable[str]) -> str:
    """Returns what to add to a message about fields split at white space that hold a delimiter, or ""."""
    delimiter = next((own for own in ("::", ",", ";", "|") if own in " ".join(fields)), None)
    return "" if delimiter is None else f", and pass delimiter={delimiter!r}"


def own_names(wanted: list[str], header: list[str], source) -> list[str]:
    """Returns how a header spells the wanted names. Raises ValueError if it lacks one, or has one twice."""
    plain = plain_names(header)
    own = [name if name in header else header[plain.index(name)] for name in wanted if _has(header, name)]
    if len(own) < len(wanted):
        check_columns(wanted, plain, source, " If it has no header, tfxc.data.read_interactions reads it.")
    check_columns([name.strip() for name in own], [name.strip() for name in header], source)
    return own


def delimiter_of(head: str, wanted: list[str], suffix: str) -> str:
    """Returns the delimiter by which the first record of a text has all wanted names, or the usual one."""
    usual = "\t" if suffix in (".tsv", ".inter") else ","
    for delimiter in dict.fromkeys((usual, *DELIMITERS)):
        try:
            header = next(csv.reader(io.StringIO(head, newline=""), delimiter=delimiter), [])
        except csv.Error:
            continue
        if all(_has(header, name) for name in wanted):
            return delimiter
    return usual


def _has(header, name) -> bool:
    return name in header or name in plain_names(header)
