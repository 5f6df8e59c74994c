"""Encoder and head of the extreme classification examples."""

import numpy as np
from tensorflow import keras

import tfxc
from common.arguments import count, share

HEADS = ("dense", "sparse", "sparse-direct", "mach")
DECODERS = ("geometric", "mean", "min", "median")


def add_arguments(add):
    """The options of the bag of words and of the MACH head, without its decoder."""
    add("--dim", type=count, default=512, help="width of the bag of words' vector")
    add("--dropout", type=share, default=0.5, help="share of the encoder's numbers that a step leaves out")
    add("--num-buckets", type=count, default=512, help="mach: buckets of a repetition")


def bag_inputs():
    """The datasets of ``tfxc.data.classification_dataset``."""
    return {
        "ids": keras.Input((None,), dtype="int32", name="ids"),
        "values": keras.Input((None,), name="values"),
    }


def make_encoder(head, num_features, args, **options):
    """An encoder from bags of words to queries, [B, num_inputs] for the sparse head."""
    inputs = bag_inputs()
    # Small vectors, so that rare features soon matter; the head reads both signs of the sum.
    small = keras.initializers.RandomUniform(-0.01, 0.01)
    bag = tfxc.layers.EmbeddingBag(num_features, args.dim, embeddings_initializer=small)(inputs)
    bag = keras.layers.LayerNormalization()(bag)
    both = [keras.layers.ReLU()(bag), keras.layers.ReLU()(keras.layers.Rescaling(-1.0)(bag))]
    hidden = keras.layers.Dropout(args.dropout)(keras.layers.Concatenate()(both))
    if head == "sparse":
        wide = {"activation": args.wide_activation, "kernel_initializer": "he_uniform", "name": "wide"}
        hidden = keras.layers.Dense(args.num_inputs, **wide)(hidden)
        hidden = keras.layers.Dropout(0.1)(hidden)
    return keras.Model(inputs, hidden, **options)


def make_head(name, train, args, **options):
    """The head of that name; by a loss that asks of each label if it applies, none is likely at the start."""
    if name == "mach":
        return tfxc.layers.MACHHead(
            train.num_labels,
            args.num_buckets,
            decoder=args.decoder,
            activation="softmax" if args.loss == "softmax" else "sigmoid",
            bias_initializer=first_bias(train, args.loss, args.num_buckets),
            seed=args.seed,
            **{"num_repetitions": args.num_repetitions, **options},
        )
    bias = first_bias(train, args.loss, train.num_labels)
    if name == "dense":
        return tfxc.layers.DenseHead(train.num_labels, use_bias=True, bias_initializer=bias)
    return tfxc.layers.UniformSparseHead(
        train.num_labels,
        args.fan_in,
        use_bias=True,
        bias_initializer=bias,
        group_size=args.group_size,
    )


def first_bias(train, loss, num_outputs):
    """The initializer of biases: no label applies, as for nearly all pairs, where the loss asks of each."""
    if loss == "softmax":
        return "zeros"
    if loss == "squared-hinge":
        return keras.initializers.Constant(-1.0)
    return keras.initializers.Constant(float(np.log(train.labels.nnz / len(train) / num_outputs)))
