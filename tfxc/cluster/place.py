"""Head and sampler of a model under a strategy with parameter servers, and what is refused there."""

import tensorflow as tf

from tfxc.cluster.placement import is_on_servers, with_servers
from tfxc.cluster.sharded_head import ShardedHead
from tfxc.cluster.sharded_sampler import ShardedMIDX, ShardedSampler, ShardedUnigram
from tfxc.data.batching import epoch_orders
from tfxc.layers import DenseHead, UniformSparseHead
from tfxc.samplers import MIDX, InBatch, LogUniform, Mixture, Uniform, Unigram

_HEADS = (DenseHead, UniformSparseHead)
_CUT: dict[type, type] = {Uniform: ShardedSampler, Unigram: ShardedUnigram, MIDX: ShardedMIDX}
_WHOLE = (LogUniform, InBatch)


def place(head, sampler):
    """Head and sampler as a model is to ask them: cut into shards where variables lie on parameter servers.

    On one machine they stay as they are. ``ExtremeClassifier`` calls it; for a model of your own, do so in
    the scope of the strategy, before they are built. The sampler may be None.

    Raises:
        ValueError: for what does not work with parameter servers, saying what to take instead.

    Example:
        >>> head, sampler = place(tfxc.layers.DenseHead(10), tfxc.samplers.Uniform(2))
        >>> type(head).__name__  # on this machine
        'DenseHead'
    """
    if not with_servers() and not is_on_servers(head):
        return head, sampler
    head = _placed_head(head)
    return head, None if sampler is None else placed_sampler(sampler, head)


def check_placed(head, sampler):
    """Raises ValueError for a head or sampler that ``place`` would exchange for another."""
    if not with_servers():
        return
    samplers = sampler.samplers if isinstance(sampler, Mixture) else [] if sampler is None else [sampler]
    if not isinstance(head, ShardedHead) or any(isinstance(own, tuple(_CUT)) for own in samplers):
        raise ValueError(
            f"{head.name} and its sampler do not know of the strategy's parameter servers. Before they are "
            "built: head, sampler = tfxc.cluster.place(head, sampler)."
        )


def _placed_head(head):
    if isinstance(head, ShardedHead):
        return head
    if not isinstance(head, _HEADS):
        raise ValueError(
            f"{type(head).__name__} does not train with parameter servers: its classes cannot be cut into "
            "shards. Take DenseHead or UniformSparseHead, or train on one machine."
        )
    if isinstance(head, UniformSparseHead) and head.group_size > 1:
        raise ValueError(
            f"Groups of {head.group_size} classes cannot be cut into shards, which begin at any class: take "
            "group_size=1 with parameter servers."
        )
    if isinstance(head, DenseHead) and head.table_dtype == "bfloat16":
        raise ValueError(
            "Parameter servers hold tables in float32, but table_dtype is 'bfloat16'. Leave it out."
        )
    return ShardedHead(head)


def placed_sampler(sampler, head):
    """A sampler in the shards of a ``ShardedHead``, or as it is if its candidates come together."""
    kind = type(sampler)
    if kind is Mixture:
        return Mixture([placed_sampler(own, head) for own in sampler.samplers], name=sampler.name)
    if kind in _CUT:
        return _CUT[kind](sampler, head)
    if kind not in _WHOLE and not isinstance(sampler, ShardedSampler):
        names = ", ".join(known.__name__ for known in (*_CUT, *_WHOLE, Mixture))
        raise ValueError(
            f"{kind.__name__} does not train with parameter servers: it would read class vectors or an index "
            f"of them in every step. Take one of {names}."
        )
    return sampler


def check_data(data):
    """Raises ValueError for a shuffled pipeline of ``tfxc.data``: a worker runs none of its Python."""
    if isinstance(data, tf.data.Dataset) and epoch_orders(data):
        raise ValueError(
            "A shuffled pipeline of tfxc.data asks Python for its order, which no worker of a cluster runs. "
            "Make it with seed=None and shuffle by dataset.unbatch().shuffle(100_000).repeat().batch(128)."
        )


def require_one_machine(model, why):
    """Raises ValueError for a model whose tables lie on parameter servers; ``why`` ends the error."""
    if is_on_servers(model):
        raise ValueError(
            f"The model's tables lie on parameter servers, {why}. A tfxc.cluster.Checkpoint keeps them, and "
            "restores them also into one built outside of the strategy's scope; to serve it call export."
        )
