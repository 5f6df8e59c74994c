"""The processes of a cluster: servers that have tfxc's ops, and the coordinator's strategy."""

import os
import warnings

import tensorflow as tf

from tfxc._keras import refuse_keras_3
from tfxc.arguments import positive_int
from tfxc.ops import library

_LEAST_ROWS = 1 << 14  # lower tables stay whole, since each shard costs a round trip a step


def start_server(resolver: tf.distribute.cluster_resolver.ClusterResolver) -> None:
    """Serves as the worker or parameter server that the resolver names, until the process is killed.

    The coordinator asks a server for draws, scores and row updates, so a server must have the compiled ops. A
    plain ``tf.distribute.Server`` knows none of them.

    Args:
        resolver: a ``tf.distribute.cluster_resolver`` with ``task_type`` "worker" or "ps".

    Raises:
        ValueError: for another task type.
        RuntimeError: without the compiled ops, unless every process has ``TFXC_DISABLE_OPS=1`` set.

    Example:
        ```python
        # worker.py, the same program for workers and parameter servers; TF_CONFIG says which
        import tensorflow as tf
        import tfxc

        tfxc.cluster.start_server(tf.distribute.cluster_resolver.TFConfigClusterResolver())
        ```
    """
    if resolver.task_type not in ("worker", "ps"):
        raise ValueError(
            f'start_server serves as "worker" or "ps", but the resolver says {resolver.task_type!r}. The '
            'coordinator ("chief") calls tfxc.cluster.strategy instead.'
        )
    if os.environ.get("TFXC_DISABLE_OPS") == "1":
        warnings.warn(
            "TFXC_DISABLE_OPS=1: this server knows none of the compiled ops, so every process of the cluster "
            "must have TFXC_DISABLE_OPS=1 set.",
            RuntimeWarning,
            stacklevel=2,
        )
    elif library.load() is None:
        raise RuntimeError(
            "A server of a cluster needs the compiled ops, which the coordinator asks it for: build them as "
            "the warning above says, or set TFXC_DISABLE_OPS=1 in every process of the cluster."
        )
    task, protocol = (resolver.task_type, resolver.task_id), resolver.rpc_layer or "grpc"
    tf.distribute.Server(resolver.cluster_spec(), *task, protocol=protocol).join()


def strategy(
    resolver: tf.distribute.cluster_resolver.ClusterResolver, num_shards: int | None = None
) -> tf.distribute.ParameterServerStrategy:
    """The ``tf.distribute.ParameterServerStrategy`` of a coordinator, which cuts high tables into shards.

    Build and compile the model in its scope and call ``fit``. Weights with 2^14 rows or more are cut by rows,
    with their slots; shard i lies on server i modulo the number of servers. Smaller weights stay whole.

    Args:
        resolver: a ``tf.distribute.cluster_resolver`` of the whole cluster: jobs "worker", "ps" and "chief".
        num_shards: shards of a table: 1, or a multiple of the number of servers; by default that number.

    Raises:
        ValueError: under Keras 3, which has no parameter servers; without servers; for another num_shards.

    Example:
        ```python
        resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
        with tfxc.cluster.strategy(resolver).scope():
            head = tfxc.layers.DenseHead(100_000_000)
            model = tfxc.ExtremeClassifier(encoder, head, tfxc.samplers.MIDX(100))
            model.compile(tfxc.optimizers.LazyAdam(1e-3), loss=tfxc.losses.SoftmaxCrossentropy())
        model.fit(dataset, epochs=10, steps_per_epoch=1000)
        ```

    Reference:
        Li et al., "Scaling Distributed Machine Learning with the Parameter Server", 2014.
    """
    refuse_keras_3("parameter servers")
    num_servers = len(resolver.cluster_spec().as_dict().get("ps", []))
    if not num_servers:
        raise ValueError('The cluster has no job "ps": give the resolver the addresses of the servers.')
    num_shards = num_servers if num_shards is None else positive_int(num_shards, "num_shards")
    if num_shards > 1 and num_shards % num_servers:
        raise ValueError(
            f"num_shards must be 1 or a multiple of the number of servers, {num_servers}, so that the shards "
            f"of a table and of its biases lie together, but got {num_shards}."
        )
    library.load()

    def partitioner(shape, dtype, **kwargs):
        parts = num_shards if shape[0] >= _LEAST_ROWS else 1
        if parts > 1:
            # The strategy deals variables out to the servers in turn: each table is to begin at the first.
            extended = made.extended
            extended._variable_count += -extended._variable_count % num_servers
        return [parts] + [1] * (shape.rank - 1)

    made = tf.distribute.ParameterServerStrategy(resolver, variable_partitioner=partitioner)
    return made
