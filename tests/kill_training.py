"""Kills a training again and again at random moments, and compares its end with that of an uninterrupted one.

    python tests/kill_training.py --kills 100

The training has all that has a state: dropout, shuffled arrays, a growing refresh of MIDX, connections
that move, hard negatives that are mined, a learning rate that falls on plateaus. Each process is killed
(SIGKILL) at a random moment after it began to train, or in the middle of a save, a refresh, an evolution or
the mining, and the script is run again until it gets through; then all variables, the history and the loss of
every step must be those of the uninterrupted training, bit for bit.
"""

import argparse
import collections
import contextlib
import hashlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from unittest import mock

import numpy as np

import tfxc
from tfxc import checked_file
from tfxc._keras import keras
from tfxc._keras.training import variables_of_training
from tfxc.mining import hard_negative_mining

EPOCHS, STEPS, BATCH, NUM_CLASSES, DIM = 7, 20, 8, 60, 12
SAVE_FREQ = 7


class Patient(hard_negative_mining.BackgroundSearch):
    def __init__(self, *args):
        super().__init__(*args)
        self._thread.join()


class Record(keras.callbacks.Callback):
    def __init__(self, pause):
        super().__init__()
        self.losses, self.pause = [], pause

    def on_train_begin(self, logs=None):
        print("step", flush=True)

    def on_train_batch_end(self, batch, logs=None):
        self.losses.append((batch, float(logs["loss"])))
        time.sleep(self.pause)


def slow(owner, name, stage, pause):
    function = getattr(owner, name)

    def said(*args, **kwargs):
        print(stage, flush=True)
        time.sleep(pause)
        result = function(*args, **kwargs)
        time.sleep(pause)
        print("step", flush=True)
        return result

    return mock.patch.object(owner, name, said)


def train(folder, pause=0.0):
    with (
        slow(checked_file, "_write_index", "save", pause),
        slow(checked_file.os, "replace", "rename", pause),
        slow(tfxc.samplers.MIDX, "refresh", "refresh", pause),
        slow(tfxc.layers.UniformSparseHead, "rewire", "evolution", pause),
        slow(Patient, "__init__", "mining", pause),
        mock.patch.object(hard_negative_mining, "BackgroundSearch", Patient),
    ):
        return digest_of(*fitted(folder, pause))


def fitted(folder, pause):
    keras.utils.set_random_seed(5)
    encoder = keras.Sequential([keras.Input((DIM,)), keras.layers.Dense(140), keras.layers.Dropout(0.3)])
    # So many inputs that the sparse head projects its weights.
    samplers = [tfxc.samplers.HardNegatives(2, 4, num_retrieved=8), tfxc.samplers.MIDX(6, num_codewords=4)]
    head = tfxc.layers.UniformSparseHead(NUM_CLASSES, fan_in=8)
    model = tfxc.ExtremeClassifier(encoder, head, tfxc.samplers.Mixture(samplers), k=5)
    loss, metric = tfxc.losses.BinaryCrossentropy(), tfxc.metrics.RecallAtK(5)
    model.compile(tfxc.optimizers.LazyAdam(0.02), loss=loss, metrics=[metric])
    rng = np.random.default_rng(0)
    x = rng.normal(size=(STEPS * BATCH - 3, DIM)).astype(np.float32)
    y = rng.integers(0, NUM_CLASSES, len(x))
    record = Record(pause)
    callbacks = [
        tfxc.callbacks.BackupAndRestore(os.path.join(folder, "backup"), save_freq=SAVE_FREQ),
        tfxc.callbacks.SamplerRefresh(5, growth=1.2),
        tfxc.callbacks.SparseEvolution(0.2, every=13),
        tfxc.callbacks.HardNegativeMining(os.path.join(folder, "mining"), len(x), 2, 1, curriculum=3),
        keras.callbacks.ReduceLROnPlateau(monitor="val_loss", factor=0.7, patience=1, min_delta=0.1),
        keras.callbacks.EarlyStopping(monitor="val_loss", patience=5, restore_best_weights=True),
        record,
    ]
    options = {"batch_size": BATCH, "epochs": EPOCHS, "validation_data": (x[:20], y[:20]), "verbose": 0}
    history = model.fit(tfxc.data.with_example_ids(x), y, callbacks=callbacks, **options)
    return model, history, record.losses


def digest_of(model, history, losses):
    digest = hashlib.sha256()
    for name, variable in variables_of_training(model).items():
        digest.update(name.encode() + variable.numpy().tobytes())
    timed = "sampler/refresh_seconds", "sampler/refresh_share", "rewire/seconds", "mining/search_seconds"
    kept = {name: values for name, values in history.history.items() if name not in timed}
    digest.update(repr((kept, history.epoch, losses)).encode())
    assert [batch for batch, _ in losses] == list(range(STEPS)) * EPOCHS
    return digest.hexdigest()


STAGES = ("step", "save", "rename", "refresh", "evolution", "mining")


def life(folder, pause, stage=None, seconds=0.0):
    """Runs the script, and kills it so long after it first is in a stage: its last words, and if it ended."""
    path = os.pathsep.join(filter(None, sys.path))
    environment = {**os.environ, "PYTHONPATH": path, "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, os.path.abspath(__file__), "--train", folder, "--pause", str(pause)]
    said = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        timer = None
        for line in process.stdout:
            said.append(line.strip())
            if timer is None and said[-1] == stage:
                timer = threading.Timer(seconds, process.send_signal, [signal.SIGKILL])
                timer.start()
        process.wait()
        if timer is not None:
            timer.cancel()
    if process.returncode not in (0, -signal.SIGKILL):
        raise SystemExit(f"The training in {folder} failed: {process.returncode}.")
    return said[-1], process.returncode == 0


def survive(num_kills, pause, longest, seed=0):
    rng, hit = random.Random(seed), collections.Counter()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(None):
        expected = train(folder)
    num_trainings, num_twice = 0, 0
    while sum(hit.values()) < num_kills:
        with tempfile.TemporaryDirectory() as folder:
            done, before, most = False, sum(hit.values()), rng.randint(1, 9)
            while not done:
                enough = sum(hit.values()) >= min(num_kills, before + most)
                stage = None if enough else rng.choice(STAGES)
                seconds = rng.uniform(0, longest if stage == "step" else 2 * pause)
                said, done = life(folder, pause, stage, seconds)
                hit.update([] if done else [said if said in STAGES else "end"])
                print(f"{sum(hit.values())} kills", file=sys.stderr, flush=True)
            if said != expected:
                raise SystemExit(f"Training {num_trainings} ended otherwise than the uninterrupted one.")
        num_trainings += 1
        num_twice += sum(hit.values()) > before + 1
        print(
            f"{num_trainings} trainings, {num_twice} of them killed more than once, kills: {dict(hit)}: "
            "all ended alike, bit for bit",
            flush=True,
        )
    return hit


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--longest", type=float, default=5.0, help="seconds until the last one is killed")
    parser.add_argument("--pause", type=float, default=0.01, help="seconds that every stage is drawn out")
    parser.add_argument("--train", metavar="FOLDER", help="what the killed processes do")
    given = parser.parse_args()
    if given.train:
        print(train(given.train, given.pause), flush=True)
    else:
        survive(given.kills, given.pause, given.longest)
