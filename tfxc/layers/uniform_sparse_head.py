"""The uniformly sparse head: every class reads K of the E inputs."""

import numpy as np
import tensorflow as tf

from tfxc._keras import keras, register
from tfxc._keras.layers import config_of
from tfxc._keras.weights import add_counter, add_weight, constant, tf_variable
from tfxc.arguments import number_in, positive_int, seed_or_drawn
from tfxc.class_rows import BY_MEAN, ClassRows
from tfxc.ids import int32_ids
from tfxc.layers.head import Head, class_biases, initializer_of_bias
from tfxc.losses.classification_loss import ClassificationLoss
from tfxc.ops.sparse_head import sparse_head_candidates, sparse_head_logits, sparse_head_reduce
from tfxc.optimizers.slots import reset_slots
from tfxc.sparsity import group_norms, grow, random_topology, smallest
from tfxc.sparsity.projection import basis_of, follow

_MOST_DIRECTIONS = 128


@register
class UniformSparseHead(Head):
    """Each of the L classes reads exactly K of the E inputs: 8 bytes a weight, and 8 more for Adam.

    ``logit[n, l] = Σ_k weights[l, k] · query[n, indices[l, k]] + bias[l]``, where the K inputs of a class are
    distinct. The head draws the connections at random; ``tfxc.callbacks.SparseEvolution`` moves them while
    the model trains. Classes need many inputs to choose from: put a ``Dense(16384, activation="relu")`` in
    front, with dropout of 0.1 to 0.2, as in the paper. With ``tfxc.losses.SquaredHinge`` the gradient is
    exactly 0 where the margin holds, and the op skips it. With a sampler a step does not depend on L.

    Samplers and indices that look at class vectors (``MIDX``, ``HardNegatives``, ``InvertedIndex``) see the
    weights projected on 128 directions in which the queries of recent training steps differ, biases in. The
    inner products are the logits but for the part of a query outside these directions; losses, ``top_k`` and
    diagnostics read the logits themselves. The directions are chosen anew whenever an index is built.

    With ``group_size`` G above 1, G classes in a row read the same K inputs, with weights of their own:
    ``logit[n, l] = Σ_k weights[l, k] · query[n, indices[l // G, k]] + bias[l]``. That takes less time and
    memory, but a group has one choice of inputs (docs/benchmarks/tagging.md says what it costs).
    ``tfxc.sparsity.group_classes`` numbers the classes so that those which share labels share a group.

    Args:
        num_classes: L.
        fan_in: K, in [1, E]; 32 or 64 in the paper.
        group_size: G, at least 1; the compiled op computes 16 classes at once. Where G does not divide L, the
            last group is smaller.
        use_bias: whether each class has a bias; for "which of L labels apply" it should.
        bias_initializer: initializer of the biases. For "which of L labels apply" start where no label
            applies: ``Constant(-1)`` for the squared hinge, ``Constant(log(labels a point / L))`` for the
            binary cross-entropy.
        seed: int, at least 0, of the first connections and of those that grow later; default: from Python's
            ``random``. Give one where several processes train a model that its first step builds.

    Call arguments:
        query: float [..., E]. The call returns logits float32 [..., L].

    Raises:
        ValueError: for arguments outside their range.

    Example:
        >>> head = UniformSparseHead(1000, fan_in=4, seed=1)
        >>> head(tf.ones([2, 64])).shape
        TensorShape([2, 1000])
        >>> scores, ids = head.top_k(tf.ones([2, 64]), k=5)
        >>> ids.shape
        TensorShape([2, 5])

    Reference:
        Schultheis, Babbar, "Towards Memory-Efficient Training for Extremely Large Output Spaces -- Learning
        with 670k Labels on a Single Commodity GPU", 2023; groups: HASTE, arXiv 2606.01117, 2026.
    """

    max_block_size = 1 << 17  # each block lays the queries out anew, which pays with many classes only

    def __init__(
        self,
        num_classes: int,
        fan_in: int,
        group_size: int = 1,
        use_bias: bool = False,
        bias_initializer="zeros",
        seed: int | None = None,
        **kwargs,
    ) -> None:
        super().__init__(num_classes, **kwargs)
        self.fan_in = positive_int(fan_in, "fan_in")
        self.group_size = positive_int(group_size, "group_size")
        self.use_bias = use_bias
        self.bias_initializer = initializer_of_bias(bias_initializer, use_bias)
        self.seed = positive_int(seed_or_drawn(seed), "seed", least=0)

    def get_config(self):
        names = "fan_in", "group_size", "use_bias", "bias_initializer", "seed"
        return {**super().get_config(), **config_of(self, *names)}

    def build(self, input_shape):
        self.num_inputs = input_shape[-1]
        if self.fan_in > self.num_inputs:
            raise ValueError(
                f"fan_in is {self.fan_in}, but there are only {self.num_inputs} inputs to read: choose at "
                f"most {self.num_inputs}, or put a wide Dense(..., activation='relu') in front of the head."
            )
        self.seed = _of_first_process(self.seed)  # else each process would grow other connections
        shape = (self.num_classes, self.fan_in)
        num_groups = -(-self.num_classes // self.group_size)
        topology = random_topology(num_groups, self.fan_in, self.num_inputs, self.seed)
        self.kernel = add_weight(self, "kernel", shape, constant(self._random_weights(shape)))
        connections = constant(topology)
        self.indices = add_weight(self, "indices", topology.shape, connections, "int32", trainable=False)
        if self.use_bias:
            self.bias = add_weight(self, "bias", (self.num_classes,), self.bias_initializer)
        self.num_rewires = add_weight(self, "num_rewires", (), dtype="int64", trainable=False)
        num_directions = min(_MOST_DIRECTIONS, self.num_inputs)
        self.effective_dim = num_directions + int(self.use_bias)
        first = np.eye(num_directions, self.num_inputs, dtype=np.float32)
        self.directions = add_weight(self, "directions", first.shape, constant(first), trainable=False)
        self.query_moments = add_weight(self, "query_moments", first.shape[::-1], trainable=False)
        # Training steps so far, and when the directions were chosen.
        self.num_observed = add_counter(self, "num_observed", aggregation="only_first_replica")
        self.num_known = add_counter(self, "num_known", aggregation="only_first_replica")
        super().build(input_shape)

    def _random_weights(self, shape):
        """Uniform weights of variance 0.001 / K: nothing pulls back a rare class's, so large ones would stay.

        A Keras initializer would take L for the fan-in, and three times the memory.
        """
        weights = np.random.default_rng([self.seed, 1]).random(shape, np.float32)
        weights -= 0.5
        weights *= np.float32((12.0 * 0.001 / self.fan_in) ** 0.5)
        return weights

    def _weights(self):
        """Weights [L, K] and indices [ceil(L / G), K] as variables, and the biases [L], [0] without."""
        bias = tf.convert_to_tensor(tf_variable(self.bias)) if self.use_bias else tf.zeros([0])
        return _copy_of(self.kernel), _copy_of(self.indices), bias

    @property
    def approximate(self):
        return self.built and self.num_inputs > _MOST_DIRECTIONS

    @property
    def indexable(self):
        """Whether class vectors tell of the logits: once the head has seen queries of training steps."""
        return not self.approximate or int(tf_variable(self.num_known).numpy()) > 0

    def observe(self, query):
        if not self.approximate:
            return
        num_observed, moments = tf_variable(self.num_observed), tf_variable(self.query_moments)
        num_observed.assign_add(1)
        follow(moments, tf.stop_gradient(query), num_observed.read_value(), self.seed)

    def prepare_index(self):
        """Chooses the directions anew, unless no step came since they were chosen."""
        num_observed, num_known = tf_variable(self.num_observed), tf_variable(self.num_known)
        if int(num_known.numpy()) != int(num_observed.numpy()):
            directions = tf_variable(self.directions)
            directions.assign(basis_of(tf_variable(self.query_moments).numpy(), directions.numpy()))
            num_known.assign(num_observed)

    def config_for(self, old_ids):
        if self.group_size > 1:
            raise ValueError(
                f"Classes with group_size={self.group_size} cannot change: train anew, or with group_size=1."
            )
        return super().config_for(old_ids)

    def class_rows(self):
        # The mean of classes that read different inputs means nothing: new classes start as all did at first.
        biases = [ClassRows(self.bias, filled=BY_MEAN)] if self.use_bias else []
        return [ClassRows(self.kernel), ClassRows(self.indices), *biases]

    def blocks(self, query):
        weights = self._weights()
        return lambda start, stop: sparse_head_logits(query, *weights, start, stop, self.group_size)

    def score(self, query, class_ids):
        self.require_width(query)  # the op would not notice a wider one
        each = class_ids = int32_ids(class_ids, self.num_classes)
        if class_ids.shape.rank == 1:
            each = tf.broadcast_to(class_ids, [tf.shape(query)[0], tf.size(class_ids)])
        kernel, indices = tf_variable(self.kernel), tf_variable(self.indices)
        logits = sparse_head_candidates(query, kernel, indices, each, self.group_size)
        if self.use_bias:
            with tf.control_dependencies([logits]):  # the op names bad ids
                logits += class_biases(self.bias, class_ids)
        return logits

    def reduce(self, query, labels, loss: ClassificationLoss) -> tuple[tf.Tensor, tf.Tensor]:
        """As of ``Head``, in one pass where the op knows the reduction."""
        if loss.over_classes.kernel is None:
            return super().reduce(query, labels, loss)
        kernel, indices, bias = self._weights()
        return sparse_head_reduce(query, kernel, indices, bias, labels, loss.over_classes, self.group_size)

    def effective_query(self, query) -> tf.Tensor:
        """Queries in the directions that count, and 1 for the bias."""
        directions = tf_variable(self.directions)
        projected = tf.matmul(tf.cast(query, tf.float32), directions, transpose_b=True)
        return tf.pad(projected, [[0, 0], [0, int(self.use_bias)]], constant_values=1.0)

    def class_vectors(self, start, stop):
        directions, (kernel, indices, bias) = _copy_of(self.directions), self._weights()
        # The directions are queries to the weights, and their logits what the weights are in them.
        weights = sparse_head_logits(directions, kernel, indices, tf.zeros([0]), start, stop, self.group_size)
        return self._with_biases(weights, bias[start:stop])

    def class_vectors_of(self, class_ids) -> tf.Tensor:
        """The weights of classes in the directions that count, and their biases."""
        directions, (kernel, indices, bias) = _copy_of(self.directions), self._weights()
        ids = tf.broadcast_to(class_ids, [directions.shape[0], tf.size(class_ids)])
        weights = sparse_head_candidates(directions, kernel, indices, ids, self.group_size)
        return self._with_biases(weights, tf.gather(bias, class_ids) if self.use_bias else bias)

    def _with_biases(self, weights, biases):
        """Class vectors [n, effective_dim] of weights [d, n] in each direction and of biases [n]."""
        vectors = tf.transpose(weights)
        return tf.concat([vectors, biases[:, tf.newaxis]], 1) if self.use_bias else vectors

    def rewire(
        self, fraction: float, optimizer: keras.optimizers.Optimizer | None = None
    ) -> dict[str, float]:
        """Drops the weakest connections of every class and grows as many new ones, with weight 0.

        Sparse evolutionary training (SET), see ``tfxc.callbacks.SparseEvolution``: the inputs of the new
        connections are drawn uniformly from those that the class does not read, and the optimizer forgets
        what it knew of the old ones. A group moves an input for all its classes, the one whose weights have
        the smallest norm over the group.

        Args:
            fraction: share of the K connections to move, in [0, 1]; rounded to whole connections, above 0 at
                least one. A class that reads all inputs, or all but n, can move none, or n.
            optimizer: the Keras optimizer that trains the head, or None.

        Returns:
            dict: ``"moved"``, how many connections of classes (0: none could), and ``"dropped_magnitude"``,
            their mean |weight|.

        Raises:
            ValueError: for a fraction outside [0, 1], or weights that are NaN.
        """
        fraction = number_in(fraction, "fraction", "[0, 1]")
        num_moved = max(round(fraction * self.fan_in), 1) if fraction else 0
        num_moved = min(num_moved, self.num_inputs - self.fan_in)
        if num_moved == 0:
            return {"moved": 0, "dropped_magnitude": 0.0}
        kernel, indices = tf_variable(self.kernel), tf_variable(self.indices)
        weights = kernel.numpy()
        strength = weights if self.group_size == 1 else group_norms(weights, self.group_size)
        by_group = smallest(strength, num_moved)
        dropped = np.repeat(by_group, self.group_size, axis=0)[: self.num_classes]
        # The third number keeps the stream apart from that of the first connections: [seed, 0] is seed alone.
        rng = np.random.default_rng([self.seed, int(tf_variable(self.num_rewires).numpy()), 1])
        indices.assign(grow(indices.numpy(), by_group, self.num_inputs, rng))
        magnitude = float(np.abs(np.take_along_axis(weights, dropped, 1)).mean())
        np.put_along_axis(weights, dropped, 0.0, 1)
        kernel.assign(weights)
        tf_variable(self.num_rewires).assign_add(1)
        if optimizer is not None:
            reset_slots(optimizer, self.kernel, dropped)
        return {"moved": dropped.size, "dropped_magnitude": magnitude}


def _copy_of(weight):
    """The ``tf.Variable`` of a weight, outside of replicas that of the first one: ops take one handle."""
    variable = tf_variable(weight)
    copies = getattr(variable, "values", [variable])
    return copies[0] if tf.distribute.in_cross_replica_context() else variable


def _of_first_process(seed):
    """The seed of the first of several processes that train one model: each may have drawn another."""
    strategy = tf.distribute.get_strategy()
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return seed
    if not tf.distribute.in_cross_replica_context():
        return seed  # the first step builds the model, for which the docstring asks for a seed
    with tf.init_scope():
        return int(tf.Variable(seed, dtype=tf.int64).numpy())  # the first process initializes it for all
