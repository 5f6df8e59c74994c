"""One training run on record: quality by training time, checkpoints, early stopping, resume."""

import json
import os
import sys
import time

import numpy as np
import tensorflow as tf
from tensorflow import keras

from common.arguments import count, rate
from common.run_options import check_options

# Options that may change when a run is resumed: which others there are, where all go, how they are shown, and
# when one stops for lack of progress. Not the number of epochs, along which the learning rate falls.
_OF_NO_RUN = {"samplers", "heads", "negatives", "repetitions", "merge", "output", "verbose", "patience"}
# A progress bar overwrites its line, which only a terminal can.
VERBOSE = 1 if sys.stdout.isatty() else 2


def add_arguments(add):
    """The options of a training run."""
    add("--epochs", type=count, default=1)
    add("--patience", type=count, default=5, help="epochs without progress before a run stops")
    add("--learning-rate", type=rate, default=2e-3, help="at the start; falls to 0 along a cosine")
    add("--seed", type=int, default=0)
    add("--verbose", type=int, choices=(1, 2), default=VERBOSE, help="a progress bar, or lines")


class TrainingLog(keras.callbacks.Callback):
    """After each epoch: a line of history, a checkpoint of the last and of the best state; stops early.

    The clock stands still during validation, and while the files are written, so times of different samplers
    compare; what a search behind training computes meanwhile is not counted. A run that was cut off goes
    on from its last whole epoch.

    Args:
        folder: where ``history.json`` and the checkpoints go.
        model: the compiled model.
        patience: epochs without a better ``metric`` after which training stops.
        metric: name of the validation metric in the logs.
        mode: "max" where more of it is better, or "min".
        sample: None, or a ``QualitySample``, which is measured ten times an epoch; it stands under "curve" in
            the row of the epoch.
        num_steps: with a sample, steps an epoch.
        verbose: as that of Keras; 2 prints a line for each of these times, too.
        options: None, or the command line as a dict: a run that was made with other options is not resumed.
    """

    def __init__(
        self,
        folder,
        model,
        patience,
        metric="val_ndcg_at_10",
        mode="max",
        sample=None,
        num_steps=None,
        verbose=1,
        options=None,
    ):
        super().__init__()
        self.set_model(model)
        os.makedirs(folder, exist_ok=True)
        self.folder = folder
        self.path = os.path.join(folder, "history.json")
        self.patience = patience
        self.metric = metric
        self.best_of = {"max": max, "min": min}[mode]
        self.state = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
        self.last = tf.train.CheckpointManager(self.state, os.path.join(folder, "last"), max_to_keep=1)
        self.best = tf.train.CheckpointManager(self.state, os.path.join(folder, "best"), max_to_keep=1)
        self.rows = []
        self.sample = sample
        self.num_steps = num_steps
        self.verbose = verbose
        self.options = options

    def resume(self, train_set=None):
        """Restores the last whole epoch, if there is one; returns how many epochs are done.

        Training batches of ``tfxc.data`` go on with the order of the next one.

        Raises:
            SystemExit: if the run in the folder was made with other options.
        """
        check_options(self.folder, self.options or {}, _OF_NO_RUN)
        if os.path.exists(self.path) and self._restore(self.last):
            with open(self.path, encoding="utf-8") as file:
                rows = json.load(file)
            # That of an epoch may be written, and its state not yet.
            self.rows = rows[: int(self.last.latest_checkpoint.rpartition("-")[2])]
        if order := getattr(train_set, "epoch_order", None):  # there is one where batches are shuffled
            order.next = len(self.rows)
        return len(self.rows)

    def fit(self, train_set, validation_set, epochs, callbacks=(), **options):
        """Trains the model from where ``resume`` found it to its end, if it is not there.

        Args:
            train_set: the batches of the epochs to come.
            validation_set: what the metric is of.
            epochs: how many there are in all.
            callbacks: others, which come before this one.
            options: more of Keras's ``fit``.
        """
        done = len(self.rows)
        if done >= epochs or self.done:
            return
        resumed = f", resumed after {done}" if done else ""
        print(f"\n== {os.path.basename(self.folder)}: {self.model.count_params():,} weights{resumed}")
        self.model.fit(
            train_set,
            validation_data=validation_set,
            initial_epoch=done,
            epochs=epochs,
            callbacks=[*callbacks, self],
            verbose=self.verbose,
            **options,
        )

    def restore_best(self):
        self._restore(self.best)

    def _restore(self, manager):
        """Whether there was a checkpoint. The optimizer's part waits for training, which may not come."""
        path = manager.latest_checkpoint
        if path:
            self.state.restore(path).expect_partial()
        return path is not None

    @property
    def seconds(self):
        return self.rows[-1]["seconds"] if self.rows else 0.0

    @property
    def processor_seconds(self):
        return self.rows[-1].get("processor_seconds", 0.0) if self.rows else 0.0

    @property
    def done(self):
        """Whether the last ``patience`` epochs brought nothing."""
        return bool(self.rows) and len(self.rows) - 1 - self._best_epoch() >= self.patience

    def _best_epoch(self):
        return self.best_of(range(len(self.rows)), key=lambda epoch: self.rows[epoch][self.metric])

    def on_train_begin(self, logs=None):
        self._start_clocks()

    def _start_clocks(self):
        """Before other callbacks begin an epoch, which may refresh a sampler then."""
        self._start, self._paused, self._curve = clocks(), np.zeros(2), []

    def on_train_batch_end(self, batch, logs=None):
        if self.sample is None or (batch + 1) * 10 // self.num_steps == batch * 10 // self.num_steps:
            return
        self.on_test_begin()
        seconds, processor_seconds = map(float, self._test_start - self._start - self._paused)
        seconds += self.seconds
        epochs, quality = len(self.rows) + (batch + 1) / self.num_steps, self.sample.measure()
        point = {"epoch": epochs, "seconds": seconds, "quality": quality}
        self._curve.append(point | {"processor_seconds": self.processor_seconds + processor_seconds})
        if self.verbose == 2:
            print(f"epoch {epochs:.1f}: {seconds:.0f} s, {self.sample.name} {quality:.4f}", flush=True)
        self.on_test_end()

    def on_test_begin(self, logs=None):
        self._test_start = clocks()

    def on_test_end(self, logs=None):
        self._paused += clocks() - self._test_start

    def on_epoch_end(self, epoch, logs=None):
        seconds, processor_seconds = map(float, clocks() - self._start - self._paused)
        row = {"epoch": epoch + 1, "seconds": self.seconds + seconds, "curve": self._curve}
        row["processor_seconds"] = self.processor_seconds + processor_seconds
        self.rows.append(row | {name: float(value) for name, value in logs.items()})
        with open(self.path + ".writing", "w", encoding="utf-8") as file:
            json.dump(self.rows, file, indent=1)
        os.replace(self.path + ".writing", self.path)
        if self._best_epoch() == len(self.rows) - 1:
            self.best.save(len(self.rows))
        self.last.save(len(self.rows))  # the epoch is done
        self.model.stop_training = self.done
        self._start_clocks()


def clocks():
    """Seconds that passed, and those of the processor over all cores."""
    return np.array([time.perf_counter(), time.process_time()])


def markdown_table(titles, rows):
    """Rows of text as a Markdown table, the first column to the left."""
    lines = [titles, ["---"] + ["---:"] * (len(titles) - 1), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def seconds_an_epoch(row):
    return row["seconds"] / max(row["epochs"], 1)


def times(row):
    """Epochs, training seconds and seconds an epoch, as text."""
    return [str(row["epochs"]), f"{row['seconds']:.1f}", f"{seconds_an_epoch(row):.1f}"]
