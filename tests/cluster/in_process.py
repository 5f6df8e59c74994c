"""Trains with two workers and two servers, threads of this process, and prints as JSON what came of it.

For test_servers.py, and less of it without "long". A program of its own: TensorFlow connects a process to one
cluster, for good.
"""

import contextlib
import json
import os
import sys
import unittest.mock

import numpy as np
import tensorflow as tf
from processes import free_addresses

import tfxc
from tfxc._keras import keras
from tfxc.cluster.place import place

NUM_CLASSES, DIM, NUM_POINTS, BATCH = 20_001, 8, 1024, 64  # above the height from which tables are cut


def midx():
    return tfxc.samplers.MIDX(20, num_codewords=8, seed=1)


def mixed():
    return tfxc.samplers.Mixture([tfxc.samplers.InBatch(20), midx(), tfxc.samplers.Unigram(20, seed=1)])


def cluster():
    addresses = free_addresses(4)
    spec = tf.train.ClusterSpec({"worker": addresses[:2], "ps": addresses[2:]})
    # Threads that wait for each other, more of them than the machine has processors.
    config = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=8)
    for job in spec.jobs:
        for task in range(2):
            tf.distribute.Server(spec, job_name=job, task_index=task, protocol="grpc", config=config)
    return tf.distribute.cluster_resolver.SimpleClusterResolver(spec, rpc_layer="grpc")


def data():
    random = np.random.default_rng(0)
    centres = random.normal(size=(NUM_CLASSES, DIM)).astype(np.float32)
    labels = random.choice([0, 7, 10_000, 10_001, 20_000], NUM_POINTS).astype(np.int32)
    return centres[labels] + 0.1 * random.normal(size=(NUM_POINTS, DIM)).astype(np.float32), labels


def make_model(sampler=None, head=None):
    encoder = keras.Sequential([keras.Input((DIM,)), keras.layers.Dense(DIM)])
    head = head or tfxc.layers.DenseHead(NUM_CLASSES, use_bias=True)
    model = tfxc.ExtremeClassifier(encoder, head, sampler, k=3)
    loss, metrics = tfxc.losses.SoftmaxCrossentropy(), [tfxc.metrics.RecallAtK(3)]
    model.compile(tfxc.optimizers.LazyAdam(0.02), loss=loss, metrics=metrics)
    return model


def trained(strategy, sampler=None, head=None, epochs=2):
    with strategy.scope():
        model = make_model(sampler, head)
    points = tf.data.Dataset.from_tensor_slices(data()).shuffle(NUM_POINTS, seed=1).repeat().batch(BATCH)
    model.fit(points, epochs=epochs, steps_per_epoch=20, verbose=0)
    return model


def evaluated(model):
    tests = tf.data.Dataset.from_tensor_slices(data()).repeat().batch(256)
    return {"evaluated": model.evaluate(tests, steps=4, verbose=0)}


def table_of(model):
    return np.concatenate([part.numpy() for part in model.head.head.table.variables])


def logits_of(model, x):
    bias = np.concatenate([part.numpy() for part in model.head.head.bias.variables])
    return model.encoder(x).numpy() @ table_of(model).T + bias


def looked_up(model):
    x, labels = data()
    logits = logits_of(model, x)
    of_labels = np.take_along_axis(logits, labels[:, np.newaxis], 1)
    loss = np.mean(np.log(np.exp(logits).sum(1)) - of_labels[:, 0])
    recall = np.mean((logits > of_labels).sum(1) < 3)
    return {"evaluated": [float(loss), float(recall)]}


def places(model):
    slots = [model.optimizer.slots_of(weight) for weight in model.head.trainable_variables]
    return {
        "weights": [weight.device for weight in model.head.trainable_variables],
        "slots": [[slot.device for slot in own.values()] for own in slots],
        "index": [[weight.device for weight in part.weights] for part in model.sampler.parts],
        "rows": [weight.shape[0] for weight in model.head.trainable_variables],
    }


def answers(model, x):
    query, logits = model.encoder(x[:4]).numpy(), logits_of(model, x[:4])
    ids = np.array([[0, 10_000, 10_001, 20_000]] * 4, np.int32)
    return {
        "scores": model.head.score(query, tf.constant(ids)).numpy().tolist(),
        "wanted scores": np.take_along_axis(logits, ids, 1).tolist(),
        "best": model.predict(x[:4], verbose=0)["ids"].tolist(),
        "wanted best": np.argsort(-logits, 1)[:, :3].tolist(),
    }


def refusals(strategy):
    parts = {
        "head": (tfxc.layers.MACHHead(NUM_CLASSES, num_buckets=8, num_repetitions=2), None),
        "tied": (tfxc.layers.DenseHead(NUM_CLASSES, tied_to="items"), None),
    }
    found = {}
    for name, (head, sampler) in parts.items():
        with strategy.scope():
            items = keras.Input((3,), dtype="int32")
            query = keras.layers.Embedding(NUM_CLASSES, DIM, name="items")(items)
            try:
                tfxc.ExtremeClassifier(keras.Model(items, query), head, sampler)
            except ValueError as error:
                found[name] = str(error)
    return found


