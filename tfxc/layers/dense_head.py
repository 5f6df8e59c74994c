"""The dense head: one vector of D floats a class."""

import warnings
from typing import Any, Literal

import tensorflow as tf
from tensorflow.python.saved_model.save_context import in_save_context

from tfxc._keras import keras, register
from tfxc._keras.layers import Untracked, config_of, embeddings_of, found_again, is_embedding
from tfxc._keras.optimizers import part_of, variable_index
from tfxc._keras.weights import add_weight, is_weight, stored_numbers, tf_variable
from tfxc.arguments import number_in, one_of, positive_int
from tfxc.block_initializer import in_blocks
from tfxc.class_rows import BY_MEAN, BY_RULE, ClassRows
from tfxc.ids import check_ids, hits, int32_ids
from tfxc.infinity import infinity_is_meant
from tfxc.layers.dense_blocks import all_logits, dense_reduction
from tfxc.layers.head import Head, class_biases, initializer_of_bias, of_filled_slots, without_empty
from tfxc.losses.classification_loss import ClassificationLoss
from tfxc.losses.reductions import LOGSUMEXP
from tfxc.ops import library
from tfxc.ops.candidate_log_sum_exp import candidate_log_sum_exp
from tfxc.ops.candidate_scores import candidate_scores, normalized
from tfxc.ops.dense_scan import dense_scan
from tfxc.ops.run_on import run_on
from tfxc.ops.table_rows import gather_rows, mark_read_only, refuse_plain_steps
from tfxc.optimizers.row_sparse import RowSparseOptimizer
from tfxc.scored import BestClasses
from tfxc.spare_classes import num_given_of


