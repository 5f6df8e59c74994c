import os
import shutil
import subprocess
import sys
import time

import numpy as np
import pytest
import tensorflow as tf
from long_cases import long_after
from processes import Process

import tfxc
from tfxc._keras import keras
from tfxc.layers import DenseHead, EncodedHead, MACHHead
from tfxc.search import Attributes, InvertedIndex
from tfxc.serving import servable, update

DIM, NUM_CLASSES = 6, 40
NAMES = [f"item {number}" for number in range(NUM_CLASSES)]
# A few random vectors fit no cell of so few classes well.
FEW = pytest.mark.filterwarnings("ignore:The vectors in the cells of the index")
HISTORIES = [["item 5", "new 2", "item 1", "unknown"], ["new 1", "item 8", "", ""]]


def contents(folder):
    return {file.relative_to(folder): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def random(*shape):
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


def pooled(num_rows=NUM_CLASSES + 1):
    history = keras.Input((4,), dtype="int32", name="history")
    items = keras.layers.Embedding(num_rows, DIM, mask_zero=True, name="items")(history)
    return keras.Model(history, keras.layers.GlobalAveragePooling1D()(items))


def model_of(head="normalized", encoder=None, class_names=NAMES):
    encoder = encoder or keras.Sequential([keras.Input((DIM,), name="x"), keras.layers.Activation("linear")])
    if head == "tied":
        encoder, head = pooled(), DenseHead(NUM_CLASSES, tied_to="items", row_offset=1, use_bias=np.True_)
    elif head in ("encoded", "encoded_biased"):
        item_encoder = keras.Sequential([keras.Input((3,)), keras.layers.Dense(DIM)])
        own = {"use_bias": True, "bias_initializer": keras.initializers.Constant(0.5)}
        head = EncodedHead(item_encoder, random(NUM_CLASSES, 3), **(own if head == "encoded_biased" else {}))
    elif head == "bfloat16":
        head = DenseHead(NUM_CLASSES, table_dtype="bfloat16")
    elif head == "normalized":
        head = DenseHead(NUM_CLASSES, normalize=True, temperature=0.1)
    model = tfxc.ExtremeClassifier(encoder, head, k=5, class_names=class_names)
    model.queries(tf.zeros([1, *encoder.inputs[0].shape[1:]], encoder.inputs[0].dtype))
    return model


def index_of(model, dtype, num_scanned=4):
    index = InvertedIndex(num_cells=5, dtype=dtype, num_scanned=num_scanned)
    index.build_from(model.head)
    return index


def answers(path, inputs, **options):
    """For each query a dict, name -> score, best first, of all classes that are found."""
    loaded = path if hasattr(path, "serve") else tf.saved_model.load(str(path))
    out = loaded.serve(tf.constant(inputs), k=tf.constant(1000), **options)
    rows = zip(out["names"].numpy(), out["scores"].numpy(), strict=True)
    return [{name.decode(): score for name, score in zip(*row, strict=True) if name} for row in rows]


@FEW
@pytest.mark.both_keras
@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        ("tied", None),
        *long_after(0, ("normalized", "int8"), ("encoded", None), ("bfloat16", None), ("normalized", None)),
        *long_after(0, ("tied", "float32"), ("bfloat16", "float32"), ("encoded", "bfloat16")),
        ("encoded_biased", None),
        *long_after(0, ("encoded_biased", "float32"), ("encoded_biased", "int8")),
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
        if kind == "encoded_biased":
            vectors = np.column_stack([vectors, np.full(3, 0.5)])
        vectors = np.column_stack([vectors, biases]) if is_tied else vectors
        rows = {name: row for name, row in rows.items() if name not in removed}
        rows |= dict(zip(added, vectors, strict=True))
    inputs, queries = HISTORIES if is_tied else random(2, DIM), random(2, DIM)
    if kind == "normalized":
        queries /= 0.1 * np.linalg.norm(queries, axis=1, keepdims=True)
    if kind == "encoded_biased":
        queries = np.column_stack([queries, [1, 1]])
    if is_tied:
        histories = [[rows[name] for name in history if name in rows] for history in HISTORIES]
        queries = np.stack([[*np.mean(history, 0)[:DIM], 1] for history in histories])
    got = answers(tmp_path / "2", inputs, **({"num_probes": tf.constant(99)} if dtype else {}))
    rounding = 1e-5 if {kind, dtype}.isdisjoint({"int8", "bfloat16"}) else 0.02
    for query, found in zip(queries, got, strict=True):
        want = {name: query @ row for name, row in rows.items()}
        assert found.keys() == want.keys()
        np.testing.assert_allclose([found[name] for name in want], list(want.values()), atol=5 * rounding)


@FEW
@pytest.mark.long
@pytest.mark.traced
def test_ids_and_rows_of_few_bits_stay(tmp_path):
    model = model_of(DenseHead(NUM_CLASSES))
    model.export(tmp_path / "1", index=index_of(model, "int8", num_scanned=0))
    update(tmp_path / "1", tmp_path / "2", ["new"], random(1, DIM), removed=["item 3"])
    before, after = (answers(tmp_path / version, random(2, DIM)) for version in "12")
    for old, new in zip(before, after, strict=True):
        assert {**old, "new": new["new"]} == {**new, "item 3": old["item 3"]}


@FEW
@pytest.mark.parametrize("with_index", long_after(1, False, True))
def test_attributes_follow(tmp_path, monkeypatch, with_index):
    given = {"country": ["PL", *["FR", "DE"] * 19, "FR"], "price": np.arange(40.0)}
    given["tags"] = [[1], [2, 3]] * 20
    model = model_of()
    model.export(tmp_path / "1", index_of(model, "float32") if with_index else None, attributes=given)
    before, seen = contents(tmp_path), []

    def fail(*arguments):
        seen.extend(os.listdir(tmp_path))  # all that a process which ends here leaves
        raise OSError("disk full")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="disk full"):
        patch.setattr(servable, "write_names", fail)
        update(tmp_path / "1", tmp_path / "2", removed=["item 1"])
    assert sorted(seen) == ["1", "2.writing"] and contents(tmp_path) == before
    more = {"country": ["IT", "DE"], "price": [1.5, 50.0], "tags": [[4, 1, 2], []]}
    arguments = ["new", "item 1"], random(2, DIM)
    removed = ["item 0", "item 2", "item 39"]
    update(tmp_path / "1", tmp_path / "2", *arguments, removed=removed, attributes=more)
    bare = {"country": ["DE"], "price": [0.0], "tags": [[]]}
    update(tmp_path / "2", tmp_path / "3", ["bare"], random(1, DIM), removed=["item 4"], attributes=bare)
    loaded = tf.saved_model.load(str(tmp_path / "3"))
    untagged = {"where_country": [["DE"]], "where_price_max": [[2.0]]}
    for where, names in (
        ({"where_country": [["IT"]]}, {"new"}),
        ({"where_price_max": [[3.0]]}, {"new", "item 3", "bare"}),
        ({"where_price_min": [[37.0]]}, {"item 37", "item 38", "item 1"}),
        ({"where_tags": [[4, 3]], "where_price_max": [[5.0]]}, {"new", "item 3", "item 5"}),
        (untagged, {"bare"}),
        ({**untagged, "where_tags": [[1, 2, 3, 4]]}, set()),
    ):
        asked = {name: tf.constant(value) for name, value in where.items()}
        assert answers(loaded, random(1, DIM), **asked)[0].keys() == names
    # No value is left that only removed classes had.
    parts = (loaded.attributes.attributes if with_index else loaded.attributes).parts
    fresh = Attributes({"country": ["DE", "FR", "IT"], "tags": [[1], [2, 3], [4]]}).parts
    for own, wanted in zip(parts[::2], fresh, strict=True):
        np.testing.assert_array_equal(own.keys, wanted.keys)
        assert own.table.dtype == wanted.table.dtype
    loaded = tf.saved_model.load(str(tmp_path / "1"))  # once for all that is refused
    monkeypatch.setattr(tf.saved_model, "load", lambda path: loaded)
    for attributes, message in (
        (more | {"price": [[], []]}, "added has .*'price': 'string'"),
        (None, r"by \['country', 'price', 'tags'\]: give these of the 2 that are added"),
        ({"country": ["IT"] * 2}, "the attributes .*'price': 'float32'.* added has {'country': 'string'}"),
        ({name: values[:1] for name, values in more.items()}, "values of 1 classes, but .* 2"),
    ):
        with pytest.raises(ValueError, match=message):
            update(tmp_path / "1", tmp_path / "4", *arguments, attributes=attributes)


