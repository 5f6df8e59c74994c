"""The callback that searches the hard negatives of a training set anew while training goes on."""

import contextlib
import math
import os
import warnings

import numpy as np

from tfxc._keras.layers import layers_of
from tfxc.arguments import local_path, positive_int
from tfxc.fit_callback import FitCallback
from tfxc.mining.background_search import BackgroundSearch, FinishedSearch, given_vectors, head_vectors
from tfxc.mining.hard_negative_table import HardNegativeTable, Queries
from tfxc.resume.state import digest_of
from tfxc.samplers import HardNegatives
from tfxc.search.faiss_index import empty_index, index_for

_CHECKED_ROWS = 1 << 16  # of vectors, at once
_KEPT = ("_epoch", "_due", "_recall", "_seconds", "_num_failures")


class HardNegativeMining(FitCallback):
    """Renews the table of a ``HardNegatives`` sampler while training goes on; no step waits for it.

    For a table that is used from epoch e on, the queries of epoch e - 2 are kept on disk as the training
    steps compute them. During epoch e - 1 one thread, in time that training leaves idle, builds an index over
    the class vectors (biases in) and searches it. At the start of epoch e, or of the next one after the
    search, the new table takes the old one's place. At its end ``fit`` waits for a search that runs. If a
    search fails (disk full, thread killed), a warning says so and training goes on with the old table.

    ``directory`` always holds a whole table. A training that was interrupted goes on with it if
    ``fit(initial_epoch=...)`` goes on counting epochs; tables of later epochs are removed. Another ``fit`` of
    the same model goes on, too. With another model, such as that of ``change_classes``, or with a sampler of
    another ``num_retrieved``, mining starts anew.

    The logs of an epoch show ``mining/staleness``, the epochs since the table's queries were computed;
    ``mining/recall`` of its search on 256 examples; ``mining/search_seconds``; ``mining/filled``, the share
    of hard slots that held a hard class (raise ``num_retrieved`` if it stays below 1); ``mining/failures``,
    the searches that failed. The first three are NaN without a table of this run.

    Args:
        directory: a local folder for the table int32 [N, num_retrieved] and the queries float32 [N, D].
        num_examples: N; example ids are in [0, N).
        start_epoch: first epoch with hard negatives, at least 2 (epochs count from 0).
        every_epochs: epochs between refreshes.
        curriculum: None, or the number of epochs from ``start_epoch`` on in which the share of hard negatives
            grows from ``1 / curriculum`` to all of ``num_hard``, rounded to whole classes.
        index: "auto" (exact, inverted lists, lists under HNSW), or a FAISS factory string for inner products.
        class_vectors: None to search the head's class vectors; or vectors float32 [L, d] to search
            instead, such as embeddings of the labels' texts, d at most the width of the head's (other columns
            count as 0); or a function without arguments that gives them, which each search asks.

    Raises:
        ValueError: for arguments outside their range; when training starts, for a model without
            ``HardNegatives``, an ``index`` that FAISS does not know, or another table in the directory.

    Example:
        >>> import tempfile
        >>> encoder = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8)])
        >>> model = tfxc.ExtremeClassifier(encoder, head=tfxc.layers.DenseHead(50), k=5,
        ...                                sampler=tfxc.samplers.HardNegatives(2, 8))
        >>> model.compile(tfxc.optimizers.LazyAdam(0.01), loss=tfxc.losses.BinaryCrossentropy())
        >>> x = tfxc.data.with_example_ids(np.zeros([16, 4], np.float32))
        >>> mining = HardNegativeMining(tempfile.mkdtemp(), num_examples=16, start_epoch=2, every_epochs=1)
        >>> callbacks = [mining]  # of model.fit(x, labels, epochs=20, callbacks=callbacks)

    Reference:
        Mehta et al., "ASTRA: Accurate and Scalable ANNS-based Training of Extreme Classifiers", 2024.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        num_examples: int,
        start_epoch: int = 5,
        every_epochs: int = 5,
        curriculum: int | None = None,
        index: str = "auto",
        class_vectors=None,
    ) -> None:
        super().__init__()
        self.directory = local_path(directory)
        self.num_examples = positive_int(num_examples, "num_examples")
        # Queries are collected in one epoch and searched in the next.
        self.start_epoch = positive_int(start_epoch, "start_epoch", least=2)
        self.every_epochs = positive_int(every_epochs, "every_epochs")
        self.curriculum = None if curriculum is None else positive_int(curriculum, "curriculum")
        self.index = index
        self.class_vectors = class_vectors
        self._search = self._trained = None
        self._start_anew()

    def _start_anew(self):
        if self._search is not None:  # a training that was cut off left it
            self._search.stop()
        self._epoch = None  # epochs are counted here, so that a second call of fit goes on
        self._table = self._collected = self._search = self._due = None
        self._recall = self._seconds = math.nan
        self._num_failures = 0

    @contextlib.contextmanager
    def during_fit(self, model, arguments):
        """Leaves no table of these data in the sampler, also when ``fit`` is cut off."""
        try:
            yield
        finally:
            self.let_go()

    def on_train_begin(self, logs=None):
        parts = _hard_negatives_in(getattr(self.model, "sampler", None))
        if len(parts) != 1:
            raise ValueError(
                "HardNegativeMining needs a model with one HardNegatives sampler, alone or in a Mixture: "
                "ExtremeClassifier(..., sampler=tfxc.samplers.HardNegatives(50, 400))."
            )
        table = self._table
        # A table has as many columns as the sampler retrieves.
        is_other_width = table is not None and table.shape[1] != parts[0].num_retrieved
        if self._trained is not self.model or is_other_width:
            self._start_anew()
        if is_other_width:
            table.resume(-1)  # removes its files, which the next table of this folder would refuse
        if self._epoch is None and (self.params or {}).get("epochs", math.inf) <= self.start_epoch:
            warnings.warn(
                f"Hard negatives begin with start_epoch={self.start_epoch} (epochs count from 0), after the "
                f"last of {self.params['epochs']} epochs: until then all draws are uniform. Take a smaller "
                "start_epoch, at least 2, or more epochs.",
                stacklevel=2,
            )
        self._trained, self._sampler = self.model, parts[0]
        self._sampler.table = self._table
        if self.curriculum is None and self._sampler.built:  # an earlier curriculum may have left less
            self._sampler.set_hard_fraction(1.0)

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch = epoch if self._epoch is None else self._epoch + 1
        if not self._sampler.built:
            return  # the first batch of a generator builds the model
        if self._table is None:
            try:
                self._open_table()
            except Exception:
                self._epoch = None  # the next call of fit says at which epoch it begins
                raise
        if self._search is not None and not self._search.running:
            self._adopt()
        if self._search is None and self._collected is not None:
            self._start_search()
        if self._collected is None and self._epoch >= self._due - 2:
            self._start_collecting()
        if self.curriculum is not None:
            share = (self._epoch - self.start_epoch + 1) / self.curriculum
            self._sampler.set_hard_fraction(min(max(share, 0.0), 1.0))

    def on_epoch_end(self, epoch, logs=None):
        if self._table is not None and self._collected is None:
            self._collected = self._table.finish_collecting()
        if logs is not None:
            made_in = None if self._table is None else self._table.epoch
            logs["mining/staleness"] = math.nan if made_in is None else self._epoch - made_in
            logs["mining/recall"] = self._recall
            logs["mining/search_seconds"] = self._seconds
            logs["mining/filled"] = self._sampler.take_filled_fraction() if self._sampler.built else math.nan
            logs["mining/failures"] = self._num_failures

    def on_train_end(self, logs=None):
        had_none = self._search is not None and self._table.epoch is None and self._epoch >= self.start_epoch
        if self._search is not None:
            self._search.wait()
            self._adopt()
        if had_none and self._table.epoch is not None:
            warnings.warn(
                "No step of this fit had hard negatives, all draws were uniform: its epochs were over before "
                f"the first search, of {self._seconds:.3g} seconds. Train for more epochs: another fit with "
                "this callback goes on and has the table from its first step.",
                stacklevel=2,
            )
        self.let_go()

    def let_go(self) -> None:
        """Takes the table from the sampler: the next data may number their examples otherwise."""
        if self._trained is not None:
            self._sampler.table = None

    def state_to_keep(self):
        """What ``BackupAndRestore`` keeps. The table is part of it: a later one may have replaced it."""
        state = {"attributes": {name: getattr(self, name) for name in _KEPT}}
        if self._table is None:
            return state
        search, collecting = self._search, self._table.collecting
        state |= {"rows": self._table.in_use, "rows_epoch": self._table.epoch, "collected": self._collected}
        if collecting is not None:
            state["collecting"] = collecting._replace(values=np.array(collecting.values))
        if search is not None and not search.running and search.found:
            epoch = search.queries.epoch
            state["found"] = [self._table.mapped(epoch), epoch, search.recall, search.seconds]
        elif search is not None:
            state["searched"] = search.queries
        return {name: tuple(part) if isinstance(part, Queries) else part for name, part in state.items()}

    def restore_state(self, state):
        """Restores what ``state_to_keep`` gave. A search that was running starts anew."""
        if self._search is not None:
            self._search.stop()
        self._search = self._collected = None
        self._epoch = state["attributes"]["_epoch"]
        if "rows" in state:
            if self._table is None:
                self._open_table()
            table = self._table
            table.put_back(state["rows"], state["rows_epoch"])
            table.finish_collecting()
            if "collecting" in state:
                *arrays, checked, epoch = state["collecting"]
                table.start_collecting(epoch)
                for kept, values in zip(table.collecting, arrays, strict=False):
                    kept[:] = values
                table.collecting.checked.update(checked)
            if "found" in state:
                rows, epoch, *figures = state["found"]
                table.write([rows], epoch)
                self._search = FinishedSearch(Queries(None, None, None, epoch), *figures)
            if "searched" in state:
                self._collected = Queries(*state["searched"])
                self._start_search()
            if state["collected"] is not None:
                self._collected = Queries(*state["collected"])
        for name, value in state["attributes"].items():
            setattr(self, name, value)

    def _open_table(self):
        sampler = self._sampler
        self._factory = index_for(sampler.num_classes) if self.index == "auto" else self.index
        empty_index(self._factory, sampler.query_dim)  # refuses a string that FAISS does not know
        has_vectors = self.class_vectors is not None and not callable(self.class_vectors)
        self._given = _given(self.class_vectors, sampler) if has_vectors else None
        shape = self.num_examples, sampler.num_retrieved
        classes = digest_of(getattr(self.model, "class_names", None))
        table = HardNegativeTable(self.directory, shape, sampler.query_dim, sampler.num_classes, classes)
        table.resume(self._epoch - 2)
        self._table = sampler.table = table
        last = self._table.epoch
        self._due = self.start_epoch if last is None else max(self.start_epoch, last + 2 + self.every_epochs)

    def _start_collecting(self):
        head = self.model.head
        if head.approximate:
            head.prepare_index()  # queries and class vectors are to be made alike
        if not head.indexable:
            return  # a sparse head's class vectors tell nothing before the first step: the next epoch
        self._due = self._epoch + 2 + self.every_epochs
        try:
            self._table.start_collecting(self._epoch)
        except OSError as error:
            self._report(error)

    def _start_search(self):
        vectors = self._given
        if callable(self.class_vectors):
            vectors = _given(self.class_vectors(), self._sampler)
        elif vectors is None:
            self.model.head.freshen()
            vectors = head_vectors(self.model.head)
        self._search = BackgroundSearch(vectors, self._collected, self._table, self._factory)
        self._collected = None

    def _adopt(self):
        search, self._search = self._search, None
        if not search.found:
            self._report(search.error)
            return
        self._table.swap(search.queries.epoch)
        self._recall, self._seconds = search.recall, search.seconds

    def _report(self, error):
        self._num_failures += 1
        old = "uniform negatives" if self._table.epoch is None else f"the table of epoch {self._table.epoch}"
        warnings.warn(
            f"Epoch {self._epoch}: hard negatives were not renewed ({error}); training goes on with {old}.",
            stacklevel=2,
        )


def _given(vectors, sampler):
    shape, num_classes, dim = np.shape(vectors), sampler.num_classes, sampler.query_dim
    if len(shape) != 2 or shape[0] != num_classes or not 1 <= shape[1] <= dim:
        raise ValueError(f"class_vectors must be [{num_classes}, d] with d from 1 to {dim}, but are {shape}.")
    for start in range(0, num_classes, _CHECKED_ROWS):
        rows = np.asarray(vectors[start : start + _CHECKED_ROWS], np.float32)
        bad = np.flatnonzero(~np.isfinite(rows).all(1))
        if len(bad):
            raise ValueError(f"class_vectors must be finite, but row {start + bad[0]} holds NaN or infinity.")
    return given_vectors(vectors, dim)


def warn_without_mining(sampler, callbacks):
    is_mined = any(isinstance(callback, HardNegativeMining) for callback in callbacks)
    if not is_mined and any(part.table is None for part in _hard_negatives_in(sampler)):
        warnings.warn(
            "HardNegatives has no table, so all its draws are uniform: add "
            "tfxc.callbacks.HardNegativeMining(directory, num_examples=...) to the callbacks of fit.",
            stacklevel=3,
        )


def _hard_negatives_in(sampler):
    """The ``HardNegatives`` in a sampler or None, however deep in mixtures."""
    return [part for part in layers_of(sampler) if type(part) is HardNegatives]
