"""An inverted index over a head's class vectors, searched by TensorFlow's own ops."""

from typing import Any, Literal

import numpy as np
import tensorflow as tf

from tfxc._keras import keras, register
from tfxc._keras.layers import Untracked, config_of
from tfxc._keras.weights import add_weight, constant, tf_variable
from tfxc.aligned import taken_over
from tfxc.arguments import count_tensor, number_in, one_of, positive_int, require_count
from tfxc.class_vectors import blocks, effective_query_of, require_indexable, shared_by_queries
from tfxc.ids import padded_ids, require_queries
from tfxc.infinity import infinity_is_meant
from tfxc.require import clean_errors
from tfxc.scored import BestClasses
from tfxc.search.attributes import Attributes
from tfxc.search.attributes_in_cells import AttributesInCells
from tfxc.search.cell_search import CellSearch
from tfxc.search.cells import cut_into_cells, gather_around
from tfxc.search.made_on_load import MadeOnLoad
from tfxc.search.recall import Wanted
from tfxc.search.scanned import Answers, most_promising
from tfxc.search.tiles import DTYPES, STORED_AS, Tiles, as_columns, lay_out
from tfxc.search.tuning import cheapest, fewest_probes, scan_steps

_NUM_PROBES = 8
# How far class vectors may be from the stored ones, as a share of the largest number of each vector without
# its bias: a head that computes them may round otherwise on another machine.
_COMPUTED = 1e-3
_WEIGHTS = *Tiles._fields, "answers_mean", "answers_covariance"


