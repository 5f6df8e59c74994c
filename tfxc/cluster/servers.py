"""The processes of a cluster: servers that have tfxc's ops, and the strategy of the one that coordinates."""

import os
import warnings

import tensorflow as tf

from tfxc._keras import refuse_keras_3
from tfxc.arguments import positive_int
from tfxc.cluster.code_pages import release_code_pages
from tfxc.malloc import return_large_blocks
from tfxc.ops import library

_LEAST_ROWS = 1 << 14  # a table that is not higher stays whole: each shard is a round trip a step


def start_server(resolver: tf.distribute.cluster_resolver.ClusterResolver) -> None:
    """Serves as the worker or parameter server that the resolver names, until the process is killed.

    A server computes what is asked of it, draws and scores and row updates among it, so it must have the
    compiled ops: a plain ``tf.distribute.Server`` would know none of them.

    Args:
        resolver: a ``tf.distribute.cluster_resolver``, such as ``TFConfigClusterResolver()``, with
            ``task_type`` "worker" or "ps".

    Raises:
        ValueError: for another task type.
        RuntimeError: without compiled ops, unless ``TFXC_DISABLE_OPS=1`` says so, as it then must in every
            process of the cluster.

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
    _require_ops()
    return_large_blocks()  # it holds as much of a table as fits its machine
    server = tf.distribute.Server(
        resolver.cluster_spec(),
        job_name=resolver.task_type,
        task_index=resolver.task_id,
        protocol=resolver.rpc_layer or "grpc",
        start=True,
    )
    release_code_pages()
    server.join()


def _require_ops():
    if os.environ.get("TFXC_DISABLE_OPS") == "1":
        warnings.warn(
            "TFXC_DISABLE_OPS=1: this server knows none of the compiled ops, so every process of the cluster "
            "must have it set.",
            RuntimeWarning,
            stacklevel=3,
        )
    elif library.load() is None:
        raise RuntimeError(
            "A server of a cluster needs the compiled ops, which the coordinator asks it for: build them as "
            "the warning above says, or set TFXC_DISABLE_OPS=1 in every process of the cluster."
        )


def strategy(
    resolver: tf.distribute.cluster_resolver.ClusterResolver, num_shards: int | None = None
) -> tf.distribute.ParameterServerStrategy:
    """The ``tf.distribute.ParameterServerStrategy`` of a coordinator, that cuts high tables into shards.

    Build and compile the model in its scope and call ``fit``. Weights with 2^14 rows or more, their slots
    with them, are cut by rows; shard i of every table lies on server i modulo the number of servers. What is
    smaller lies whole on one of them.

    Args:
        resolver: a ``tf.distribute.cluster_resolver`` of the whole cluster: jobs "worker", "ps" and "chief".
        num_shards: number of shards of a table: 1, which keeps every table whole, or a multiple of the number
            of servers; by default that number.

    Returns:
        The strategy, connected to the cluster.

    Raises:
        ValueError: under Keras 3, which does not train with parameter servers; for a cluster without servers,
            or another num_shards.

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
    return_large_blocks()
    release_code_pages()

    def partitioner(shape, dtype, **kwargs):
        parts = num_shards if shape[0] >= _LEAST_ROWS else 1
        if parts > 1:
            # Variables go to the servers in turn: without this, a table would begin wherever the last ended.
            extended = made.extended
            extended._variable_count += -extended._variable_count % num_servers
        return [parts] + [1] * (shape.rank - 1)

    made = tf.distribute.ParameterServerStrategy(resolver, variable_partitioner=partitioner)
    return made
