"""Words that do not occur in training, ranked as the next word by their letters.

    python benchmarks/unseen_words.py --seeds 0 1 2

Two of the bundled novels are held out. An EncodedHead computes a word's vector from the word and its runs of
three letters; a DenseHead has a vector for each word. The first part takes the places in the held-out novels
whose next word occurs in training: quality among all words, and time. The second part takes the places whose
next word is unseen: its rank among the unseen words. Nearest neighbours there are the twenty words that the
dense head expects, each of which votes for the unseen words with a similar spelling.
"""

import argparse
import sys
import time
from pathlib import Path

import numpy as np
import scipy.sparse
import tensorflow as tf
from _grams import NUM_GRAMS, gram_ids, gram_rows, normed, ranking
from _seeds import spread
from _tables import add_results, keep, show

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

from common.recommendation_data import BUNDLED  # noqa: E402

import tfxc  # noqa: E402
from tfxc._keras import keras  # noqa: E402

NUM_HELD_OUT = 2
NUM_NEIGHBOURS = 20


def item_encoder(dim):
    """The encoder from the parts of a word to its class vector."""
    grams = keras.Input((None,), dtype="int32")
    bag = tfxc.layers.EmbeddingBag(NUM_GRAMS, dim, combiner="sqrtn")(grams)
    hidden = keras.layers.Dense(2 * dim, activation="relu")(bag)
    return keras.Model(grams, keras.layers.Dense(dim)(hidden))


def train(name, sessions, ids, args, seed):
    """A trained model, and the seconds of training."""
    keras.utils.set_random_seed(seed)
    num_classes = sessions.num_classes
    if name == "dense":
        head = tfxc.layers.DenseHead(num_classes)
    else:
        head = tfxc.layers.EncodedHead(item_encoder(args.dim), ids, free_vectors=name == "encoded and free")
    # By frequency: unseen words are hardly ever negatives.
    sampler = tfxc.samplers.Unigram(
        args.num_negatives, counts=sessions.counts(), smoothing=1e-3, shared=True, seed=seed
    )
    encoder = tfxc.encoders.sasrec(num_classes, args.max_length, args.dim, num_blocks=1)
    model = tfxc.ExtremeClassifier(encoder, head, sampler)
    batches = tfxc.data.sequence_training_dataset(
        sessions, args.max_length, args.batch_size, windows="all", seed=seed
    )
    schedule = keras.optimizers.schedules.CosineDecay(args.learning_rate, args.epochs * len(batches))
    model.compile(tfxc.optimizers.LazyAdam(schedule), loss=tfxc.losses.SoftmaxCrossentropy())
    start = time.perf_counter()
    model.fit(batches, epochs=args.epochs, verbose=0)
    return model, time.perf_counter() - start


def places(model, sessions, args):
    """Queries [N, D] of all places of texts, and the word [N] that comes next."""
    batches = tfxc.data.sequence_training_dataset(sessions, args.max_length, 256, windows="all", seed=None)
    queries, labels = [], []
    for items, following in batches:
        known = following.numpy() >= 0
        queries.append(model.encoder(items).numpy()[known])
        labels.append(following.numpy()[known])
    return np.concatenate(queries), np.concatenate(labels)


def quality(model, queries, labels):
    """NDCG@10 and recall@10 among all words, in percent."""
    ranks = []
    for start in range(0, len(queries), 2048):
        best = model.head.top_k(tf.constant(queries[start : start + 2048]), k=10).ids.numpy()
        hits = best == labels[start : start + 2048, np.newaxis]
        ranks.append(np.where(hits.any(1), hits.argmax(1), np.inf))
    ranks = np.concatenate(ranks)
    return 100 * np.mean(1 / np.log2(ranks + 2)), 100 * np.mean(ranks < np.inf)


def votes(model, queries, texts, unseen):
    """Scores [N, unseen]: the words that the dense head expects vote for words with a similar spelling."""
    best = model.head.top_k(tf.constant(queries), k=NUM_NEIGHBOURS)
    weights = tf.nn.softmax(best.scores).numpy()
    rows = np.repeat(np.arange(len(queries)), NUM_NEIGHBOURS)
    expected = scipy.sparse.csr_matrix(
        (weights.ravel(), (rows, best.ids.numpy().ravel())), (len(queries), texts.shape[0])
    )
    return (expected @ (texts @ texts[unseen].T)).toarray()


def main():
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add = parser.add_argument
    add("--data", type=Path, default=BUNDLED)
    add("--seeds", type=int, nargs="+", default=[0])
    add("--epochs", type=int, default=1)
    add("--batch-size", type=int, default=32)
    add("--max-length", type=int, default=32)
    add("--dim", type=int, default=128)
    add("--num-negatives", type=int, default=1000)
    add("--learning-rate", type=float, default=2e-3)
    add_results(parser)
    args = parser.parse_args()
    books = tfxc.data.read_text(args.data)
    first = len(books) - NUM_HELD_OUT
    training, held_out = books.select(np.arange(first)), books.select(np.arange(first, len(books)))
    ids = gram_ids(books.vocabulary.names)
    texts = normed(gram_rows(ids))
    unseen = np.flatnonzero(training.counts() == 0)
    number = np.full(books.num_classes, -1)
    number[unseen] = np.arange(len(unseen))
    seen_rows, unseen_rows = {}, {}
    for seed in args.seeds:
        for name in ("dense", "encoded", "encoded and free"):
            model, seconds = train(name, training, ids, args, seed)
            if name != "dense":
                model.head.freshen(force=True)
            queries, labels = places(model, held_out, args)
            is_new = number[labels] >= 0
            found = quality(model, queries[~is_new], labels[~is_new])
            seen_rows.setdefault(name, []).append([seconds, *found])
            questions, wanted = queries[is_new], number[labels[is_new]]
            size = len(wanted), len(unseen)
            truth = scipy.sparse.csr_matrix((np.ones(size[0]), (np.arange(size[0]), wanted)), size)
            if name == "dense":
                scores = {
                    "expected words, then words written alike": votes(model, questions, texts, unseen),
                    "chance": np.random.default_rng(seed).random(size),
                }
            else:
                scores = {name: questions @ model.head.item_encoder(ids[unseen]).numpy().T}
            for ranked_by, of_words in scores.items():
                unseen_rows.setdefault(ranked_by, []).append(ranking(of_words, truth))
            print(name, seen_rows[name][-1], *(unseen_rows[by][-1] for by in scores), flush=True)
    rows = [
        [name, f"{np.mean(runs, 0)[0]:.0f}", *map(spread, np.transpose(runs)[1:])]
        for name, runs in seen_rows.items()
    ]
    title = (
        f"{np.sum(~is_new):,} places whose next word is one of {books.num_classes - len(unseen):,} seen ones"
    )
    show(f"{title}: {len(args.seeds)} seed(s)", rows, ["head", "train s", "NDCG@10", "recall@10"])
    rows = [
        [
            name,
            *(spread(own, "{:.3f}") for own in np.transpose(runs)[:2]),
            spread(np.transpose(runs)[2], "{:.0f}"),
        ]
        for name, runs in unseen_rows.items()
    ]
    title = f"{np.sum(is_new):,} places whose next word is one of {len(unseen):,} unseen ones"
    show(title, rows, ["ranked by", "MRR", "recall@10", "median rank"])
    keep(args.results)


if __name__ == "__main__":
    main()
