"""Labels by their names: an EncodedHead against a DenseHead, TFRS and nearest neighbours.

    python benchmarks/encoded_quality.py --seeds 0 1 2

The data are those of the extreme classification example, or a folder with train.txt, test.txt, vocabulary.txt
and label_names.txt. The first part uses all labels: P@k over all test points, PSP@5 for rare labels, and the
time. The second part holds a tenth of the labels out of training: test points that have such labels rank the
held-out labels. The towers share the vectors of words, so that a point and a name with common words are near.
It needs the packages of ``pip install ".[tfrs]"``; TFRS runs on tf-keras, and so does the whole program.
"""

import argparse
import os
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path

os.environ["TF_USE_LEGACY_KERAS"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

import numpy as np  # noqa: E402
import scipy.sparse  # noqa: E402
import tensorflow as tf  # noqa: E402
import tensorflow_recommenders as tfrs  # noqa: E402
from _grams import NUM_GRAMS, gram_ids, gram_rows, normed, padded, ranking, words_of  # noqa: E402
from _seeds import spread  # noqa: E402
from _tables import add_results, keep, show  # noqa: E402
from common.classification_data import BUNDLED, find, lines_of, load  # noqa: E402
from common.classification_heads import make_encoder  # noqa: E402
from tensorflow import keras  # noqa: E402

import tfxc  # noqa: E402

WORD_SCALE = 0.5  # two bags of the same words score about 20
MODELS = ("dense", "encoded", "encoded and free", "TFRS")
METRICS = {
    "P@1": "precision_at_1",
    "P@3": "precision_at_3",
    "P@5": "precision_at_5",
    "PSP@5": "psp_at_5",
}
NUM_NEIGHBOURS = 20


def word_ids(names, words):
    """Ids int32 [L, N], padded with 0, of the words of names that occur in points; word i has id i + 1."""
    number = {word: place for place, word in enumerate(words, start=1)}
    return padded([[number[word] for word in words_of(name) if word in number] for name in names])


def features_of(names, words):
    """The features of names for the towers."""
    return {"words": word_ids(names, words), "grams": gram_ids(names)}


def taken(features, rows):
    """Some rows of features."""
    return {name: part[rows] for name, part in features.items()}


def query_encoder(num_features, args):
    """Bags of words to queries [B, D]."""
    bag = make_encoder("dense", num_features, args)
    return keras.Model(bag.inputs, keras.layers.Dense(args.dim)(bag.output))


def two_towers(num_features, args):
    """Encoders of points and of names that share the vectors of words.

    Common words count from the start; the other layers learn what else belongs together, also for a name
    whose words occur in no point.
    """
    large = keras.initializers.RandomUniform(-WORD_SCALE, WORD_SCALE)
    words = tfxc.layers.EmbeddingBag(num_features + 1, args.dim, "sqrtn", large)
    query = query_encoder(num_features, args)
    ids, values = query.inputs
    own = words({"ids": tf.where(ids >= 0, ids + 1, ids), "values": values})  # 0 is padding there
    query = keras.Model(query.inputs, keras.layers.Add()([query.output, own]))
    inputs = {name: keras.Input((None,), dtype="int32", name=name) for name in ("words", "grams")}
    bag = tfxc.layers.EmbeddingBag(NUM_GRAMS, args.dim // 4, combiner="sqrtn")(inputs["grams"])
    bag = keras.layers.Dropout(args.dropout)(bag)
    hidden = keras.layers.Dense(2 * args.dim, activation="relu")(bag)
    hidden = keras.layers.Dropout(args.dropout)(hidden)
    item = keras.layers.Add()([keras.layers.Dense(args.dim)(hidden), words(inputs["words"])])
    return query, keras.Model(inputs, item)


def optimizer(num_steps, args):
    return tfxc.optimizers.LazyAdam(keras.optimizers.schedules.CosineDecay(args.learning_rate, num_steps))


class TwoTower(tfrs.Model):
    """TFRS's training: the other labels of the batch as negatives, corrected for their frequency."""

    def __init__(self, query_tower, item_tower, features, counts):
        super().__init__()
        self.query_tower, self.item_tower = query_tower, item_tower
        self.features = tf.nest.map_structure(tf.constant, features)
        self.probability = tf.constant(counts / counts.sum(), tf.float32)
        self.task = tfrs.tasks.Retrieval(remove_accidental_hits=True)

    def compute_loss(self, features, training=False):
        points, labels = features
        names = {name: tf.gather(part, labels) for name, part in self.features.items()}
        return self.task(
            self.query_tower(points, training=training),
            self.item_tower(names, training=training),
            candidate_sampling_probability=tf.gather(self.probability, labels),
            candidate_ids=labels,
            compute_metrics=False,
        )


def pairs(points):
    """Each point once for each of its labels, with that label alone."""
    labels = points.labels.tocoo()
    single = scipy.sparse.csr_matrix(
        (np.ones(labels.nnz, bool), (np.arange(labels.nnz), labels.col)), (labels.nnz, labels.shape[1])
    )
    return replace(points, features=points.features[labels.row], labels=single)


def train(name, points, features, args, seed):
    """A trained classifier, and the seconds of training."""
    keras.utils.set_random_seed(seed)
    if name == "dense":
        query, item = query_encoder(points.num_features, args), None
        head = tfxc.layers.DenseHead(points.num_labels)
    else:
        query, item = two_towers(points.num_features, args)
        head = tfxc.layers.EncodedHead(item, features, free_vectors=name == "encoded and free")
    sampler = tfxc.samplers.Uniform(args.num_negatives, shared=True, seed=seed)
    model = tfxc.ExtremeClassifier(query, head, sampler, k=5)
    counts = points.label_counts()
    chances = tfxc.metrics.propensities(counts, len(points))
    metrics = [tfxc.metrics.PrecisionAtK(k, average="all") for k in (1, 3, 5)]
    metrics.append(tfxc.metrics.PSPAtK(5, chances))
    if name == "TFRS":
        dataset = tfxc.data.classification_dataset(pairs(points), args.batch_size, seed)
        dataset = dataset.map(lambda inputs, labels: (inputs, labels[:, 0]))
        towers = TwoTower(query, item, features, np.maximum(counts, 1))
        towers.compile(optimizer(args.epochs * len(dataset), args))
        trained = towers
    else:
        dataset = tfxc.data.classification_dataset(points, args.batch_size, seed)
        trained = model
    model.compile(
        optimizer(args.epochs * len(dataset), args),
        loss=tfxc.losses.SoftmaxCrossentropy(),
        metrics=metrics,
    )
    start = time.perf_counter()
    trained.fit(dataset, epochs=args.epochs, verbose=0)
    return model, item, time.perf_counter() - start


def all_labels(points, test, features, args):
    """P@k and PSP@5 of each model, with mean and deviation over the seeds."""
    test_set, rows = tfxc.data.classification_dataset(test, args.batch_size, seed=None), []
    for name in MODELS:
        found = []
        for seed in args.seeds:
            model, _, seconds = train(name, points, features, args, seed)
            result = model.evaluate(test_set, return_dict=True, verbose=0)
            found.append([seconds, *(100 * result[metric] for metric in METRICS.values())])
        rows.append([name, f"{np.mean(found, 0)[0]:.0f}", *map(spread, np.transpose(found)[1:])])
        print(rows[-1], flush=True)
    show(f"All {points.num_labels:,} labels: {len(args.seeds)} seed(s)", rows, ["head", "train s", *METRICS])


def held_out_labels(points, test, names, words, args):
    """The ranking of the labels that no training point has, among themselves."""
    found = {}
    for seed in args.seeds:
        held_out = np.random.default_rng(seed).random(points.num_labels) < args.held_out_fraction
        seen = points.labels[:, ~held_out]
        has_label = np.diff(seen.indptr) > 0
        rest = replace(points, features=points.features[has_label], labels=seen[has_label])
        truth = test.labels[:, held_out].tocsr()
        asked = np.flatnonzero(np.diff(truth.indptr))
        questions, truth = test.features[asked], truth[asked]
        features = features_of(names, words)
        # Free vectors learn what is specific to a label, and leave to the towers what labels share.
        model, item, _ = train("encoded and free", rest, taken(features, ~held_out), args, seed)
        asking = replace(test, features=questions, labels=truth)
        queries = np.concatenate(
            [
                model.encoder(inputs).numpy()
                for inputs, _ in tfxc.data.classification_dataset(asking, 256, seed=None)
            ]
        )
        texts = tfxc.data.tfidf(_as_points(gram_rows(features["grams"])))[0].features
        scores = {
            "encoded": queries @ item(taken(features, held_out)).numpy().T,
            "nearest points, then nearest labels": neighbours(
                rest, questions, texts[~held_out], texts[held_out]
            ),
            "the words of both": words_of_both(questions, np.array(names)[held_out], words),
        }
        for name, of_labels in scores.items():
            found.setdefault(name, []).append(ranking(np.asarray(of_labels), truth))
    columns = "MRR", "recall@10", "median rank"
    rows = [
        [name, *(spread(own, "{:.3f}") for own in np.transpose(figures))] for name, figures in found.items()
    ]
    mrr = {name: statistics.mean(row[0] for row in figures) for name, figures in found.items()}
    ratios = [[name, mrr["encoded"] / other] for name, other in mrr.items() if name != "encoded"]
    title = f"A tenth of the labels held out, {int(held_out.sum())} of them, {len(asked):,} points"
    show(title, rows, ["ranked by", *columns])
    show("Held out: MRR of encoded, divided by that of others", ratios, ["other", "ratio"])


def _as_points(features):
    return tfxc.data.LabeledPoints(features, scipy.sparse.csr_matrix((features.shape[0], 1), dtype=bool))


def neighbours(points, questions, seen_texts, texts):
    """The labels of the nearest training points vote for labels with similar names."""
    similarity = normed(questions) @ normed(points.features).T
    votes = scipy.sparse.csr_matrix(
        np.vstack([_nearest(similarity[row]) @ points.labels for row in range(len(questions.indptr) - 1)])
    )
    return (votes @ (normed(seen_texts) @ normed(texts).T)).toarray()


def _nearest(row):
    """The largest similarities of each row, as a dense row."""
    dense = np.zeros(row.shape[1], np.float32)
    best = np.argsort(-row.data)[:NUM_NEIGHBOURS]
    dense[row.indices[best]] = row.data[best]
    return dense


def words_of_both(questions, names, words):
    """The similarity of the words of a point and those of a label's name."""
    ids = word_ids(names, words)
    rows, places = np.nonzero(ids)
    size = len(names), len(words)
    of_names = scipy.sparse.csr_matrix((np.ones(len(rows)), (rows, ids[rows, places] - 1)), size)
    return (normed(questions) @ normed(of_names).T).toarray()


def main():
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add = parser.add_argument
    add("--data", type=Path, default=BUNDLED)
    add("--seeds", type=int, nargs="+", default=[0])
    add("--epochs", type=int, default=10)
    add("--batch-size", type=int, default=256)
    add("--dim", type=int, default=256)
    add("--dropout", type=float, default=0.5)
    add("--num-negatives", type=int, default=1000, help="uniform, shared by the batch")
    add("--learning-rate", type=float, default=3e-3)
    add("--held-out-fraction", type=float, default=0.1)
    add_results(parser)
    args = parser.parse_args()
    points, test, names = load(args.data)
    words = lines_of(find(args.data, "vocabulary.txt"))
    all_labels(points, test, features_of(names, words), args)
    held_out_labels(points, test, names, words, args)
    keep(args.results)


if __name__ == "__main__":
    main()