@pytest.mark.long
@pytest.mark.traced
def test_vectors_that_fit_no_cell_ask_for_a_new_index(tmp_path):
    model = model_of(DenseHead(NUM_CLASSES))
    model.export(tmp_path / "1", index_of(model, "float32", num_scanned=0))
    update(tmp_path / "1", tmp_path / "2", ["new"], model.head.class_vectors(7, 8))  # without a warning
    with pytest.warns(UserWarning, match="farther apart than when .* export from the model with a new"):
        update(tmp_path / "2", tmp_path / "3", ["far", "off"], 9 * random(2, DIM))
    model = model_of(DenseHead(7), class_names=NAMES[:7])
    alone = InvertedIndex(num_cells=7)
    alone.build_from(model.head)
    model.export(tmp_path / "4", alone)
    with pytest.warns(UserWarning, match=r"was 0\)"):
        update(tmp_path / "4", tmp_path / "5", ["far"], random(1, DIM))


@pytest.mark.long
@pytest.mark.traced
def test_what_cannot_be_updated_says_why(tmp_path):
    model_of(DenseHead(NUM_CLASSES)).export(tmp_path / "1")
    one = random(1, DIM)
    for arguments, options, message in (
        ((["new"], np.ma.masked_greater(one, -np.inf)), {}, "vectors hold masked values, 6 of 6"),
        ((["new"], one[:, 1:]), {}, r"vectors must be finite numbers \[1, 6\].* but are \[1, 5\]"),
        ((["new"],), {}, r"vectors must be .* but are \[\]"),
        ((["new"], one * np.nan), {}, "with NaN or infinity"),
        ((["new"], one), {"biases": [1.0]}, "has no biases"),
        ((["new"], one), {"attributes": {"price": [1.0]}}, "has no attributes"),
        ((["new", "new"], random(2, DIM)), {}, "'new' occurs twice"),
        (("new", one), {}, "added must be a list of names, but is str"),
        ((["item 1"], one), {"removed": ["item 1"]}, "'item 1' is both added and removed"),
        ((), {"removed": ["item 1.0", "item 2"]}, "first 'item 1.0', but 'item 1' is: ids that go"),
        ((), {"removed": ["item 1", "item 77"]}, "1 of the names to remove are no classes, first 'item 77'"),
        ((), {"removed": NAMES}, "All classes are removed"),
    ):
        with pytest.raises(ValueError, match=message):
            update(tmp_path / "1", tmp_path / "2", *arguments, **options)
    model_of("tied").export(tmp_path / "biased")
    for path, new_path, message in (
        (tmp_path / "biased", "2", r"biases must be finite numbers \[1\].* but are \[\]"),
        (tmp_path / "1", "1", "is there already: name another"),
        (tmp_path, "2", "is no export of a model with class names"),
        ("s3://bucket/1", "2", "s3://bucket/1' is not a path of this machine"),
    ):
        with pytest.raises(ValueError, match=message):
            update(path, tmp_path / new_path, ["new"], one)
    with pytest.raises(ValueError, match="path must be that of a file or folder, but is of NoneType"):
        update(tmp_path / "1", None)
    assert sorted(os.listdir(tmp_path)) == ["1", "biased"]


