"""Breaks the estimates one after the other, and asks whether the tests find it: ``make mutants``.

Each mutant is a wrong version of one line that still runs. A copy of the project with that line in it must
fail the tests named beside it, which pass without it; the exit status is 1 if a mutant passes, or if its line
is no longer there.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]


class Mutant(NamedTuple):
    what: str
    path: str
    old: str
    new: str
    tests: str  # of pytest, with its options
    environment: dict = {}


# What is wrong, the file, other tests than its own, and the lines before and after, as a diff has them.
BY_HAND = """\
InBatch masks every slot that holds the row's label, not its own slot alone
samplers/in_batch.py: test_consistency.py samplers/test_in_batch.py -k InBatch
- return pool, PoolCounts(self._num_draws(given), self._log_probs(pool), owner)
+ return pool, tf.where(tf.reduce_any(pool[:, tf.newaxis] == given[:, tf.newaxis], -1), float('inf'),
+         self.log_expected_count(given, pool[tf.newaxis]))

InBatch counts a row's own slots among its draws
samplers/in_batch.py
- num_draws = num_labels - num_own
+ num_draws = num_labels + 0.0 * num_own

InBatch as a part of a mixture forgets which slots are empty
samplers/mixture.py
- tf.where(tf.concat(empty, 1), float("inf"), log_expected_count)
+ tf.where(tf.concat(empty, 1), log_expected_count, log_expected_count)

a mixture corrects each part by its own count
samplers/mixture.py
- return tf.reduce_logsumexp(tf.stack([tf.broadcast_to(part, shape) for part in parts]), axis=0)
+ return tf.reduce_max(tf.stack([tf.broadcast_to(part, shape) for part in parts]), axis=0)

ranking: draws that hit a label are left out
losses/softmax.py: test_consistency.py -k ranking
- "ranking": LOGSUMEXP_OF_CANDIDATES,
+ "ranking": LOGSUMEXP_OF_CANDIDATES._replace(without_hits=True),

nce: draws that hit a label are left out
losses/softmax.py: test_consistency.py -k nce
-         SOFTPLUS.merge,
+         SOFTPLUS.merge,
+         without_hits=True,

ranking: a label that was passed over is no candidate for the others
losses/softmax.py: test_consistency.py -k 'Hard and ranking'
- if label_slots is None:
-                 return
+ if True:
+                 return

nce: a label that was passed over is no noise
losses/softmax.py: test_consistency.py -k 'Hard and nce'
- folded += tf.reduce_sum(label_slots * tf.nn.softplus(corrected), axis=1, keepdims=True)
+ pass

codebooks learn from a softmax that is not estimated by expected counts
samplers/codebook_learner.py: samplers/test_learned_midx.py
- log_total = tf.reduce_logsumexp(logits + estimate.log_share, 1, keepdims=True)
+ log_total = tf.reduce_logsumexp(logits, 1, keepdims=True)

partition: draws that hit a label count beside it
losses/softmax.py: test_consistency.py losses/test_softmax.py -k partition
- "partition": LOGSUMEXP_OF_CANDIDATES._replace(without_hits=True),
+ "partition": LOGSUMEXP_OF_CANDIDATES,

partition, by the compiled op: draws that hit a label count beside it
layers/dense_head.py: model/test_step.py -k one_by_one
- class_ids = tf.where(hits(class_ids, labels) >= 0, -1, class_ids)
+ pass

partition, one by one: draws that hit a label count beside it
losses/reductions.py: model/test_step.py -k one_by_one
- self.fold(candidates.without(hits >= 0) if self.without_hits else candidates)
+ self.fold(candidates)

an empty slot is scored as a candidate
layers/head.py: layers/test_head.py -k empty_slot
- Scored(logits, counted, head.num_classes).without(empty)
+ Scored(logits, counted, head.num_classes)

decoupled, over all classes: the other labels stay in
losses/softmax.py: losses/test_softmax.py -k decoupled
- rest = 1.0 - (tf.reduce_sum(share, 1, keepdims=True) - share)
+ rest = 1.0 - 0.0 * (tf.reduce_sum(share, 1, keepdims=True) - share)

binary cross-entropy: a draw that hits a label is a negative
losses/reductions.py: losses/test_binary.py
- lambda parts: tf.add_n(list(parts)), without_hits=True)
+ lambda parts: tf.add_n(list(parts)), without_hits=False)

k-means sees rows drawn uniformly
samplers/quantization.py: samplers/test_quantization.py samplers/test_midx.py -k rows
- ids, weights = sample_by_weight(weights, num_rows, seed)
+ ids = np.random.default_rng(seed).permutation(len(weights))[:num_rows]
+     weights = weights[ids]

the classes of a cell are drawn alike
samplers/midx.py
- log_weights = frequencies.log_of_classes - self._log_of_cells(codebooks, frequencies.log_of)[cell]
+ log_weights = 0 * frequencies.log_of_classes

a heavy class fills the slots of other cells
samplers/alias.py: samplers/test_unigram.py -k alias
- heavy[np.clip(filler, last_of - num_heavy[group[light]] + 1, last_of)]
+ heavy[np.minimum(filler, len(heavy) - 1)]

a heavy class whose slot is emptied stays in it
samplers/alias.py: samplers/test_unigram.py -k alias
- np.clip(1 - (gaps[emptied[index]] - excess[index]), 0, 1)
+ 1.0

frequencies leave out that queries differ
samplers/moments.py
- np.square(vectors) @ square
+ 0

a rewired weight keeps its first moment
optimizers/slots.py
- fresh = np.zeros(len(values), np.float32)
+ fresh = np.ones(len(values), np.float32)

