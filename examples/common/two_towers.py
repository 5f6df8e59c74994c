"""Two-tower models of TensorFlow Recommenders: with its retrieval task, and with a tfxc head."""

import tensorflow as tf
import tensorflow_recommenders as tfrs
from tensorflow import keras

import tfxc

KS = (1, 10, 50)
NUM_LENGTHS = 8


class QueryTower(keras.Model):
    """The mean of the history, its last item and its length, through two dense layers."""

    def __init__(self, num_classes, dim, dropout):
        super().__init__()
        self.items = keras.layers.Embedding(num_classes + 1, dim)
        self.lengths = keras.layers.Embedding(NUM_LENGTHS, dim)
        self.dropout = keras.layers.Dropout(dropout)
        self.hidden = keras.layers.Dense(2 * dim, activation="relu")
        self.query = keras.layers.Dense(dim)

    def call(self, features, training=None):
        vectors = self.items(features["history"])
        known = tf.cast(features["history"] > 0, vectors.dtype)[..., tf.newaxis]
        mean = tf.reduce_sum(vectors * known, 1) / tf.sqrt(tf.reduce_sum(known, 1))
        length = self.lengths(tf.minimum(features["length"], NUM_LENGTHS) - 1)
        hidden = self.dropout(tf.concat([mean, vectors[:, -1], length], 1), training=training)
        return self.query(self.hidden(hidden))


class TwoTower(tfrs.Model):
    """A query tower; a subclass defines the item vectors, ``class_vectors(start, stop)``, and the loss."""

    def __init__(self, query_tower):
        super().__init__()
        self.query_tower = query_tower

    def rank_items(self, num_classes, block=8192):
        """Adds TFRS's metric over the item vectors, which it reads block by block when it is evaluated."""

        def vectors(start):
            stop = tf.minimum(start + block, num_classes)
            return tf.range(start, stop), self.class_vectors(start, stop)

        blocks = tf.data.Dataset.range(0, num_classes, block, output_type=tf.int32).map(vectors)
        self.top_k = tfrs.metrics.FactorizedTopK(blocks, ks=KS)

    def compute_loss(self, features, training=False):
        query, item = self.query_tower(features, training=training), features["item"]
        if training:
            return self.train_loss(query, item)
        # By id, so the metric does not read the vectors of the true items.
        self.top_k.update_state(query, tf.zeros_like(query), true_candidate_ids=item)
        return tf.zeros([])


class RetrievalModel(TwoTower):
    """TFRS's retrieval task: the other items of the batch as negatives, corrected for their popularity."""

    def __init__(self, query_tower, counts, dim):
        super().__init__(query_tower)
        self.item_tower = keras.layers.Embedding(len(counts), dim)
        self.item_tower.build(None)
        self.probability = tf.constant(counts / counts.sum(), tf.float32)
        self.task = tfrs.tasks.Retrieval(remove_accidental_hits=True)
        self.rank_items(len(counts))

    def class_vectors(self, start, stop):
        return self.item_tower(tf.range(start, stop))

    def train_loss(self, query, item):
        return self.task(
            query,
            self.item_tower(item),
            candidate_sampling_probability=tf.gather(self.probability, item),
            candidate_ids=item,
            compute_metrics=False,
        )


class HeadModel(TwoTower):
    """A head, and negatives for each query. Callbacks find them by the names ``head`` and ``sampler``."""

    def __init__(self, query_tower, num_classes, dim, sampler):
        super().__init__(query_tower)
        self.head = tfxc.layers.DenseHead(num_classes)
        self.head.build((None, dim))
        self.sampler = sampler
        self.loss_function = tfxc.losses.SoftmaxCrossentropy()
        self.rank_items(num_classes)

    def class_vectors(self, start, stop):
        return self.head.class_vectors(start, stop)

    def train_loss(self, query, item):
        return tfxc.head_loss(self.head, self.loss_function, query, item, sampler=self.sampler)


def export_index(model, features, names, path):
    """Writes a SavedModel from raw features to the best items: a BruteForce index over the class vectors."""
    index = tfrs.layers.factorized_top_k.BruteForce(model.query_tower, k=min(10, len(names)))
    index.index(model.class_vectors(0, len(names)), tf.constant(names))
    index(features)  # traces the function to save
    tf.saved_model.save(index, path)