@register
class InvertedIndex(keras.layers.Layer):
    """Finds the best classes of a query among the classes of a few cells, many times faster than among all.

    k-means cuts the class vectors into cells of similar direction, long vectors apart from short ones. A
    query z ranks the members of the most promising cells, those with the largest ``z · mean_c + |z| ·
    reach_c``. Classes that answer many queries, such as frequent ones, are in no cell: one dense product
    scores all of them for every query. Each query reads ``num_scanned`` classes, and as many others as
    ``num_probes`` cells of mean size have. ``recall`` measures the share of the best that it finds, ``tune``
    chooses the numbers that reach a given share.

    The index keeps a copy of the class vectors, and nothing of the head. Give it to
    ``model.export(path, index=index)``, or call ``top_k``. ``rebuilt`` makes the next one after training or a
    change of the classes.

    Args:
        num_cells: about how many directions k-means separates, at most L; None for about twice the root of L.
            Each direction becomes up to two cells; after ``build_from`` the actual number of cells.
        num_probes: cells a query reads, in [1, num_cells]; None for 8.
        dtype: of the rows: "float32"; "bfloat16"; or "int8", with one scale a row. The latter two keep the
            difference of a row from the mean of its cell, in half or a quarter of the bytes; scanned classes
            then have 16 bits, with one scale each.
        num_scanned: classes that are scored for every query, in [0, L); with None ``tune`` chooses it, and
            ``build_from`` takes 0.

    Call arguments:
        query: float [N, E], a head's ``effective_query``.

    Returns:
        ``call`` returns the 10 best, as ``top_k`` does.

    Raises:
        ValueError: An argument is outside its range, or the index is used before ``build_from``.

    Example:
        >>> head = tfxc.layers.DenseHead(1000)
        >>> head.build((None, 16))
        >>> index = InvertedIndex(num_cells=20, num_probes=5)
        >>> index.build_from(head)
        >>> index.top_k(tf.ones([2, 16]), k=3).ids.shape
        TensorShape([2, 3])
        >>> 0 <= index.recall(head, tf.random.normal([8, 16]), k=3) <= 1
        True

    Reference:
        Sivic, Zisserman, "Video Google: A Text Retrieval Approach to Object Matching in Videos", 2003;
        Dhillon, Modha, "Concept Decompositions for Large Sparse Text Data Using Clustering", 2001 (k-means of
        directions); Yan et al., "Norm-Ranging LSH for Maximum Inner Product Search", 2018 (lengths apart);
        Jégou, Douze, Schmid, "Product Quantization for Nearest Neighbor Search", 2011 (codes of the
        difference from the centre); Bruch, Krishnan, Nardini, "Optimistic Query Routing in Clustering-based
        Approximate Maximum Inner Product Search", 2024 (which cells are read); Liu et al., "Understanding and
        Improving Proximity Graph Based Maximum Inner Product Search", 2020 (few classes answer most queries).
    """

    def __init__(
        self,
        num_cells: int | None = None,
        num_probes: int | None = None,
        dtype: Literal["float32", "bfloat16", "int8"] = "float32",
        num_scanned: int | None = None,
        **kwargs,
    ) -> None:
        super().__init__(dtype="float32", **kwargs)
        num_scanned = None if num_scanned is None else positive_int(num_scanned, "num_scanned", least=0)
        num_cells = None if num_cells is None else positive_int(num_cells, "num_cells")
        num_probes = None if num_probes is None else positive_int(num_probes, "num_probes")
        if num_cells is not None and num_probes is not None and num_probes > num_cells:
            raise ValueError(f"num_probes must be in [1, num_cells={num_cells}], but got {num_probes}.")
        self.num_cells: int | Any = num_cells  # like the other numbers, None until the index is built
        self.num_probes: int | Any = num_probes
        self.rows_dtype = one_of(dtype, "dtype", DTYPES)
        self.num_scanned: int | Any = num_scanned
        self.supports_jit = False

    def get_config(self):
        num_probes = self.num_probes
        if self.built:  # a user may set more, to search all cells, but the constructor refuses that
            num_probes = min(num_probes, self.num_cells)
        config = super().get_config() | config_of(self, "num_cells", "num_scanned")
        return {**config, "num_probes": num_probes, "dtype": self.rows_dtype}

    def get_build_config(self):
        """The shapes of the weights, which depend on the class vectors."""
        return {"shapes": [list(own.shape) for own in self.stored]} if self.built else None

    def build(self, input_shape=None):
        """Raises ValueError: an index is built from a head, not from the shape of its input."""
        self._require_built()

    def build_from_config(self, config):
        """Creates the weights of a saved index; Keras calls this when it loads a model."""
        if config:
            self._add_weights(config["shapes"])

    def _add_weights(self, shapes, values=None):
        """Makes the weights, of arrays that nobody writes any more, or of zeros."""
        rows_dtype = STORED_AS.get(self.rows_dtype, self.rows_dtype)
        columns_dtype = "float32" if self.rows_dtype == "float32" else "int16"
        dtypes = ["float32", "float32", "int32", "int32", "int32", rows_dtype, STORED_AS["bfloat16"]]
        dtypes += ["int32", columns_dtype, "float32", "float32", "float32"]
        for number, (name, shape, dtype) in enumerate(zip(_WEIGHTS, shapes, dtypes, strict=True)):
            start = "zeros" if values is None else constant(taken_over(values[number].view(dtype)))
            setattr(self, name, add_weight(self, name, shape, start, dtype, trainable=False))
        self.num_classes = self.places.shape[0]
        parts = self._parts
        columns = lambda: as_columns(parts.scanned_columns, parts.scanned_scales)  # noqa: E731
        self._search = Untracked(CellSearch(parts, columns))
        self.built = True

    @property
    def _parts(self):
        return Tiles(*(tf_variable(getattr(self, name)) for name in Tiles._fields))

    @property
    def stored(self) -> list[tf.Variable]:
        """Its variables in their order: those of ``Tiles``, and the moments of answers."""
        return [tf_variable(getattr(self, name)) for name in _WEIGHTS]

    @property
    def spread(self) -> float:
        """The mean squared reach of the classes' cells: it grows as vectors come that fit no cell well."""
        parts = self._parts
        sizes = np.add.reduceat((parts.members.numpy() >= 0).sum(1), parts.offsets.numpy()[:-1])
        return float(np.average(parts.reaches.numpy() ** 2, weights=sizes))

    def build_from(self, head) -> None:
        """Cuts the head's class vectors into cells and copies them. Long parts tell of their progress.

        Raises:
            ValueError: The head has no class vectors, one is not finite, or the index is built already.
        """
        if self.built:
            raise ValueError("The index is built already: make a new InvertedIndex for other class vectors.")
        require_indexable(head)
        answers = Answers.of_any(head)
        scanned = most_promising(head, answers, self._checked_num_scanned(head))
        self._take(head, cut_into_cells(head, self._usual_num_cells(head)), scanned, answers)

    def rebuilt(self, head) -> "InvertedIndex":
        """A new index of the head after training or ``change_classes``, around the centres of this one.

        It runs no k-means: build from scratch once ``recall`` falls. The head may have any number of classes.
        The new index has as many probes and scanned classes.

        Raises:
            ValueError: as ``build_from``; or the head has vectors of another width, or the index is empty.
        """
        self._require_built()
        require_indexable(head)
        self._require_width(head)
        index = InvertedIndex(num_probes=self.num_probes, dtype=self.rows_dtype)
        answers = Answers(*(tf_variable(own).numpy() for own in (self.answers_mean, self.answers_covariance)))
        cells = gather_around(head, self._parts.centres.numpy())  # first: it names a vector too long
        scanned = most_promising(head, answers, min(self.num_scanned, head.num_classes - 1))
        index._take(head, cells, scanned, answers)
        return index

    def _checked_num_scanned(self, head):
        if self.num_scanned is not None and self.num_scanned >= head.num_classes:
            raise ValueError(
                f"num_scanned must be in [0, {head.num_classes}), below the number of classes, but got "
                f"{self.num_scanned}. To score all classes, export the model without an index."
            )
        return self.num_scanned or 0

    def _take(self, head, cells, scanned, answers):
        scanned = np.sort(scanned)
        self.hold(lay_out(head, cells.without(scanned), scanned, self.rows_dtype), answers)

    def hold(self, tiles: Tiles, answers: Answers) -> None:
        """Makes its weights of arrays that nobody writes any more."""
        values = [*tiles, *(moment.astype(np.float32) for moment in answers)]
        self._add_weights([value.shape for value in values], values)
        self.num_scanned = len(tiles.scanned)
        self.num_cells = len(tiles.centres)
        self.num_probes = min(self.num_probes or _NUM_PROBES, self.num_cells)

    def call(self, query):
        return self.top_k(query, min(10, self.num_classes))

    def top_k(
        self, query, k: int | tf.Tensor, exclude=None, allow=None, num_probes: int | tf.Tensor | None = None
    ) -> BestClasses:
        """The k best of the scanned classes and of the probed cells. Queries that find fewer probe more.

        Args:
            query: float [N, E], ``head.effective_query(query)`` of a head's queries.
            k, exclude, allow: as of ``Head.top_k``.
            num_probes: None for the index's own, or an int or int32 scalar, clamped to the number of cells;
                with all cells nothing is missed.

        Returns:
            ``BestClasses`` as of ``Head.top_k``; where equal scores do not all fit, any of them.

        Raises:
            ValueError, tf.errors.InvalidArgumentError: as ``Head.top_k``, and for ``num_probes`` below 1.
        """
        self._require_built()
        query = tf.cast(query, tf.float32)
        require_queries(query)
        if query.shape[-1] not in (self.centres.shape[1], None):
            raise ValueError(
                f"The index holds vectors of width {self.centres.shape[1]}, but the query has the shape "
                f"{query.shape}: give it head.effective_query(query), of the head it was built from."
            )
        require_count(k, "k", self.num_classes)
        num_probes = self.num_probes if num_probes is None else num_probes
        require_count(num_probes, "num_probes")
        # There are no more cells than classes.
        k, num_probes = count_tensor(k, self.num_classes), count_tensor(num_probes, self.num_classes)
        # Tensors: the search would be traced again for every list.
        exclude = tf.zeros([1, 0], tf.int32) if exclude is None else padded_ids(exclude, "exclude")
        allow = padded_ids(allow, "allow")
        with clean_errors(), infinity_is_meant():  # -inf is the score of no class
            return BestClasses(*self._search.value.top_k(query, k, exclude, allow, num_probes))

    def for_serving(self, attributes: Attributes | None = None) -> CellSearch:
        """The search for a graph that is saved, and that runs only once it is loaded.

        The saved module must hold its ``columns`` and ``attributes`` and the weights of this layer. A module
        that makes the columns on load cannot be loaded in the scope of a ``MirroredStrategy``, nor be frozen.
        """
        self._require_built()
        parts, columns = self._parts, self._search.value.columns
        if self.rows_dtype != "float32" and self.num_scanned:
            columns = MadeOnLoad(as_columns, parts.scanned_columns, parts.scanned_scales)
        in_cells = None if attributes is None else AttributesInCells(attributes, parts)
        return CellSearch(parts, columns, in_cells)

    def _require_built(self):
        if not self.built:
            raise ValueError("The index is empty: call build_from(head), or tune(head, queries), first.")

    def require_same(self, head) -> None:
        """Raises ValueError for a head with another number of classes, or vectors of another width."""
        self._require_built()
        if self.num_classes != head.num_classes:
            raise ValueError(
                f"The index holds {self.num_classes} classes, but the head {head.num_classes}: make an index "
                "of this head, by rebuilt(head) or a new InvertedIndex."
            )
        self._require_width(head)

    def require_built_from(self, head) -> None:
        """Raises ValueError for a head where the vector of any class differs from that in the index."""
        require_indexable(head)
        self.require_same(head)
        varies, search = shared_by_queries(head) == 0, self._search.value
        columns = search.columns()
        for start, vectors in blocks(head, title="Compared"):
            class_ids = tf.range(start, start + len(vectors))
            largest = np.abs(np.where(varies, vectors, 0)).max(1, keepdims=True)
            allowed = search.roundings(class_ids, vectors).numpy() + _COMPUTED * largest
            differences = np.abs(search.vectors(class_ids, columns).numpy() - vectors)
            changed = ~(differences <= allowed).all(1)
            if changed.any():
                raise ValueError(
                    "The index was built from other class vectors than the head has, starting with class "
                    f"{start + changed.argmax()}: after training or change_classes make the next index, by "
                    "index = index.rebuilt(model.head), or a new InvertedIndex."
                )

    def _require_width(self, head):
        if self.centres.shape[1] != head.effective_dim:
            raise ValueError(
                f"The index holds vectors of width {self.centres.shape[1]}, but those of the head have "
                f"{head.effective_dim}: make a new InvertedIndex of this head."
            )

    def recall(self, head, queries, k: int = 10, exclude=None) -> float:
        """The share of the exact k best classes that the index finds, over some queries.

        A class that scores as high as the exact k-th best, such as a copy of it, counts as one of the best.

        Args:
            head: the head it was built from.
            queries: float [n, D], as the head takes them: ``model.queries(x)``.
            k: how many classes a query, in [1, L].
            exclude: as of ``top_k``: classes that both searches leave out, such as the queries' histories.

        Raises:
            ValueError: There is no query, a query is not finite, or queries have another rank; the head has
                other classes; ``exclude`` leaves fewer than k classes.
        """
        require_indexable(head)
        self.require_same(head)
        return Wanted.of(head, queries, k, exclude).recall(self, self.num_probes)

    def tune(self, head, queries, k: int = 10, recall: float = 0.95, exclude=None) -> float:
        """Chooses the number of probes, and builds an empty index: the cheapest that reaches a recall.

        A query costs one inner product for each cell and for each member that it reads, and a tenth for each
        scanned class. ``tune`` compares half, once and twice the number of cells, as long as more cost less,
        up to a quarter of all classes scanned, and long vectors apart or not; of more than a million classes
        it compares a sample. It keeps a number of cells or scanned classes that the index was given.

        Args:
            head: as of ``build_from``.
            queries: float [n, D], as of ``recall``; a thousand or more that resemble those to come.
            k: how many classes a query.
            recall: the share of the exact k best classes to find, in (0, 1].
            exclude: as of ``recall``: tune for what requests will exclude.

        Returns:
            The recall that is reached: less than wanted only where the rounding of the rows loses it.

        Raises:
            ValueError: ``recall`` is outside (0, 1]; else as the method ``recall``, or as ``build_from``.
        """
        recall = number_in(recall, "recall", "(0, 1]")
        require_indexable(head)
        if self.built:
            self.require_same(head)
        wanted = Wanted.of(head, queries, k, exclude)
        if not self.built:
            usual = self._usual_num_cells(head)
            every = {usual} if self.num_cells else {usual // 2 or 1, usual, min(2 * usual, head.num_classes)}
            steps = scan_steps(head.num_classes)
            if self.num_scanned is not None:
                steps = [self._checked_num_scanned(head)]
            query = effective_query_of(head, wanted.queries).numpy()
            self._take(head, *cheapest(head, query, wanted.best, recall, every, steps))
        recall_of = lambda num_probes: wanted.recall(self, num_probes)  # noqa: E731
        self.num_probes, found = fewest_probes(recall_of, recall, self.num_cells)
        return found

    def _usual_num_cells(self, head):
        return min(self.num_cells or 2 ** round(np.log2(2 * head.num_classes**0.5)), head.num_classes)