a rewired weight's second moment starts from 0
optimizers/slots.py
- if name in _SIZES:
+ if name in ():

averages over all points leave out those without a label
metrics/ranking_metric.py
- if self.average == "all":
+ if self.average == "every":

SET moves no connection of a small fan-in
layers/uniform_sparse_head.py: layers/test_uniform_sparse_head.py callbacks/test_sparse_evolution.py
- num_moved = max(round(fraction * self.fan_in), 1) if fraction else 0
+ num_moved = round(fraction * self.fan_in)

a NaN logit hides its block
search/exact.py: search/test_exact.py layers/test_head.py -k nan
- not_inlined(lambda: cut(_without_nan(logits)))
+ not_inlined(lambda: cut(logits))

rows without a NaN above the k-th best are not looked at
search/exact.py: search/test_exact.py layers/test_head.py -k nan
- rows = tf.where((largest > carry[0][:, -1]) | diverged)
+ rows = tf.where(largest > carry[0][:, -1])

fit does not refresh an index by itself
callbacks/sampler_refresh.py
- if sampler is None or not (has_index(sampler) or
+ if sampler is None or (has_index(sampler) or

running counts count a class once a step
samplers/class_counts.py: samplers/test_in_batch.py samplers/test_class_counts.py
- labels = tf.boolean_mask(labels, labels >= 0)
+ labels = tf.unique(tf.boolean_mask(labels, labels >= 0))[0]

the log of the partition function comes from another query's draw
samplers/midx.py: samplers/test_midx.py -k distribution
- - log_total[:, tf.newaxis]
+ - log_total[::-1, tf.newaxis]

hard negatives are weighted as uniform draws
samplers/hard_negatives.py
- return ids, tf.where(is_certain, 0.0, self._log_expected_count_outside(hard, passed))
+ return ids, tf.where(is_certain & (ids < 0), 0.0, self._log_expected_count_outside(hard, passed))
"""


def written(text):
    for block in text.strip().split("\n\n"):
        what, where, *lines = block.split("\n")
        path, _, tests = where.partition(": ")
        tests = tests or re.sub(r"(\w+\.py)", r"test_\1", path)  # those that mirror the file
        old, new = ("\n".join(line[2:] for line in lines if line[0] == sign) for sign in "-+")
        yield Mutant(what, f"tfxc/{path}", old, new, re.sub(r"(\S+\.py)", r"tests/\1", tests))


def forks():
    """A mutant for each place of ``_keras`` that asks which Keras runs: tf-keras passes for Keras 3 there."""
    for path in sorted((ROOT / "tfxc" / "_keras").glob("*.py")):
        lines = path.read_text(encoding="utf-8").split("\n")
        for number, line in enumerate(lines):
            if re.search(r"\bIS_KERAS_3\b", line) and "import" not in line and "IS_KERAS_3 =" not in line:
                before = lines[max(number - 3, 0) : number]
                yield Mutant(
                    f"tf-keras passes for Keras 3 in {path.name}, line {number + 1}: {line.strip()}",
                    str(path.relative_to(ROOT)),
                    "\n".join([*before, line]),
                    "\n".join([*before, line.replace("IS_KERAS_3", "(not IS_KERAS_3)")]),
                    "-m both_keras --doctest-modules tests/_keras tfxc/_keras tests",
                    {"TF_USE_LEGACY_KERAS": "1"},
                )


MUTANTS = [*written(BY_HAND), *forks()]


def copy_of_the_project(folder):
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True)
    built = [path.relative_to(ROOT) for path in (ROOT / "tfxc" / "ops").glob("_tfxc_ops.*")]
    for path in [*tracked.stdout.split(), *built]:
        if (ROOT / path).exists():
            target = Path(folder, path)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / path, target)


def verdict(mutant, folder):
    path = Path(folder, mutant.path)
    text = path.read_text(encoding="utf-8")
    if text.count(mutant.old) != 1:
        return "LINE IS GONE"
    path.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
    code = status_of_tests(mutant, folder)
    path.write_text(text, encoding="utf-8")
    # Only a test that failed has found something: where none was chosen or read, the status is another.
    return {0: "MISSED", 1: "found"}.get(code, f"pytest ended with {code}")


def status_of_tests(mutant, folder):
    options = ["-q", "-x", "-p", "no:cacheprovider", *shlex.split(mutant.tests)]
    process = os.fork()  # of this one, which has imported TensorFlow and not started it
    if not process:
        os._exit(run_tests(folder, options, mutant.environment))
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def run_tests(folder, options, environment):
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nowhere, stream)
    os.environ.update({"PYTHONPATH": str(folder), **environment})
    os.chdir(folder)
    sys.path[0] = str(folder)
    return pytest.main(options)


def main():
    wanted = sys.argv[1:]
    mutants = [m for m in MUTANTS if not wanted or any(word in m.what for word in wanted)]
    missed = 0
    import keras  # noqa: F401
    import tensorflow  # noqa: F401
    import tf_keras  # noqa: F401

    with tempfile.TemporaryDirectory() as folder:
        copy_of_the_project(folder)
        for mutant in {(one.tests, *one.environment): one for one in mutants}.values():
            if code := status_of_tests(mutant, folder):
                sys.exit(f"Without a mutant, pytest ended with {code}: {mutant.tests}")
        for mutant in mutants:
            result = verdict(mutant, folder)
            missed += result != "found"
            print(f"{result:12} {mutant.what}", flush=True)
    print(f"{len(mutants) - missed} of {len(mutants)} found")
    sys.exit(missed > 0)


if __name__ == "__main__":
    main()
