"""Attributes of classes, and which classes pass what a request wants of them."""

import functools
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tfxc.ids import refuse_other_rows, require_rows
from tfxc.search.attribute_values import part_of, read_rows, rows_of


class Attributes(tf.Module):
    """What requests choose classes by, such as a country, a price or tags.

    Strings, integers and booleans are values: ``where_<name>`` [N, V] lists those of which a class must have
    one. Floats are numbers: ``where_<name>_min`` and ``where_<name>_max`` [N, V] are limits that a class may
    meet exactly, in float32; of several limits the tightest counts. One row [1, V] is for all queries. A
    width of 0 restricts nothing, nor does a row of padding alone: "", -1, or NaN for a limit. A class must
    pass whatever is wanted. A value that no class has leaves none.

    Args:
        given: a dict, name -> values of the L classes in the order of their ids: [L]; or, for several values
            a class, ragged [L, None], or [L, W] padded with "" or -1. Integers fit into int32. Each class
            takes room for as many values as the class with most, at most 64.

    Raises:
        ValueError: There is no attribute; a name holds other signs than ASCII letters, digits and
            underscores, or two would be asked for alike; values are missing, of another type or number, or
            too many of one class; a number is NaN.

    Example:
        >>> head = tfxc.layers.DenseHead(4)
        >>> head.build((None, 8))
        >>> attributes = Attributes({
        ...     "country": ["DE", "FR", "DE", "IT"],
        ...     "price": [9.5, 20.0, 30.0, 5.0],
        ...     "tags": tf.ragged.constant([["new"], ["new", "sale"], [], ["sale"]]),
        ... })
        >>> list(attributes.defaults())
        ['where_country', 'where_price_min', 'where_price_max', 'where_tags']
        >>> best = head.top_k(tf.ones([2, 8]), 2, attributes=attributes,
        ...                   where_country=[["DE", "FR"]], where_price_max=[[20.0], [9.0]])
        >>> tf.sort(best.ids, axis=1).numpy().tolist()
        [[0, 1], [-1, -1]]
    """

    def __init__(self, given: Mapping[str, Any]) -> None:
        super().__init__()
        if not isinstance(given, Mapping) or not given:
            raise ValueError(
                'attributes must be a dict of at least one, such as {"country": ["DE", "FR", ...]}, but got '
                f"{'none' if isinstance(given, Mapping) else type(given).__name__}."
            )
        self.parts = [part_of(name, values) for name, values in given.items()]
        for part in self.parts:
            part.require_classes(self.parts[0].table.shape[0], f"{self.parts[0].attribute!r} of")
        asked = [name.lower() for name in self.defaults()]
        if len(set(asked)) < sum(len(part.names) for part in self.parts):
            raise ValueError(f"Two of the attributes {list(given)} would be asked for alike: rename one.")

    def arranged(self, ids) -> "Attributes":
        """The attributes of class ids [P], in their order."""
        return Attributes.of_parts([part.arranged(ids) for part in self.parts])

    def joined(self, more: "Attributes") -> "Attributes":
        """The attributes of these classes, and then those of the others; ValueError for other attributes."""
        own, others = ({part.attribute: part for part in both.parts} for both in (self, more))
        types, given = ({name: part.dtype.name for name, part in parts.items()} for parts in (own, others))
        # Lists that are all empty have no type of their own.
        given |= {name: types[name] for name, part in others.items() if part.is_empty_like(own.get(name))}
        if types != given:
            raise ValueError(f"The classes have the attributes {types}, but what is added has {given}.")
        return Attributes.of_parts([part.joined(others[name]) for name, part in own.items()])

    @classmethod
    def of_parts(cls, parts) -> "Attributes":
        """The attributes that a list of ``Part`` holds."""
        new = object.__new__(cls)
        tf.Module.__init__(new)
        new.parts = parts
        return new

    def require_classes(self, num_classes: int) -> None:
        self.parts[0].require_classes(num_classes, "the head")

    def defaults(self) -> dict[str, tf.Tensor]:
        """The names that requests use, with what restricts nothing, [1, 0] of their type."""
        return {name: tf.zeros([1, 0], part.dtype) for part in self.parts for name in part.names}

    def rows(self, where) -> dict[str, tf.Tensor]:
        """``defaults`` with what a request gives by these names; ValueError for another name or type."""
        known = self.defaults()
        unknown = [name for name in where if name not in known]
        if unknown:
            hint = " Limits need an attribute of floats." if unknown[0].endswith(("_min", "_max")) else ""
            names = ", ".join(known)
            raise ValueError(f"There is no input {unknown[0]}: these attributes take {names}.{hint}")
        return known | {name: rows_of(given, name, known[name].dtype) for name, given in where.items()}

    def wanted(self, where, query):
        """What ``where``, names of ``defaults`` -> [N, V] or [1, V], wants of the classes for a query [N, D].

        ``passes`` takes it: for each attribute tensors of N rows or one. Raises ValueError for another name,
        type or rank, InvalidArgumentError for another number of rows.
        """
        rows, checks = self.rows(where), []
        for name, own in rows.items():
            refuse_other_rows(own, query, name)
            checks += require_rows(own, tf.shape(query)[0], name)
        with tf.control_dependencies(checks):
            return [part.wanted(*(tf.identity(rows[name]) for name in part.names)) for part in self.parts]

    def restricts(self, where):
        """Whether a request gives anything by any name of ``defaults``: a bool scalar."""
        return tf.add_n([tf.size(own) for own in self.rows(where).values()]) > 0

    def passes(self, rows, wanted, width=1):
        """Which classes pass what is ``wanted``: bool [N, S * width], or [1, S * width] of one row of all.

        Rows int32 [N, S] or [1, S] are class ids, or numbers of blocks of ``width`` rows of attributes in the
        order of an index.
        """

        def of_part(part, own):
            return lambda: part.passes(read_rows(part.table, rows, width), *own)

        every = tf.ones([1, width * tf.shape(rows)[1]], tf.bool)
        parts = zip(self.parts, wanted, strict=True)
        passes = [where_restricted(part, own, of_part(part, own), every) for part, own in parts]
        return functools.reduce(tf.logical_and, passes)


def where_restricted(part, wanted, restricted, otherwise):
    """``restricted()`` if a request wants anything of an attribute; most want nothing of most."""
    return tf.cond(tf.reduce_any(part.restricts(*wanted)), restricted, lambda: otherwise)


def passing(attributes, where, query, num_classes):
    """Which classes of a head a request leaves, and whether it leaves any out; both None without attributes.

    It returns a function, as of ``Attributes.passes``, from class ids [N, S] or [1, S]; and a bool scalar.
    Raises ValueError as ``Attributes.wanted``, and for what are no attributes of these classes.
    """
    if attributes is None and not where:
        return None, None
    if not isinstance(attributes, Attributes):
        raise ValueError(
            f"{', '.join(where) or 'A filter'} needs the classes' attributes. Make them once, attributes = "
            "tfxc.search.Attributes({...}), and give attributes=attributes."
        )
    attributes.require_classes(num_classes)
    wanted = lambda: attributes.wanted(where, query)  # noqa: E731
    return lambda ids: attributes.passes(ids, wanted()), attributes.restricts(where)