@register
class DenseHead(Head):
    """A class vector of D floats for each of the L classes: the head to start with.

    ``logit[n, i] = query[n] · table[i] / temperature + bias[i]``; with ``normalize``, query and class
    vectors have length 1 and the logit is their cosine over the temperature.

    As a plain layer (``call``) the head returns all logits. ``ExtremeClassifier`` asks it for nothing that
    holds a ``[N, L]`` tensor.

    Args:
        num_classes: L, the number of classes.
        use_bias: whether each class has a bias.
        normalize: whether query and class vectors are scaled to length 1; then choose a temperature of about
            1 / log L.
        temperature: positive number that divides the inner product.
        tied_to: name of an ``Embedding`` layer of the encoder (or the layer) whose table is shared. A model
            other than ``ExtremeClassifier`` needs the layer itself, which no file holds: build such a model
            by code, and load its weights.
        row_offset: the table row of class 0; 1 for an embedding that keeps row 0 for padding.
        embeddings_initializer: initializer of a table of its own.
        bias_initializer: initializer of the biases. For "which of L labels apply" start where no label
            applies: ``Constant(-1)`` for the squared hinge, ``Constant(log(labels a point / L))`` for the
            binary cross-entropy.
        table_dtype: "float32", or "bfloat16" of 2 bytes a number; an embedding whose table is shared has the
            same. Everything is computed in float32. The optimizers of ``tfxc.optimizers`` round what they
            write up or down at random, by their ``seed``, so that small steps add up in the mean; others are
            refused. A step over all classes has a float32 gradient of the table: take a sampler, or
            ``filter_below``.

    Call arguments:
        query: float [..., D]. The call returns logits float32 [..., L].

    Raises:
        ValueError: for arguments outside their range, or a tied table of another width, dtype or too few
            rows.

    Example:
        >>> head = DenseHead(5, use_bias=True)
        >>> head(tf.ones([2, 3])).shape
        TensorShape([2, 5])
        >>> scores, ids = head.top_k(tf.ones([2, 3]), k=2)
        >>> ids.shape
        TensorShape([2, 2])
        >>> small = DenseHead(5, table_dtype="bfloat16")
        >>> small.build((None, 3))
        >>> small.table.dtype == "bfloat16", small.class_vectors(0, 5).dtype
        (True, tf.float32)

    Reference:
        Press, Wolf, "Using the Output Embedding to Improve Language Models", 2017 (tied tables).
    """

    def __init__(
        self,
        num_classes: int,
        use_bias: bool = False,
        normalize: bool = False,
        temperature: float = 1.0,
        tied_to: str | keras.layers.Layer | None = None,
        row_offset: int = 0,
        embeddings_initializer="glorot_uniform",
        bias_initializer="zeros",
        table_dtype: Literal["float32", "bfloat16"] = "float32",
        **kwargs,
    ) -> None:
        super().__init__(num_classes, **kwargs)
        self.temperature = number_in(temperature, "temperature", "(0, inf)")
        self.row_offset = positive_int(row_offset, "row_offset", least=0)
        if row_offset and tied_to is None:
            raise ValueError(f"row_offset must be 0 for a table of its own (no tied_to), got {row_offset}.")
        self.table_dtype = one_of(table_dtype, "table_dtype", ("float32", "bfloat16"))
        self.use_bias, self.normalize = bool(use_bias), bool(normalize)  # ops and JSON refuse NumPy's bool
        # A config cannot hold a layer object, but its name, by which the layer is found in the encoder.
        self.tied_to = tied_to.name if isinstance(tied_to, keras.layers.Layer) else tied_to
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)
        self.bias_initializer = initializer_of_bias(bias_initializer, use_bias)
        self._shared: Any = None  # the layer whose table is tied, Untracked
        self._is_in_model = False  # an ExtremeClassifier's file tells which layer that is
        if isinstance(tied_to, keras.layers.Layer):
            self._tie(tied_to)

    def get_config(self):
        if self._shared is not None and not self._is_in_model:
            warnings.warn(
                f"The head is tied to {self.tied_to!r} without an ExtremeClassifier, and no file tells which "
                "layer that is: save_weights instead, and load them into a model that is built by code.",
                stacklevel=2,
            )
        names = "use_bias", "normalize", "temperature", "tied_to", "row_offset", "table_dtype"
        own = config_of(self, *names, "embeddings_initializer", "bias_initializer")
        return {**super().get_config(), **own}

    def load_own_variables(self, store):
        """Keras calls this when it loads a model."""
        super().load_own_variables(store if self.table_dtype == "float32" else stored_numbers(store))

    def get_build_config(self):
        """None if tied: when a saved head is read, the encoder with its table is not at hand yet."""
        return None if self.tied_to is not None else super().get_build_config()

    def shared_layers(self, encoder):
        if self._shared is None:
            return {}
        layers = embeddings_of(encoder)
        places = [place for place, layer in enumerate(layers) if layer is self._shared.value]
        if not places:
            raise ValueError(
                f"The head is tied to a layer {self.tied_to!r} that is not in this encoder: tie a new head."
            )
        return {self.tied_to: (self.tied_to, places[0])}

    def share(self, encoder, places=None):
        """As of ``Head``: finds the layer ``tied_to`` in the encoder."""
        if self.tied_to is not None:
            if self._shared is None:
                embeddings = embeddings_of(encoder)
                layers = found_again(embeddings, *(places or {}).get(self.tied_to, (self.tied_to, None)))
                if len(layers) != 1:
                    names = sorted(layer.name for layer in embeddings) or "none (is it built?)"
                    raise ValueError(
                        f"DenseHead(tied_to={self.tied_to!r}): the encoder has no layer of that name with a "
                        f"table, or several. Its embedding layers are {names}: name one, or pass it."
                    )
                self._tie(layers[0])
            self.shared_layers(encoder)  # refuses a table of another encoder
            self._is_in_model = True
        return self

    def _tie(self, embedding):
        if not is_embedding(embedding):
            inside = [layer.name for layer in embeddings_of(embedding)]
            raise ValueError(
                f"tied_to must be an Embedding, but {embedding.name!r} ({type(embedding).__name__}) has no "
                f"table `embeddings`. The embedding layers in it are {inside or 'none'}."
            )
        self._shared, self.tied_to = Untracked(embedding), embedding.name

    def build(self, input_shape):
        dim = input_shape[-1]
        if self.tied_to is None:
            shape = self.num_classes, dim
            rule = in_blocks(self.embeddings_initializer)
            self.table = add_weight(self, "table", shape, rule, dtype=self.table_dtype)
        else:
            self._check_tied(dim)
        if self.table_dtype == "bfloat16":
            refuse_plain_steps(self.table_variable)
        if self.use_bias:
            self.bias = add_weight(self, "bias", (self.num_classes,), self.bias_initializer)
        self.effective_dim = dim + int(self.use_bias)
        super().build(input_shape)

    def _check_tied(self, dim):
        if self._shared is None:
            raise ValueError(
                f"DenseHead(tied_to={self.tied_to!r}) stands alone: give it to ExtremeClassifier, or pass "
                "the Embedding layer itself. Build other models, and copies, by code, and load their weights."
            )
        embedding = self._shared.value
        if not embedding.built:
            embedding.build(None)
        (rows, width), least = embedding.embeddings.shape, self.num_classes + self.row_offset
        dtype = tf_variable(embedding.embeddings).dtype.name
        if width != dim or rows < least or dtype != self.table_dtype:
            raise ValueError(
                f"The table of {self.tied_to!r} is [{rows}, {width}] of {dtype}, but {self.num_classes} "
                f"classes at row_offset={self.row_offset}, queries of width {dim} and this table_dtype need "
                f"[>= {least}, {dim}] of {self.table_dtype}: change the Embedding or the head."
            )
        if getattr(embedding, "mask_zero", False) and self.row_offset == 0 and rows > self.num_classes:
            raise ValueError(
                f"Row 0 of {self.tied_to!r} is that of padding (mask_zero=True), but with row_offset=0 it is "
                "class 0's, and each class has the row before its own: tie the head with row_offset=1."
            )

    @property
    def _table(self):
        if self.tied_to is None:
            return self.table
        table = self._shared.value.embeddings
        if not is_weight(table):
            raise ValueError(
                f"The table of {self.tied_to!r} is no weight, but computed (enable_lora): leave that out."
            )
        return table

    @property
    def table_variable(self) -> tf.Variable:
        """The ``tf.Variable`` [rows, D] that holds the class vectors, own or tied."""
        return tf_variable(self._table)

    def check(self, sampler=None, loss=None, optimizer=None):
        if loss is not None and loss.filter_below is not None and loss.over_classes is not LOGSUMEXP:
            raise ValueError(
                f"filter_below={loss.filter_below} is a probability of the softmax, but "
                f"{type(loss).__name__} sums something else: leave it out, or take SoftmaxCrossentropy."
            )
        is_rounded = self.table_dtype != "float32" and optimizer is not None
        if is_rounded and variable_index(optimizer, self._table) is not None:
            rule = part_of(optimizer, self._table)
            if not isinstance(rule, RowSparseOptimizer):
                raise ValueError(
                    f"{type(rule).__name__} rounds to the nearest number, and would lose small steps of a "
                    "bfloat16 table: take tfxc's LazyAdam, LazySGD or RowwiseAdagrad, or no table_dtype."
                )

    def class_rows(self):
        biases = [ClassRows(self.bias, filled=BY_MEAN)] if self.use_bias else []
        return [ClassRows(self._table, self.row_offset, BY_RULE), *biases]

    def _scaled(self, query):
        query = tf.cast(query, tf.float32)
        if self.normalize:
            query = normalized(query)
        return query if self.temperature == 1.0 else query / self.temperature

    def with_bias_column(self, query) -> tf.Tensor:
        """Scaled queries [N, D], and 1 for the bias."""
        return tf.pad(query, [[0, 0], [0, 1]], constant_values=1.0) if self.use_bias else query

    def effective_query(self, query) -> tf.Tensor:
        """As of ``Head``: scaled queries, and 1 for the bias."""
        return self.with_bias_column(self._scaled(query))

    def class_vectors(self, start, stop):
        if not in_save_context():
            return super().class_vectors(start, stop)
        # Nobody trains a served table, so reading it whole copies nothing.
        first, last = start + self.row_offset, stop + self.row_offset
        rows = tf.convert_to_tensor(self.table_variable)[first:last]
        return self.vectors(rows, tf_variable(self.bias)[start:stop] if self.use_bias else None)

    def class_vectors_of(self, class_ids) -> tf.Tensor:
        """As of ``Head``: normalised rows, and the bias as last column."""
        rows = self._rows(class_ids)
        if not self.use_bias:
            return self.vectors(rows)
        return self.vectors(rows, tf.gather(tf_variable(self.bias), class_ids))

    def _rows(self, class_ids):
        """Raw rows [n, D]; a tied table gets a gradient of the same kind as the encoder's lookups give."""
        read = gather_rows if self.tied_to is None else tf.gather
        return read(self.table_variable, tf.add(class_ids, self.row_offset))

    def vectors(self, rows, bias=None) -> tf.Tensor:
        """Class vectors [n, effective_dim] from raw rows [n, D] and, if the head has them, biases [n]."""
        rows = tf.cast(rows, tf.float32)
        if self.normalize:
            rows = normalized(rows)
        return tf.concat([rows, tf.cast(bias, tf.float32)[:, tf.newaxis]], 1) if self.use_bias else rows

    def score(self, query, class_ids):
        self.require_width(query)
        query, class_ids = self._scaled(query), int32_ids(class_ids, self.num_classes)
        if class_ids.shape.rank == 1 or self.tied_to is not None:
            # The op checks against the rows of the table, and a tied one may have more rows than classes.
            class_ids = check_ids(class_ids, self.num_classes, "class")
        if class_ids.shape.rank == 1:
            logits = self._score_shared(query, class_ids)
        else:
            options = self.normalize, self.row_offset
            own = lambda query, ids: [candidate_scores(self.table_variable, query, ids, *options)]  # noqa: E731
            (logits,) = self._by_table(own, query, class_ids)
        if self.use_bias:
            with tf.control_dependencies([logits]):  # the op names bad ids
                logits += class_biases(self.bias, class_ids)
        return logits

    def _by_table(self, function, *inputs):
        """``function(*inputs)``, a list of tensors made of table and biases.

        The gradient of a tied bfloat16 table is bfloat16, too: TensorFlow adds it to that of the encoder's
        lookups, and adds gradients of one dtype only.
        """
        if self.tied_to is None or self.table_dtype == "float32":
            return function(*inputs)
        return run_on(self.table_variable.device, function, list(inputs), self._variables())

    def _variables(self):
        return [self.table_variable] + ([tf_variable(self.bias)] if self.use_bias else [])

    def candidates(self, query, labels, class_ids, log_expected_count, reduction):
        """As of ``Head``; the op of the log-sum-exp reads each candidate's row once, for both directions."""
        is_known = class_ids.shape.rank == 2 and reduction.kernel == LOGSUMEXP.kernel
        is_mixed = self.tied_to is not None and self.table_dtype != "float32"
        is_read_in_place = not is_mixed and library.takes_table(self.table_variable)
        if not (is_known and is_read_in_place):
            return super().candidates(query, labels, class_ids, log_expected_count, reduction)
        if reduction.without_hits:
            class_ids = tf.where(hits(class_ids, labels) >= 0, -1, class_ids)
        class_ids, _ = without_empty(class_ids, log_expected_count)
        if self.tied_to is not None or self.use_bias:
            labels, class_ids = (check_ids(ids, self.num_classes, "class") for ids in (labels, class_ids))
        biases = class_biases(self.bias, class_ids) if self.use_bias else 0.0
        with infinity_is_meant():
            offsets = biases - log_expected_count
        given = self._scaled(query), labels, class_ids, offsets
        logits, log_sum = candidate_log_sum_exp(self.table_variable, *given, self.normalize, self.row_offset)
        return (logits + class_biases(self.bias, labels) if self.use_bias else logits), log_sum

    def _score_shared(self, query, class_ids):
        ids, where = of_filled_slots(class_ids)
        rows = tf.cast(self._rows(ids), tf.float32)
        if self.normalize:
            rows = normalized(rows)
        rows = tf.scatter_nd(where, rows, [tf.size(class_ids), rows.shape[-1]])
        return tf.matmul(query, rows, transpose_b=True)

    def reduce(self, query, labels, loss: ClassificationLoss) -> tuple[tf.Tensor, tf.Tensor]:
        """As of ``Head``; the gradient of the table is one dense tensor, or the rows that a filter leaves."""

        def reduction(query, labels):
            return dense_reduction(self, loss, query, labels, self._variables())

        return self._by_table(reduction, self._scaled(query), labels)

    def _all_logits(self, query):
        if self.table_dtype == "float32":
            return super()._all_logits(query)
        every = lambda query: [all_logits(self, query, self._variables())]  # noqa: E731
        return self._by_table(every, self._scaled(query))[0]

    @property
    def scan_options(self) -> dict[str, Any]:
        """How ``dense_scan`` is to read the table."""
        return config_of(self, "num_classes", "row_offset", "normalize")

    def _scan(self, query, **options):
        mark_read_only(self.table_variable)
        bias = tf.convert_to_tensor(tf_variable(self.bias)) if self.use_bias else tf.zeros([0])
        handle = self.table_variable.handle
        return dense_scan(self._scaled(query), handle, bias, **self.scan_options, **options)

    def best(self, query, k, exclude):
        if not library.takes_table(self.table_variable):
            return super().best(query, k, exclude)
        return self._scan(query, k=k, exclude=exclude)[1:]

    def losses_and_best(self, query, labels, loss, k, exclude=None):
        kernel = loss.over_classes.kernel
        if kernel is None or num_given_of(self) is not None or not library.takes_table(self.table_variable):
            return super().losses_and_best(query, labels, loss, k, exclude)
        reduced, *best = self._scan(query, reduction=kernel, k=k, exclude=exclude)
        return loss.combine(reduced, self.score(query, labels), labels >= 0), BestClasses(*best)


def tied_row_offset(head: Head) -> int | None:
    """The row of class 0 in the embedding that a head is tied to; None for a head that shares no table."""
    own = getattr(head, "head", head)  # of a wrapper
    return own.row_offset if isinstance(own, DenseHead) and own.tied_to is not None else None