def looked_up():
    texts = keras.Input((1,), dtype="string", name="text")
    words = keras.layers.StringLookup(vocabulary=[*NAMES, "other"], mask_token="", name="words")(texts)
    return keras.Model(texts, keras.layers.Flatten()(keras.layers.Embedding(50, DIM)(words)))


def categories():
    numbers = keras.Input((1,), dtype="int32", name="number")
    columns = keras.layers.CategoryEncoding(NUM_CLASSES + 1, output_mode="multi_hot", name="columns")
    return keras.Model(numbers, keras.layers.Dense(DIM)(columns(numbers)))


def bought():
    return keras.Sequential([keras.Input((NUM_CLASSES,), name="bought"), keras.layers.Dense(DIM)])


TIED = DenseHead(NUM_CLASSES, tied_to="items", row_offset=1)


@pytest.mark.long
@pytest.mark.traced
@pytest.mark.parametrize(
    ("head", "encoder", "strings", "message"),
    [
        (MACHHead(NUM_CLASSES, 8, 2), None, False, "but the head is a MACHHead: change the model"),
        *long_after(
            0,
            (DenseHead(NUM_CLASSES), pooled, False, r"reads \['items'\] by ids or names"),
            (DenseHead(NUM_CLASSES), looked_up, False, r"reads \['words'\] by ids or names"),
            (DenseHead(NUM_CLASSES), categories, False, r"reads \['columns'\] by ids or names"),
            (DenseHead(NUM_CLASSES), bought, False, r"reads \['bought'\] by ids or names"),
            (DenseHead(NUM_CLASSES), lambda: pooled(99), True, r"reads \['history'\] by ids or names"),
            (TIED, lambda: pooled(99), False, r"reads \['items'\] by ids"),
        ),
    ],
)
def test_heads_and_encoders_of_other_tables_are_refused(tmp_path, head, encoder, strings, message):
    model_of(head, encoder and encoder()).export(tmp_path / "1", strings=strings)
    with pytest.raises(ValueError, match=message):
        update(tmp_path / "1", tmp_path / "2", removed=["item 1"])


