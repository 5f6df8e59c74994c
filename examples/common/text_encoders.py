"""The encoders of texts: a Transformer of KerasHub, and a bag of words, over ids of word pieces."""

from tensorflow import keras

import tfxc
from common.arguments import count, from_three, share
from common.word_pieces import make_vocabulary

layers = keras.layers


def add_arguments(add):
    """The options of the encoders and of their word pieces."""
    add("--preset", help="distilbert: size, weights and word pieces of this preset of KerasHub")
    add("--num-layers", type=count, default=2, help="distilbert")
    add("--num-heads", type=count, default=2, help="distilbert")
    add("--dim", type=count, default=128, help="width of the Transformer, and a quarter of that of the bag")
    add("--min-count", type=count, default=2, help="rarer words fall into pieces")
    add("--max-length", type=from_three, default=40, help="ids of a title, both its ends among them")
    add("--dropout", type=share, default=0.2, help="of the query")


def vocabulary_of(texts, args):
    """The word pieces of the preset, or of training texts."""
    if args.preset is None:
        return make_vocabulary(texts, args.min_count)
    import keras_hub

    tokenizer = keras_hub.tokenizers.DistilBertTokenizer.from_preset(args.preset)
    if not tokenizer.lowercase:
        raise SystemExit(
            f"--preset {args.preset} reads capitals, but titles are read in lower case: name another."
        )
    return tokenizer.get_vocabulary()


def distilbert(tokens, num_pieces, args):
    """Vectors [B, 4 D] of ids [B, T]: a layer over the mean of the word pieces' vectors."""
    import keras_hub

    if args.preset is None:
        backbone = keras_hub.models.DistilBertBackbone(
            num_pieces,
            num_layers=args.num_layers,
            num_heads=args.num_heads,
            hidden_dim=args.dim,
            intermediate_dim=4 * args.dim,
            max_sequence_length=args.max_length,
        )
    else:
        backbone = keras_hub.models.DistilBertBackbone.from_preset(args.preset)
    is_piece = keras.ops.not_equal(tokens, 0)
    hidden = backbone({"token_ids": tokens, "padding_mask": is_piece})
    return layers.Dense(4 * args.dim)(layers.GlobalAveragePooling1D()(hidden, mask=is_piece))


def bag(tokens, num_pieces, args):
    """Vectors [B, 4 D] of ids [B, T]: the sum over the word pieces, whatever their order."""
    # Small vectors, so that rare words soon matter.
    small = keras.initializers.RandomUniform(-0.01, 0.01)
    is_piece = keras.ops.not_equal(tokens, 0)
    pieces = {"ids": keras.ops.where(is_piece, tokens, -1), "values": keras.ops.cast(is_piece, "float32")}
    return tfxc.layers.EmbeddingBag(num_pieces, 4 * args.dim, embeddings_initializer=small)(pieces)


ENCODERS = {"distilbert": distilbert, "bag": bag}


def make_encoder(name, num_pieces, args):
    """The encoder of that name, from ids of word pieces to queries [B, 8 D]."""
    tokens = keras.Input((None,), dtype="int32", name="token_ids")
    vector = layers.LayerNormalization()(ENCODERS[name](tokens, num_pieces, args))
    # The head reads both signs of each number.
    both = [layers.ReLU()(vector), layers.ReLU()(layers.Rescaling(-1.0)(vector))]
    return keras.Model({"token_ids": tokens}, layers.Dropout(args.dropout)(layers.Concatenate()(both)))
