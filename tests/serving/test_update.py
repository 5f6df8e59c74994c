import numpy as np
import pytest
import tensorflow as tf
from long_cases import long_after

import tfxc
from tfxc._keras import keras
from tfxc.layers import DenseHead, EncodedHead
from tfxc.search import InvertedIndex
from tfxc.serving import update

DIM, NUM_CLASSES = 6, 40
NAMES = [f"item {number}" for number in range(NUM_CLASSES)]
HISTORIES = [["item 5", "new 2", "item 1", "unknown"], ["new 1", "item 8", "", ""]]


def random(*shape):
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


def pooled(num_rows=NUM_CLASSES + 1):
    history = keras.Input((4,), dtype="int32", name="history")
    items = keras.layers.Embedding(num_rows, DIM, mask_zero=True, name="items")(history)
    return keras.Model(history, keras.layers.GlobalAveragePooling1D()(items))


def model_of(head="normalized", encoder=None, class_names=NAMES):
    encoder = encoder or keras.Sequential([keras.Input((DIM,), name="x"), keras.layers.Activation("linear")])
    if head == "tied":
        encoder, head = pooled(), DenseHead(NUM_CLASSES, tied_to="items", row_offset=1, use_bias=True)
    elif head == "encoded":
        item_encoder = keras.Sequential([keras.Input((3,)), keras.layers.Dense(DIM)])
        head = EncodedHead(item_encoder, random(NUM_CLASSES, 3))
    elif head == "bfloat16":
        head = DenseHead(NUM_CLASSES, table_dtype="bfloat16")
    elif head == "normalized":
        head = DenseHead(NUM_CLASSES, normalize=True, temperature=0.1)
    model = tfxc.ExtremeClassifier(encoder, head, k=5, class_names=class_names)
    model.queries(tf.ones([1, *encoder.inputs[0].shape[1:]], encoder.inputs[0].dtype))
    return model


def index_of(model, dtype, num_scanned=4):
    index = InvertedIndex(num_cells=5, dtype=dtype, num_scanned=num_scanned)
    index.build_from(model.head)
    return index


def answers(path, inputs, **options):
    """For each query a dict, name -> score, best first, of all classes that are found."""
    loaded = tf.saved_model.load(str(path))
    out = loaded.serve(tf.constant(inputs), k=tf.constant(1000), **options)
    rows = zip(out["names"].numpy(), out["scores"].numpy(), strict=True)
    return [{name.decode(): score for name, score in zip(*row, strict=True) if name} for row in rows]


@pytest.mark.traced
@pytest.mark.both_keras
@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        ("tied", None),
        ("normalized", "int8"),
        *long_after(0, ("encoded", None), ("bfloat16", None), ("normalized", None)),
        *long_after(0, ("tied", "float32"), ("bfloat16", "float32"), ("encoded", "bfloat16")),
    ],
)
def test_one_after_another_ranks_as_all_vectors_do(tmp_path, kind, dtype):
    model, is_tied = model_of(kind), kind == "tied"
    model.export(tmp_path / "0", index=index_of(model, dtype) if dtype else None, strings=is_tied)
    rows = dict(zip(NAMES, model.head.class_vectors(0, NUM_CLASSES).numpy(), strict=True))
    for day in range(1, 3):
        added, removed = [f"new {day}", "item 5", f"newer {day}"], [f"item {day}", f"item {day + 30}"]
        removed += ["item 39", "item 38", "newer 1", "item 20"] if day == 2 else []
        vectors, biases = day * random(3, DIM), random(3) if is_tied else None
        update(tmp_path / f"{day - 1}", tmp_path / f"{day}", added, vectors, removed=removed, biases=biases)
        if kind == "normalized":
            vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        vectors = np.column_stack([vectors, biases]) if is_tied else vectors
        rows = {name: row for name, row in rows.items() if name not in removed}
        rows |= dict(zip(added, vectors, strict=True))
    inputs, queries = HISTORIES if is_tied else random(2, DIM), random(2, DIM)
    if kind == "normalized":
        queries /= 0.1 * np.linalg.norm(queries, axis=1, keepdims=True)
    if is_tied:
        histories = [[rows[name] for name in history if name in rows] for history in HISTORIES]
        queries = np.stack([[*np.mean(history, 0)[:DIM], 1] for history in histories])
    got = answers(tmp_path / "2", inputs, **({"num_probes": tf.constant(99)} if dtype else {}))
    rounding = 1e-5 if {kind, dtype}.isdisjoint({"int8", "bfloat16"}) else 0.02
    for query, found in zip(queries, got, strict=True):
        want = {name: query @ row for name, row in rows.items()}
        assert found.keys() == want.keys()
        np.testing.assert_allclose([found[name] for name in want], list(want.values()), atol=5 * rounding)


@pytest.mark.long
@pytest.mark.traced
def test_ids_and_rows_of_few_bits_stay(tmp_path):
    model = model_of(DenseHead(NUM_CLASSES))
    model.export(tmp_path / "1", index=index_of(model, "int8", num_scanned=0))
    update(tmp_path / "1", tmp_path / "2", ["new"], random(1, DIM), removed=["item 3"])
    before, after = (answers(tmp_path / version, random(2, DIM)) for version in "12")
    for old, new in zip(before, after, strict=True):
        assert {**old, "new": new["new"]} == {**new, "item 3": old["item 3"]}
