"""The encoders by name, their options, and one for running text that carries its state."""

from tensorflow import keras

from common.arguments import count, share
from tfxc.encoders import esasrec, gru4rec, sasrec

layers = keras.layers
ENCODERS = {"sasrec": sasrec, "esasrec": esasrec, "gru4rec": gru4rec}


def add_arguments(add):
    """The options of the encoders and of the batches they read."""
    add("--dim", type=count, default=64, help="width of all layers, of queries and of class vectors")
    add("--num-blocks", type=count, default=2, help="layers")
    add("--dropout", type=share, default=0.2, help="share of the encoder's numbers that a step leaves out")
    add("--max-length", type=count, default=32, help="items a model reads")
    add("--batch-size", type=count, default=32, help="sequences a step")


def lstm(num_classes, max_length, dim=200, num_blocks=2, dropout=0.2, *, batch_size):
    """LSTM layers that carry their state from batch to batch, for ``tfxc.data.stream_dataset``.

    Reference: Zaremba, Sutskever, Vinyals, "Recurrent Neural Network Regularization", 2014.
    """
    items = keras.Input((max_length,), batch_size=batch_size, dtype="int32", name="items")
    # No mask: only the very end of the streams has padding, and masked steps cost more.
    hidden = layers.Embedding(num_classes + 1, dim, name="item_embedding")(items)
    # A softmax needs small vectors: unscaled, the LSTM at first learns little more than frequencies.
    hidden = layers.Rescaling(dim**0.5)(hidden)
    for _ in range(num_blocks):
        hidden = layers.Dropout(dropout)(hidden)
        hidden = layers.LSTM(dim, return_sequences=True, stateful=True)(hidden)
    return keras.Model(items, layers.Dropout(dropout)(hidden), name="lstm")