def refused_late(strategy, model, folder):
    found = {}
    shuffled = tfxc.data.row_batches(8, 4, lambda rows: (tf.zeros([4, DIM]), rows), seed=0)

    def export_in_scope():
        with strategy.scope():
            model.export(folder + "/none")

    with strategy.scope():
        encoder = keras.Sequential([keras.Input((DIM,)), keras.layers.Dense(DIM)])
        named = tfxc.ExtremeClassifier(encoder, tfxc.layers.DenseHead(2), class_names=["0", "1"])
    for name, call in {
        "export": export_in_scope,
        "data": lambda: model.fit(shuffled.repeat(), steps_per_epoch=1),
        "model": lambda: model.save(folder + "/none.keras"),
        "folder": lambda: model.save(folder + "/none"),
        "weights": lambda: model.save_weights(folder + "/none.weights.h5"),
        "classes": lambda: tfxc.change_classes(named, ["1", "0"]),
    }.items():
        try:
            call()
        except ValueError as error:
            found[name] = str(error)
    return found


def words_model():
    word, number = keras.Input((1,), dtype="string", name="word"), keras.Input((1,), name="number")
    lookup, normalized = keras.layers.StringLookup(), keras.layers.Normalization()
    lookup.adapt(["tea", "milk"])
    normalized.adapt(np.array([[1.0], [3.0]], np.float32))
    table = keras.layers.Embedding(NUM_CLASSES, DIM)
    parts = [keras.layers.Flatten()(table(lookup(word))), normalized(number)]
    query = keras.layers.Dense(DIM)(keras.layers.Concatenate()(parts))
    return tfxc.ExtremeClassifier(keras.Model([word, number], query), tfxc.layers.DenseHead(NUM_CLASSES))


def exports(model, alone, words, folder):
    found = {}
    for name, own in {"shards": model, "alone": alone, "words": words}.items():
        own.export(f"{folder}/{name}")
    inputs = [tf.constant([["tea"], ["rum"]]), tf.constant([[1.0], [5.0]])]
    found["words"] = words.predict(inputs, verbose=0)["ids"].tolist()
    broken = unittest.mock.patch.object(tfxc.cluster.exported, "write_tables", side_effect=KeyboardInterrupt)
    with broken, contextlib.suppress(KeyboardInterrupt):
        model.export(f"{folder}/shards")
    return found


def followed(model, folder):
    counts = np.arange(1, NUM_CLASSES + 1)
    alone = make_model(tfxc.samplers.Unigram(20, counts=counts, smoothing=0, seed=1))
    tfxc.cluster.Checkpoint(alone, folder).save(0)
    tfxc.cluster.Checkpoint(model, folder).restore()
    model.fit(tf.data.Dataset.from_tensor_slices(data()).repeat().batch(BATCH), steps_per_epoch=1, verbose=0)
    parts = np.split(counts / counts.sum(), [model.sampler.parts[0].num_classes])
    return {
        "got": [float(np.exp(log_mass.numpy())) for log_mass in model.sampler.log_masses],
        "wanted": [float(part.sum()) for part in parts],
    }


def counted(model):
    in_batch, midx, unigram = model.sampler.samplers
    counts = [part.running_counts for part in unigram.parts]
    occurrences = [in_batch.running_counts.occurrences.variables, [own.occurrences for own in counts]]
    return {
        "labels": [np.concatenate([part.numpy() for part in own])[data()[1]].tolist() for own in occurrences],
        "totals": [int(in_batch.running_counts.total.numpy()), sum(int(own.total.numpy()) for own in counts)],
        "places": [[part.device for part in own] for own in occurrences],
        "index": [[weight.device for weight in part.weights] for part in midx.parts],
        "drawn": float(sum(np.exp(log_mass.numpy()) for log_mass in unigram.log_masses)),
    }


def begun(strategy):
    with strategy.scope():
        head = tfxc.layers.DenseHead(NUM_CLASSES)
        head.build((None, DIM))
    parts = [part.numpy() for part in head.table.variables]
    return {"spread": [float(part.std()) for part in parts], "differ": len(np.unique(np.concatenate(parts)))}


def evolved(model):
    x, labels = data()
    new, known = [], []

    def note(epoch, logs):
        for weights in model.head.head.kernel.variables if epoch else []:
            momentum = model.optimizer.slots_of(weights)["momentum"].numpy()[weights.numpy() == 0]
            new.append(len(momentum))
            known.append(int(momentum.any()))

    callbacks = [
        tfxc.callbacks.SparseEvolution(0.25, every="epoch"),
        keras.callbacks.LambdaCallback(on_epoch_begin=note),
        tfxc.callbacks.SamplerDiagnostics(x[:64], labels[:64]),
    ]
    points = tf.data.Dataset.from_tensor_slices((x, labels)).repeat().batch(BATCH)
    logs = model.fit(points, steps_per_epoch=5, epochs=2, callbacks=callbacks, verbose=0).history
    return {"logs": logs, "new": new, "known": known}