@FEW
@pytest.mark.long
def test_a_process_that_is_killed_leaves_the_old_version(tmp_path):
    names = [f"item {number}" for number in range(300_000)]
    encoder = keras.Sequential([keras.Input((64,), name="x"), keras.layers.Activation("linear")])
    model = tfxc.ExtremeClassifier(encoder, DenseHead(len(names)), k=5, class_names=names)
    model.queries(tf.zeros([1, 64]))
    model.export(tmp_path / "1")
    before, new = contents(tmp_path / "1"), 9 * random(1, 64)
    np.save(tmp_path / "new.npy", new)
    program = (
        "import sys, numpy, tfxc; old, new = sys.argv[1:]; print('begun', flush=True); "
        "tfxc.serving.update(old, new, ['new'], numpy.load(old + '/../new.npy'))"
    )
    num_unfinished = 0
    for seconds in (0.3, 0.6, 0.9, 1.2, 1.6, 2.0, 3.0):
        process = Process(program, tmp_path / "1", tmp_path / "2")
        while not process.has_printed():
            time.sleep(0.01)
        time.sleep(seconds)
        process.kill()
        if (tmp_path / "2").exists():  # whole, then
            assert next(iter(answers(tmp_path / "2", new)[0])) == "new"
            shutil.rmtree(tmp_path / "2")
        else:
            num_unfinished += 1
        assert contents(tmp_path / "1") == before
    assert num_unfinished
    update(tmp_path / "1", tmp_path / "2", ["new"], new)
    assert next(iter(answers(tmp_path / "2", new)[0])) == "new"
    assert sorted(os.listdir(tmp_path)) == ["1", "2", "new.npy"]


@pytest.mark.long
@pytest.mark.traced
def test_an_update_is_served_without_the_package(tmp_path):
    """An encoder with a lookup table of its own: what is loaded is written again."""
    texts = keras.Input((1,), dtype="string", name="text")
    lookup = keras.layers.StringLookup(vocabulary=["a", "b"], output_mode="multi_hot")
    model = model_of(DenseHead(NUM_CLASSES), keras.Model(texts, keras.layers.Dense(DIM)(lookup(texts))))
    model.export(tmp_path / "0", index_of(model, "int8"))
    for day in range(2):
        update(tmp_path / f"{day}", tmp_path / f"{day + 1}", [f"new {day}"], 9 * random(1, DIM))
    loaded = [tf.saved_model.load(str(tmp_path / day)) for day in "12"]
    first, second = (own.encode.concrete_functions[0].graph.get_operations() for own in loaded)
    assert len(second) < len(first) + 5  # whatever the encoder reads: after a year it would load slowly
    code = (
        "import sys; sys.modules['tfxc'] = sys.modules['keras'] = None; import tensorflow as tf; "
        "loaded = tf.saved_model.load(sys.argv[1]); print(*loaded.serve(tf.constant([['b']]), "
        "k=tf.constant(42))['names'].numpy()[0], sep='|')"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "2")]
    out = subprocess.run(command, check=True, cwd=tmp_path, stdout=subprocess.PIPE, text=True).stdout
    found = list(answers(tmp_path / "2", [["b"]])[0])
    assert [own[2:-1] for own in out.strip().split("|")] == found and {*found} == {*NAMES, "new 0", "new 1"}
