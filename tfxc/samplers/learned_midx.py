"""LearnedMIDX: the proposal of MIDX, with codebooks that learn while the model trains."""

import numpy as np
import tensorflow as tf

from tfxc._keras import register
from tfxc._keras.weights import tf_variable
from tfxc.samplers.codebook_learner import CodebookLearner, softmax_estimate
from tfxc.samplers.midx import MIDX
from tfxc.samplers.quantization import encode
from tfxc.samplers.step import mean_query

# A refresh keeps learnt codebooks while their error is at most this many times the error of k-means.
_KEPT_ERROR_RATIO = 1.25
# The most queries of a step that codebooks learn from, and the most numbers in its class vectors.
_MOST_QUERIES = 256
_MOST_FLOATS = 1 << 23


@register
class LearnedMIDX(MIDX):
    """``MIDX`` with codebooks that go on learning where k-means ends.

    Beside each step of the model the codebooks take a step of their own towards the smallest
    ``KL(softmax ‖ Q)``, estimated on the classes that the model's step scored, plus the quantisation error.
    They learn from the first refresh on. A later refresh sorts the classes into the learnt cells, and fits
    codebooks anew only if the classes have left them behind.

    Learning needs the logits of the candidates and their class vectors, which ``ExtremeClassifier`` and
    ``head_loss`` give. On Tate a step took three to seven times as long as with ``MIDX``
    (docs/benchmarks/combinations.md).

    Args:
        num_negatives, num_codewords, quantizer, class_weights, seed: see ``MIDX``.
        shared: one set of draws for the whole batch, as of ``MIDX``. The codebooks learn from its mean query.

    Raises:
        ValueError: for arguments outside their range.

    Example:
        >>> sampler = LearnedMIDX(4, num_codewords=2, seed=1)
        >>> sampler.build((10, 8))
        >>> draw = sampler.sample(tfxc.samplers.Step(tf.zeros([3, 8]), tf.zeros([3, 1], tf.int32)))
        >>> draw.ids.shape, round(float(tf.exp(draw.log_expected_count[0, 0])), 4)
        (TensorShape([3, 4]), 0.4)

    Reference:
        Chen et al., "Adaptive Sampled Softmax with Inverted Multi-Index: Methods, Theory and
        Applications", 2025.
    """

    def build_index(self):
        super().build_index()
        self.learner = CodebookLearner(residual=self._residual)
        self.learner.build([codebook.shape for codebook in self.codebooks])

    def fit(self, head, importance):
        """As ``MIDX`` does, or the learnt codebooks if they are about as good."""
        learnt = self._codebook_values()
        is_learnt = any(codebook.any() for codebook in learnt)
        if not is_learnt or not all(np.isfinite(codebook).all() for codebook in learnt):
            return super().fit(head, importance)
        fitted = self._fit_codebooks(head, importance, start=learnt)
        errors, learnt_errors = np.empty((2, head.num_classes), np.float32)
        codes = encode(head, fitted, self._residual, errors=errors)
        learnt_codes = encode(head, learnt, self._residual, errors=learnt_errors)
        limit = _KEPT_ERROR_RATIO * np.average(errors, weights=importance)
        if np.average(learnt_errors, weights=importance) <= limit:
            return learnt, learnt_codes
        return fitted, codes

    def _is_whole(self, num_changed, num_steps, known):
        return True  # codebooks that learn leave the cells of all classes

    def _renew(self, head, fits=True):
        super()._renew(head, fits)
        codes = np.stack(divmod(tf_variable(self.cell).numpy(), self.num_codewords))
        self.learner.summarize(head, self._codebook_values(), codes, self.frequencies(head).importance)

    def learn(self, step, draw, scored):
        if step.class_vectors is None:
            raise ValueError(
                "LearnedMIDX learns from class vectors, but the step has none: pass Step(class_vectors=...)."
            )
        positives, negatives = scored()
        estimate = softmax_estimate(step.labels, positives, draw.ids, negatives)
        num_queries, num_scored = tf.unstack(tf.shape(estimate.ids))
        most = tf.maximum(_MOST_FLOATS // tf.maximum(num_scored * self.query_dim, 1), 1)
        num_rows = tf.minimum(num_queries, tf.minimum(most, _MOST_QUERIES))
        rows = tf.range(num_rows) * (num_queries // tf.maximum(num_rows, 1))
        estimate = tf.nest.map_structure(lambda part: tf.gather(part, rows), estimate)
        query = tf.stop_gradient(step.query)
        query = mean_query(query) if self.shared else tf.gather(query, rows)
        ids = tf.maximum(estimate.ids, 0)
        distinct, places = tf.unique(tf.reshape(ids, [-1]))  # vectors of a sparse head are dear
        vectors = tf.gather(step.class_vectors(distinct), places)
        vectors = tf.reshape(vectors, [num_rows, num_scored, self.query_dim])
        codebooks = [tf_variable(codebook) for codebook in self.codebooks]
        self.learner.learn(codebooks, query, vectors, estimate, self._log_own_weight(ids))