def frozen(strategy):
    with strategy.scope():
        model = make_model(midx(), tfxc.layers.DenseHead(NUM_CLASSES, trainable=False))
    points = tf.data.Dataset.from_tensor_slices(data()).repeat().batch(BATCH)
    changes = []
    for _ in range(2):
        before = table_of(model), model.encoder.get_weights()[0]
        model.fit(points, steps_per_epoch=2, verbose=0)
        after = table_of(model), model.encoder.get_weights()[0]
        changes.append([bool((a != b).any()) for a, b in zip(before, after, strict=True)])
        model.head.trainable = True
        with strategy.scope():
            model.compile(tfxc.optimizers.LazyAdam(0.02), loss=tfxc.losses.SoftmaxCrossentropy())
    return changes


def drawn_outside_of_graphs(model):
    counter, query = model.sampler.counter, tf.zeros([2, model.head.effective_dim])
    before = int(counter.numpy())
    step = tfxc.samplers.Step(query, tf.zeros([2, 1], tf.int32))
    first, second = (model.sampler.sample(step).ids.numpy() for _ in range(2))
    softmax, differ = tfxc.losses.SoftmaxCrossentropy(), bool((first != second).any())
    loss = float(tfxc.head_loss(model.head, softmax, query[:, :DIM], [3, 4], model.sampler))
    counted = int(counter.numpy()) - before
    return {"ids": first.tolist(), "differ": differ, "loss": loss, "counted": counted}


def projected(strategy):
    with strategy.scope():
        head, _ = place(tfxc.layers.UniformSparseHead(NUM_CLASSES, fan_in=2, seed=1), None)
        head.build((None, 1 << 14))
    head.observe(tf.random.stateless_normal([8, 1 << 14], [1, 2]))
    head.prepare_index()
    vectors = head.class_vectors(NUM_CLASSES - 2, NUM_CLASSES).numpy()
    places = [weight.device for weight in (head.head.directions, head.head.query_moments)]
    return places, np.abs(vectors).sum(1).tolist()


def far_off(found, wanted):
    return float(tf.reduce_max(tf.abs(found - wanted)) / tf.reduce_max(tf.abs(wanted)))


def main(folder, is_long):
    resolver = cluster()
    strategy = tfxc.cluster.strategy(resolver)
    model, x = trained(strategy, midx()), data()[0]
    results = {"midx": evaluated(model), "counter": int(model.sampler.counter.numpy())}
    tfxc.cluster.Checkpoint(model, folder).save(2)
    results |= {"places": places(model), "answers": answers(model, x)}
    query, ids = model.encoder(x[:4]), tf.range(0, NUM_CLASSES, 100)
    effective = model.head.effective_query(query)
    wanted = model.head.score(query, ids), model.sampler.log_prob(effective, ids)

    def restored(scope):
        with scope:
            again = make_model(midx())
        epoch = tfxc.cluster.Checkpoint(again, folder).restore()
        found = again.head.score(query, ids), again.sampler.log_prob(effective, ids)
        return again, [epoch, len(again.head.trainable_variables), *map(far_off, found, wanted)]

    alone, results["alone"] = restored(contextlib.nullcontext())
    results["refused"] = refusals(strategy) | refused_late(strategy, model, folder)
    with strategy.scope():
        head, small = place(tfxc.layers.DenseHead(100), midx())
        head.build((None, DIM))
        small.build((100, DIM))
    (part,) = small.parts
    results["places of a small index"] = sorted({weight.device for weight in part.weights})
    results["drawn outside"] = drawn_outside_of_graphs(model)
    if is_long:
        _, results["four shards"] = restored(tfxc.cluster.strategy(resolver, num_shards=4).scope())
        results["memory"] = [tfxc.memory_report(own) for own in (model, alone)]
        with strategy.scope():
            words = words_model()
        results["exported"] = exports(model, alone, words, folder)
        results |= more(strategy, folder)
    print(json.dumps(results), flush=True)


def more(strategy, folder):
    results = {"begun": begun(strategy)}
    with strategy.scope():
        model = make_model(tfxc.samplers.Unigram(20, counts=np.ones(NUM_CLASSES), seed=1))
    results["followed"] = followed(model, folder + "/counts")
    mixture = trained(strategy, mixed())
    results |= {"mixture": looked_up(mixture), "counted": counted(mixture)}
    results["none"] = looked_up(trained(strategy))
    head = tfxc.layers.UniformSparseHead(NUM_CLASSES, fan_in=4, use_bias=True, seed=1)
    model = trained(strategy, tfxc.samplers.Unigram(500, shared=True, seed=1), head)
    results |= {"sparse shared": evaluated(model), "evolved": evolved(model)}
    return results | {"frozen": frozen(strategy), "projected": projected(strategy)}


if __name__ == "__main__":
    main(sys.argv[1], "long" in sys.argv[2:])
    os._exit(0)  # servers have no way to stop
