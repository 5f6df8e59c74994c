import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from classifier_checks import DIM, NUM_CLASSES, dense_encoder, features, item_encoder, learnable, make_model
from full_disk import full_disk
from long_cases import long_after
from memory_checks import with_peak
from sampler_checks import built, index_of
from tensorflow.core.protobuf import saved_model_pb2

import tfxc
from tfxc._keras import keras
from tfxc._keras.weights import tf_variable
from tfxc.layers import DenseHead, EncodedHead, MACHHead, UniformSparseHead
from tfxc.samplers import MIDX
from tfxc.search import InvertedIndex, faiss_index
from tfxc.serving import servable


def long_traced(test):
    return pytest.mark.long(pytest.mark.traced(test))


READ = """
import sys
for name in ("tfxc", "keras", "tf_keras"):
    sys.modules[name] = None
import numpy as np, tensorflow as tf
for line in sys.stdin:
    path, folder = line.split()
    loaded = tf.saved_model.load(path)
    inputs = {name: tf.constant(value) for name, value in np.load(folder + "/given.npz").items()}
    exclude, most = inputs.pop("exclude"), inputs.pop("most")
    calls = {"plain": {}, "k": {"k": tf.constant(3)}, "both": {"k": most, "exclude": exclude}}
    out = {f"{call}_{key}": value.numpy() for call, options in calls.items()
           for key, value in loaded.serve(**inputs, **options).items()}
    np.savez(folder + "/got.npz", **out)
    print(path, flush=True)
"""


@pytest.fixture(scope="module")
def served_elsewhere(tmp_path_factory):
    left_out = "PYTHONPATH", "TF_ENABLE_ONEDNN_OPTS"
    environment = {key: value for key, value in os.environ.items() if key not in left_out}
    folder = tmp_path_factory.mktemp("elsewhere")
    options = {"cwd": folder, "env": environment, "text": True}
    command = [sys.executable, "-c", READ]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, **options) as process:

        def served(path, exclude, most=99, **inputs):
            np.savez(folder / "given.npz", exclude=exclude, most=np.int32(most), **inputs)
            print(path, folder, file=process.stdin, flush=True)
            assert process.stdout.readline().strip() == str(path)
            return dict(np.load(folder / "got.npz"))

        yield served
        process.stdin.close()


NAMES = [f"item {i} é" for i in range(NUM_CLASSES)]


def named(encoder, head=None, class_names=NAMES, k=5):
    return tfxc.ExtremeClassifier(encoder, head or DenseHead(NUM_CLASSES), k=k, class_names=class_names)


def attributes_of(num_classes):
    return {
        "country": [["DE", "FR", "IT", "ES"][i % 4] for i in range(num_classes)],
        "price": np.arange(num_classes) / 2,
        "tags": [[i % 3, 10 + i % 2] for i in range(num_classes)],
    }


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    keras.utils.set_random_seed(0)
    model, path = make_model(MIDX(4, num_codewords=4), run_eagerly=True), tmp_path_factory.mktemp("exported")
    model.fit(features(2), np.full(2, 3), verbose=0)
    model.export(path / "1", attributes=attributes_of(NUM_CLASSES))
    return model, path / "1"


@pytest.fixture(scope="module")
def indexed(tmp_path_factory):
    keras.utils.set_random_seed(0)
    model = make_model(head=DenseHead(1000, normalize=True, temperature=0.1))
    index, path = index_of(model.head, 20, 2, num_scanned=4), tmp_path_factory.mktemp("indexed")
    model.k, index.num_probes = np.int64(5), np.int64(2)  # they are served as int32
    model.export(path / "1", index=index, attributes=attributes_of(1000))
    return model, index, path / "1"


def tied_model():
    head = DenseHead(NUM_CLASSES, tied_to="items", row_offset=1, normalize=True, temperature=0.2)
    return make_model(MIDX(4, num_codewords=4), head=head, encoder=item_encoder(), run_eagerly=True)


@pytest.mark.parametrize("tied", long_after(1, False, True))
def test_served_without_the_package(tmp_path, served_elsewhere, exported, tied):
    model, path = (tied_model(), tmp_path / "1") if tied else exported
    x = np.array([[0, 3, 1], [2, 2, 5]], np.int32) if tied else features(2)
    exclude = np.array([[1, 7, -1], [4, -1, -1]], np.int32)
    if tied:
        model.fit(x, np.full((2, 3), 3), verbose=0)
        model.export(path)
    where = {} if tied else {"where_country": [["DE", "FR"]]}
    attributes = None if tied else tfxc.search.Attributes(attributes_of(NUM_CLASSES))
    got = served_elsewhere(path, exclude, **{"history" if tied else "features": x}, **where)
    assert got["plain_ids"].dtype == np.int32 and got["plain_scores"].dtype == np.float32
    for call, k, excluded in (("plain", 5, None), ("k", 3, None), ("both", NUM_CLASSES, exclude)):
        want = model.rank(tf.constant(x), k, excluded, attributes=attributes, **where)
        np.testing.assert_array_equal(got[f"{call}_ids"], want["ids"])
        np.testing.assert_allclose(got[f"{call}_scores"], want["scores"], rtol=1e-5)
    assert got["both_ids"][0, -2:].tolist() == [-1, -1]


def signature_of(path):
    saved = saved_model_pb2.SavedModel.FromString((path / "saved_model.pb").read_bytes())
    assert len(saved.meta_graphs) == 1
    return saved.meta_graphs[0].signature_def["serving_default"]


@long_traced
def test_the_file_holds_defaults_and_the_table_once(tmp_path):
    num_classes, sampler = 5000, MIDX(4, num_codewords=4)
    head = DenseHead(num_classes, tied_to="items", row_offset=1)
    model = make_model(sampler, head=head, encoder=item_encoder(num_classes), k=7, run_eagerly=True)
    model.fit(np.array([[1, 2]]), np.array([[3, 4]]), verbose=0)
    model.export(tmp_path / "1")
    signature = signature_of(tmp_path / "1")
    assert set(signature.inputs) == {"history", "k", "exclude", "allow"}
    assert set(signature.outputs) == {"ids", "scores"}
    assert tf.make_ndarray(signature.defaults["k"]) == 7
    for name in ("exclude", "allow"):
        value = tf.make_ndarray(signature.defaults[name])
        assert value.shape == (1, 0) and value.dtype == np.int32
    size = sum(file.stat().st_size for file in (tmp_path / "1" / "variables").iterdir())
    assert size < 1.2 * 4 * DIM * num_classes  # no sampler, no optimizer, no second table
    assert not (tmp_path / "1" / "assets.extra").exists()


@long_traced
@pytest.mark.parametrize("kind", long_after(1, "plain", "indexed"))
def test_a_second_signature_needs_no_options_and_has_a_row_an_example_everywhere(request, kind):
    model, *_, path = request.getfixturevalue({"plain": "exported", "indexed": "indexed"}[kind])
    loaded, x = tf.saved_model.load(str(path)), features(4)
    signature = loaded.signatures["with_defaults"]
    _, inputs = signature.structured_input_signature
    assert list(inputs) == ["features"] and inputs["features"].shape.as_list() == [None, DIM]
    assert {shape[0] for shape in (own.shape for own in signature.structured_outputs.values())} == {None}
    want = loaded.serve(tf.constant(x))
    got = signature(features=tf.constant(x))
    assert set(got) == set(want) and got["ids"].shape == (4, model.k)
    for name, value in got.items():
        np.testing.assert_array_equal(value, want[name])
    halves = [signature(features=tf.constant(half))["ids"] for half in (x[:1], x[1:])]
    np.testing.assert_array_equal(tf.concat(halves, 0), got["ids"])  # as a server joins and parts requests


def test_a_model_that_has_diverged_leaves_the_export_of_before(tmp_path, exported):
    shutil.copytree(exported[1], tmp_path / "1")
    model, before = make_model(), (tmp_path / "1" / "saved_model.pb").read_bytes()
    for wrong in (*map(tf_variable, [model.encoder.weights[0], model.head.bias]), model.head.table_variable):
        kept = wrong.numpy()
        wrong[4].assign(tf.fill(wrong.shape[1:], float("nan")))
        with pytest.raises(ValueError, match="NaN in row 4: training has diverged. Nothing was exported"):
            model.export(tmp_path / "1")
        assert (tmp_path / "1" / "saved_model.pb").read_bytes() == before
        wrong.assign(kept)
    of_items = keras.Sequential([keras.Input((3,)), keras.layers.Dense(DIM)])
    model = model_of_items(of_items)
    tf_variable(of_items.weights[0])[2].assign(tf.fill([DIM], float("nan")))
    with pytest.raises(ValueError, match="holds NaN in row 2"):
        model.export_item_encoder(tmp_path / "2")
    assert not (tmp_path / "2").exists()


@long_traced
@pytest.mark.optimized
def test_what_is_served_holds_no_table_of_all_logits(tmp_path):
    num_queries, num_classes = 4096, 40_000
    head = DenseHead(num_classes, normalize=True, use_bias=True)
    make_model(head=head, run_eagerly=True).export(tmp_path / "1")
    loaded, x = tf.saved_model.load(str(tmp_path / "1")), tf.constant(features(num_queries))
    found, peak = with_peak(lambda: loaded.serve(features=x))
    assert found["ids"].shape == (num_queries, 5)
    assert peak < 300e6 < 4 * num_queries * num_classes / 2


@long_traced
def test_a_bfloat16_table_is_served_as_it_is(served_by):
    model = make_model(head=DenseHead(NUM_CLASSES, table_dtype="bfloat16"))
    loaded = served_by(model)
    tables = [part for part in loaded.signatures["serving_default"].variables if part.shape[0] == NUM_CLASSES]
    assert [table.dtype for table in tables] == [tf.bfloat16]
    want, every = model.rank(features(4), 5), tf.range(NUM_CLASSES)[tf.newaxis]
    for options in ({}, {"allow": every}):
        got = loaded.serve(features=tf.constant(features(4)), **options)
        np.testing.assert_array_equal(got["ids"], want["ids"])
        np.testing.assert_allclose(got["scores"], want["scores"], rtol=1e-5)


@pytest.mark.traced
def test_older_tensorflow_answers_as_the_guide_says(tmp_path, older_tensorflow):
    guide = pathlib.Path(__file__).parents[2] / "docs" / "serving.md"
    oldest, _ = older_tensorflow["columns"][1].rsplit(".", 1)
    assert guide.read_text(encoding="utf-8").count(f"[TensorFlow {oldest} and newer]") == 2
    assert {cell for row in older_tensorflow["rows"] for cell in row[1:]} == {"yes"}
    module, policy = tf.Module(), {"bad_indices_policy": "IGNORE"}
    spec = tf.TensorSpec([4])
    module.serve = tf.function(lambda x: tf.gather_nd(x, [[9]], **policy), input_signature=[spec])
    with pytest.raises(AssertionError, match="'GatherNd', 'bad_indices_policy'"):  # so each export is checked
        tf.saved_model.save(module, tmp_path)


def test_one_row_of_exclude_serves_all(exported):
    model, path = exported
    x, loaded = features(3), tf.saved_model.load(str(path))
    best = model.rank(x, 5)["ids"].numpy()[0, 0]
    ids = loaded.serve(features=tf.constant(x), exclude=tf.constant([[best]]))["ids"].numpy()
    assert ids.shape == (3, 5) and best not in ids
    with pytest.raises(tf.errors.InvalidArgumentError, match="excluded class id is outside"):
        loaded.serve(features=tf.constant(x), exclude=tf.constant([[NUM_CLASSES]]))


def contents(folder):
    return {file.relative_to(folder): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_one_that_fails_or_is_killed_leaves_the_old_one(tmp_path, monkeypatch, exported):
    path, killed = tmp_path / "failed" / "1", tmp_path / "killed" / "1"
    shutil.copytree(exported[1], path)

    def fail(*arguments, **options):
        shutil.copytree(path.parent, killed.parent)  # all that a process which ends here leaves
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(servable, "write_names", fail)
        model = named(dense_encoder(), DenseHead(2, True), ["a", "b"], k=1)
        tf_variable(model.head.bias)[0].assign(float("-inf"))  # a class that is never the best
        with pytest.raises(OSError, match="disk full"):
            model.export(path)
    assert contents(path) == contents(exported[1]) and os.listdir(path.parent) == ["1"]
    assert contents(killed) == contents(exported[1]) and len(os.listdir(killed.parent)) == 2
    model.export(killed)
    assert os.listdir(killed.parent) == ["1"]
    served = tf.saved_model.load(str(killed))
    assert served.serve(tf.zeros([1, DIM]))["ids"].numpy().tolist() == [[1]]
    names = (killed / "assets.extra" / "class_names.json").read_text(encoding="utf-8")
    assert json.loads(names) == ["a", "b"]


@long_traced
def test_one_that_the_disk_does_not_hold_is_named_and_leaves_the_old_one(tmp_path, exported):
    path = tmp_path / "1"
    shutil.copytree(exported[1], path)
    before = (path / "saved_model.pb").read_bytes()
    message = f"export {path} could not be written; an earlier .* File too large"
    with full_disk(500), pytest.raises(OSError, match=message):
        exported[0].export(path)
    assert (path / "saved_model.pb").read_bytes() == before and os.listdir(tmp_path) == ["1"]


def check_elsewhere(encoder, given, as_read, path, served_elsewhere):
    """A model answers elsewhere to the three given examples as it ranks them here, as they are read."""
    model = make_model(encoder=encoder)
    model.export(path)
    got, want = served_elsewhere(path, np.full((3, 1), -1, np.int32), **given), model.rank(as_read, 5)
    np.testing.assert_array_equal(got["plain_ids"], want["ids"])
    np.testing.assert_allclose(got["plain_scores"], want["scores"], rtol=1e-5)


@long_traced
def test_texts_and_numbers_by_name_in_ids_out(tmp_path, served_elsewhere):
    inputs = {"word": keras.Input((), dtype="string", name="word"), "user": keras.Input((2,), name="user")}
    lookup = keras.layers.StringLookup(vocabulary=["red", "green", "blue"], num_oov_indices=1)
    word = keras.layers.Embedding(4, DIM)(lookup(inputs["word"]))
    query = keras.layers.Dense(DIM)(keras.layers.Concatenate()([word, inputs["user"]]))
    given = {"word": np.array([b"blue", b"red", b"what"], dtype="S5"), "user": features(3)[:, :2]}
    as_read = {name: tf.constant(value) for name, value in given.items()}
    check_elsewhere(keras.Model(inputs, query), given, as_read, tmp_path / "1", served_elsewhere)


@pytest.mark.long
def test_where_functions_run_eagerly_the_file_holds_graphs_all_the_same(tmp_path):
    model, x = make_model(), features(3)
    model.export(tmp_path / "1")
    assert tf.config.functions_run_eagerly()
    served = tf.saved_model.load(tmp_path / "1")
    np.testing.assert_array_equal(served.serve(tf.constant(x))["ids"], model.rank(x, 5)["ids"])


@long_traced
@pytest.mark.filterwarnings("ignore:.*tf.lite.Interpreter is deprecated")
def test_litert_takes_the_encoder_alone_whose_query_ranks_alike(tmp_path):
    model, x = make_model(), features(3)
    model.export(tmp_path / "1")
    with pytest.raises(Exception, match="unsupported"):
        tf.lite.TFLiteConverter.from_saved_model(str(tmp_path / "1")).convert()
    converted = tf.lite.TFLiteConverter.from_keras_model(model.encoder).convert()
    run = tf.lite.Interpreter(model_content=converted).get_signature_runner()
    (query,) = run(**{next(iter(run.get_input_details())): x}).values()
    logits = model.head.effective_query(query).numpy() @ model.head.class_vectors(0, NUM_CLASSES).numpy().T
    np.testing.assert_array_equal(np.argsort(-logits, 1)[:, :5], model.rank(x, 5)["ids"])


def test_what_cannot_be_exported_says_why(tmp_path):
    class Unknown(keras.Model):
        def call(self, inputs):
            return inputs

    inputs = [keras.Input((DIM,), name=name) for name in "qr"]
    nested = keras.Model({"n": dict(zip("qr", inputs, strict=True))}, keras.layers.Average()(inputs))
    items = keras.Input((None,), dtype="int32", ragged=True, name="items")
    mean = keras.layers.Lambda(lambda rows: tf.reduce_mean(rows, 1), output_shape=(DIM,))
    ragged = keras.Model(items, mean(keras.layers.Embedding(9, DIM)(items)))
    named_k = [keras.Sequential([keras.Input((DIM,), name=k), keras.layers.Dense(DIM)]) for k in "kK"]
    for encoder, message in (
        (Unknown(), r"starts with keras\.Input"),
        *((encoder, "clash with the signature's own inputs") for encoder in named_k),
        (nested, r"'n'\] hold several"),
        (ragged, r"inputs \['items'\] are ragged.*padded input.*mask_zero=True"),
    ):
        with pytest.raises(ValueError, match=message):
            make_model(encoder=encoder).export(tmp_path / "1")
    assert os.listdir(tmp_path) == []


def test_the_command_line_tool(tmp_path, monkeypatch, exported):
    """``saved_model_cli run`` without k and exclude: the defaults in the file are used."""
    from tensorflow.python.tools import saved_model_cli

    (model, path), x = exported, features(2)
    np.save(tmp_path / "x.npy", x)
    monkeypatch.chdir(tmp_path)
    options = ["run", "--dir", str(path), "--tag_set", "serve", "--signature_def", "serving_default"]
    options += ["--inputs", "features=x.npy", "--outdir", "out"]
    monkeypatch.setattr(sys, "argv", ["saved_model_cli", *options])
    with pytest.raises(SystemExit) as end:
        saved_model_cli.main()
    assert not end.value.code
    np.testing.assert_array_equal(np.load(tmp_path / "out" / "ids.npy"), model.rank(x, 5)["ids"])


def test_an_index_is_served_without_the_heads_table(indexed):
    model, index, path = indexed
    num_classes, x = model.head.num_classes, features(3)
    shapes = [shape for _, shape in tf.train.list_variables(str(path / "variables" / "variables"))]
    assert sum(np.prod(shape) for shape in shapes if shape[-1:] == [DIM]) < 1.6 * DIM * num_classes
    signature = signature_of(path)
    defaults = [tf.make_ndarray(signature.defaults[name]) for name in ("k", "num_probes")]
    assert defaults == [5, 2] and {value.dtype for value in defaults} == {np.dtype(np.int32)}
    served = tf.saved_model.load(str(path))
    want = model.rank(tf.constant(x), 5)
    got = served.serve(features=tf.constant(x), k=tf.constant(5), num_probes=tf.constant(99))
    np.testing.assert_array_equal(got["ids"], want["ids"])
    np.testing.assert_allclose(got["scores"], want["scores"], rtol=1e-5)
    few = served.serve(features=tf.constant(x), k=tf.constant(5), num_probes=tf.constant(1))["ids"].numpy()
    assert (few >= 0).all() and (few != want["ids"].numpy()).any()
    allow = tf.constant([[7, 3, -1, 999]])
    got = served.serve(features=tf.constant(x), allow=allow, exclude=tf.constant([[3]]), k=tf.constant(3))
    assert {tuple(sorted(row)) for row in got["ids"].numpy().tolist()} == {(-1, 7, 999)}
    with pytest.raises(tf.errors.InvalidArgumentError, match="num_probes must be at least 1"):
        served.serve(features=tf.constant(x), num_probes=tf.constant(0))


@long_traced
def test_an_index_is_served_without_the_package(served_elsewhere, indexed):
    (model, index, path), x = indexed, features(2)
    exclude = np.array([[1, 7, -1], [4, -1, -1]], np.int32)
    got = served_elsewhere(path, exclude, most=1000, features=x)
    # As long as there are classes, cells are read.
    for ids, excluded in zip(got["both_ids"], exclude, strict=True):
        gone = excluded[excluded >= 0]
        assert (ids[1000 - len(gone) :] == -1).all()
        assert set(ids[: 1000 - len(gone)]) == set(range(1000)) - set(gone)
    np.testing.assert_array_equal(got["plain_ids"], best_in_index(model, index, x))


@long_traced
def test_an_index_of_a_sparse_head_ranks_by_its_logits(served_by):
    wide = keras.Sequential([dense_encoder(), keras.layers.Dense(200, activation="relu")])
    model = make_model(head=UniformSparseHead(500, 8, use_bias=True, seed=1), encoder=wide)
    model.fit(*learnable(256, num_classes=500), epochs=3, verbose=0)
    index, x = InvertedIndex(num_cells=5), features(40)
    assert index.tune(model.head, model.queries(x), k=5) >= 0.95
    exact = model.rank(x, 5)
    loaded = served_by(model, index=index)
    served = loaded.serve(tf.constant(x), k=tf.constant(5))
    same = served["ids"].numpy() == exact["ids"].numpy()
    assert np.mean(same) > 0.9
    scores = (answer["scores"].numpy()[same] for answer in (served, exact))
    np.testing.assert_allclose(*scores, rtol=1e-4, atol=1e-4)


@long_traced
def test_scanned_classes_of_few_bits_are_served_as_they_rank_here(served_elsewhere, indexed, tmp_path):
    (model, *_), x = indexed, features(2)
    index = index_of(model.head, 40, 2, "int8", 300)
    model.export(tmp_path / "1", index=index)
    got = served_elsewhere(tmp_path / "1", np.full((2, 1), 5, np.int32), most=300, features=x)
    np.testing.assert_array_equal(got["plain_ids"], best_in_index(model, index, x))
    found = index.top_k(model.head.effective_query(model.queries(tf.constant(x))), 300, [[5]]).ids
    np.testing.assert_array_equal(got["both_ids"], found)


def best_in_index(model, index, x, **options):
    return index.top_k(model.head.effective_query(model.queries(tf.constant(x))), 5, **options).ids


def test_numbers_that_predict_refuses_are_refused(tmp_path):
    model = make_model()
    index = index_of(model.head, 5, 2)
    for k in (2.7, True, 0, tf.constant(0)):
        model.k = k
        with pytest.raises(ValueError, match="k must be"):
            model.export(tmp_path / "1")
    model.k = NUM_CLASSES + 1
    for num_probes in (2.9, 0):
        index.num_probes = num_probes
        with pytest.raises(ValueError, match="num_probes must be"):
            model.export(tmp_path / "1", index=index)
    assert os.listdir(tmp_path) == []


@pytest.mark.long
def test_an_index_that_does_not_fit_is_refused(tmp_path):
    model, kind = make_model(), r"must be a tfxc\.search\.InvertedIndex.*"
    other = index_of(make_model(head=DenseHead(NUM_CLASSES + 1)).head, 5, 2)
    wider = index_of(make_model(head=DenseHead(NUM_CLASSES)).head, 5, 2)
    earlier = index_of(model.head, 5, 2)
    model.fit(*learnable(8), verbose=0)
    mach = make_model(head=MACHHead(NUM_CLASSES, 8, 2))
    unbuilt = make_model(encoder=keras.Sequential([keras.layers.Dense(DIM)]))
    for own, index, message in (
        (model, InvertedIndex(), r"call index\.build_from\(model\.head\)"),
        (model, wider, "vectors of width 6, but those of the head have 7"),
        (model, other, "holds 26 classes, but the head 25"),
        (model, earlier, "built from other class vectors"),
        (mach, earlier, "this MACHHead do not rank as its logits do"),
        (unbuilt, earlier, "build it, or the model, before the index"),
        (model, faiss_index(model.head, "Flat"), f"{kind} Index"),
        (model, "index", f"{kind} str"),
    ):
        with pytest.raises(ValueError, match=message):
            own.export(tmp_path / "1", index=index)
    assert os.listdir(tmp_path) == []


@long_traced
def test_mach_probes_are_an_input(tmp_path):
    head = MACHHead(NUM_CLASSES, 6, 3, decoder="mean", num_probes=2, seed=1)
    model, x = make_model(head=head), tf.constant(features(3))
    model.export(tmp_path / "1")
    assert tf.make_ndarray(signature_of(tmp_path / "1").defaults["num_probes"]) == 2
    served = tf.saved_model.load(str(tmp_path / "1"))
    np.testing.assert_allclose(served.serve(x)["scores"], model.rank(x, 5)["scores"], rtol=1e-5)
    exact = built(MACHHead(NUM_CLASSES, 6, 3, decoder="mean", seed=1), None, DIM)
    exact.set_weights(head.get_weights())
    best = served.serve(x, num_probes=tf.constant(6))["scores"]
    np.testing.assert_allclose(best, exact.top_k(model.queries(x), 5).scores, rtol=1e-5)


@pytest.mark.parametrize("with_index", long_after(1, True, False))
def test_names_in_and_out(tmp_path, with_index):
    names = NAMES
    inputs = keras.Input((4,), dtype="int32", name="history")
    table = keras.layers.Embedding(NUM_CLASSES + 1, DIM, mask_zero=True, name="items")
    encoder = keras.Model(inputs, keras.layers.Dense(DIM)(table(inputs)))
    model = named(encoder, DenseHead(NUM_CLASSES, tied_to="items", row_offset=1, normalize=with_index))
    index = index_of(model.head, 5, 5, "int8") if with_index else None
    model.export(tmp_path / "1", index=index, strings=True)
    # An index that scans nothing makes nothing on load, so a strategy does not keep it from being loaded.
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope() if with_index else contextlib.nullcontext():
        served = tf.saved_model.load(str(tmp_path / "1"))
    # One of six items is unknown, and the encoder takes the last four.
    history = [names[9], names[8], names[2], "retired", names[5], names[1]]
    history = tf.constant([history, [names[3]] + [""] * 5])
    exclude = tf.constant([[names[2], "unheard of"]])
    got = served.serve(history, exclude=exclude)
    ids, known = np.array([[9, 3, 6, 2], [0, 0, 0, 4]]), [[2], [2]]
    want = best_in_index(model, index, ids, exclude=known) if with_index else model.rank(ids, 5, known)["ids"]
    np.testing.assert_array_equal(got["ids"], want)
    decoded = [[name.decode() for name in row] for row in got["names"].numpy()]
    assert decoded == [[names[i] for i in row] for row in want.numpy()]
    allowed = served.serve(history, allow=tf.constant([[names[7], "unheard of"]]), k=tf.constant(2))
    assert allowed["names"].numpy().tolist() == [[names[7].encode(), b""]] * 2
    assert served.serve(history, allow=tf.constant([["unheard of"]]))["ids"].numpy().max() == -1
    graph = (tmp_path / "1" / "saved_model.pb").read_bytes()
    assert b"item 7" not in graph  # names lie in files beside the graph


@long_traced
def test_strings_need_names_that_can_be_told_apart(tmp_path, served_by):
    with pytest.raises(ValueError, match="needs class names"):
        make_model().export(tmp_path / "1", strings=True)
    for names, message in ((["a", ""], "Class 1 has an empty name"), (["b\n", "c\n"], "line break")):
        model = named(dense_encoder(), DenseHead(2), names, k=1)
        with pytest.raises(ValueError, match=message):
            model.export(tmp_path / "1", strings=True)
    loaded = served_by(model)
    assert loaded.serve(tf.zeros([1, DIM]))["names"].numpy()[0, 0] in (b"b\n", b"c\n")


@long_traced
def test_inputs_that_cannot_be_arguments_get_safe_names_or_are_named(tmp_path, capsys):
    def model_of(*names):
        inputs = [keras.Input((DIM,), name=name) for name in names]
        return make_model(encoder=keras.Model(inputs, keras.layers.Average()([*inputs, *inputs])))

    model, x = model_of("user-id", "größe", "_x"), features(2)
    with pytest.warns(UserWarning, match="other names: {'user-id': 'user_id', 'größe': 'gr__e', '_x'"):
        model.export(tmp_path / "1", format="tf_saved_model", verbose=True)
    assert "serve(user_id, gr__e, input_x, k, exclude, allow)" in capsys.readouterr().out
    loaded = tf.saved_model.load(str(tmp_path / "1"))
    served = loaded.serve(user_id=x, gr__e=2 * x, input_x=3 * x)
    np.testing.assert_array_equal(served["ids"], model.rank([x, 2 * x, 3 * x], 5)["ids"])
    for names in (("User", "user"), ("a-b", "a_b"), ("class",)):
        with pytest.raises(ValueError, match=rf"inputs \['{names[0]}'.*Rename"):
            model_of(*names).export(tmp_path / "2")
    with pytest.raises(ValueError, match="format is 'onnx'. For LiteRT or ONNX"):
        model.export(tmp_path / "2", format="onnx")


@long_traced
def test_a_sparse_input_is_served_as_a_dense_one(tmp_path, served_elsewhere):
    inputs = {"words": keras.Input((20,), sparse=True, name="words"), "user": keras.Input((2,), name="user")}
    words = tfxc.layers.EmbeddingBag(20, DIM, combiner="mean")(inputs["words"])
    query = keras.layers.Dense(DIM)(keras.layers.Concatenate()([words, inputs["user"]]))
    words = np.where(np.random.default_rng(0).random((3, 20)) < 0.2, 0.5, 0).astype(np.float32)
    words[1] = 0  # nothing
    given = {"words": words, "user": features(3)[:, :2]}
    as_read = {**given, "words": tf.sparse.from_dense(words)}
    check_elsewhere(keras.Model(inputs, query), given, as_read, tmp_path / "1", served_elsewhere)


@long_traced
def test_strings_of_several_inputs(tmp_path, served_by):
    items = keras.Input((3,), dtype="int32", name="items")
    user = keras.Input((1,), dtype="int32", name="user")
    parts = [keras.layers.Embedding(NUM_CLASSES + 1, DIM)(part) for part in (items, user)]
    flat = [keras.layers.Flatten()(part) for part in parts]
    encoder = keras.Model([items, user], keras.layers.Dense(DIM)(keras.layers.Concatenate()(flat)))
    model = named(encoder)
    for strings, message in (
        (True, r"could all be histories of class names: name those that are, as strings=\('items',\), or"),
        (("item",), r"names no input of integers \[B, T\]: those inputs are \['items', 'user'\]"),
    ):
        with pytest.raises(ValueError, match=message):
            model.export(tmp_path / "1", strings=strings)
    served = served_by(model, strings="items")
    history = tf.constant([[NAMES[3], "gone", NAMES[4]]])
    found = served.serve(items=history, user=tf.constant([[7]]))["ids"]
    want = model.rank([np.int32([[0, 4, 5]]), np.int32([[7]])], 5)["ids"]
    np.testing.assert_array_equal(found, want)


@long_traced
def test_strings_of_an_input_that_may_be_an_id(tmp_path, served_by):
    user = keras.Input((1,), dtype="int32", name="user")
    query = keras.layers.Flatten()(keras.layers.Embedding(NUM_CLASSES + 1, DIM)(user))
    model = named(keras.Model(user, query))
    with pytest.raises(ValueError, match=r"'user' of one .* strings=\(\), or, .* strings=\('user',\)"):
        model.export(tmp_path / "1", strings=True)
    served, best = served_by(model, strings=()), model.rank([[7]], 1)["ids"]
    found = served.serve(user=tf.constant([[7]]), exclude=tf.constant([[NAMES[best[0, 0]]]]))["ids"]
    np.testing.assert_array_equal(found, model.rank([[7]], 5, exclude=best)["ids"])
    served = served_by(model, strings=("user",))
    np.testing.assert_array_equal(served.serve(user=tf.constant([[NAMES[6]]]), k=1)["ids"], best)


def test_strings_of_positions_that_would_not_line_up_or_without_a_row_for_padding_are_refused(tmp_path):
    inputs = [keras.Input((3,), dtype="int32", name=name) for name in ("items", "country")]
    parts = [keras.layers.Embedding(NUM_CLASSES + 1, DIM)(part) for part in inputs]
    encoder = keras.Model(inputs, keras.layers.Dense(DIM)(keras.layers.Flatten()(keras.layers.Add()(parts))))
    with pytest.raises(ValueError, match="'country' .* goes with the history position by position"):
        named(encoder).export(tmp_path / "1", strings=("items",))
    head = DenseHead(NUM_CLASSES + 1, tied_to="items", row_offset=0)
    with pytest.raises(ValueError, match="row_offset=1"):
        named(item_encoder(), head, [*NAMES, "one more"]).export(tmp_path / "1", strings=True)


def test_a_folder_elsewhere_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path in ("ram://served/1", pathlib.Path("gs://bucket/1")):
        with pytest.raises(ValueError, match="(served|bucket)/1' is not a path of this machine: name one on"):
            make_model().export(path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("file", ["saved_model.pb", "variables/variables.data-00000-of-00001"])
def test_a_truncated_file_is_refused(tmp_path, file, exported):
    shutil.copytree(exported[1], tmp_path / "1")
    content = (tmp_path / "1" / file).read_bytes()
    (tmp_path / "1" / file).write_bytes(content[: len(content) // 2])
    # TensorFlow's own words: of the graph it names the file.
    with pytest.raises((OSError, IndexError, tf.errors.OpError), match=r"saved_model\.pb|Read less bytes"):
        tf.saved_model.load(str(tmp_path / "1"))


def served_as_by_serving(path):
    """What TensorFlow Serving does: a ``PredictRequest`` by names, what it leaves out by defaults."""
    session = tf.compat.v1.Session(graph=tf.Graph())
    with session.graph.as_default():
        loaded = tf.compat.v1.saved_model.load(session, ["serve"], str(path))

    def answered(request):
        signature = loaded.signature_def[request.model_spec.signature_name]
        feeds = {signature.inputs[name].name: default for name, default in signature.defaults.items()}
        feeds |= {signature.inputs[name].name: given for name, given in request.inputs.items()}
        feeds = {name: tf.make_ndarray(tensor) for name, tensor in feeds.items()}
        return session.run({name: output.name for name, output in signature.outputs.items()}, feeds)

    return answered


@pytest.mark.parametrize("with_index", long_after(1, False, True))
def test_a_request_over_grpc(exported, indexed, with_index):
    predict_pb2 = pytest.importorskip("tensorflow_serving.apis.predict_pb2")
    (model, *index, path), x = indexed if with_index else exported, features(3)
    request, answered = predict_pb2.PredictRequest(), served_as_by_serving(path)
    request.model_spec.signature_name = "serving_default"
    request.inputs["features"].CopyFrom(tf.make_tensor_proto(x))
    got = answered(request)
    if with_index:
        want = best_in_index(model, *index, x).numpy()
    else:
        ranked = model.rank(tf.constant(x), model.k)
        want = ranked["ids"].numpy()
        np.testing.assert_allclose(got["scores"], ranked["scores"], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(got["ids"], want)
    request.inputs["exclude"].CopyFrom(tf.make_tensor_proto(want[:, :2]))
    request.inputs["k"].CopyFrom(tf.make_tensor_proto(3, tf.int32))
    request.ParseFromString(request.SerializeToString())  # as over a wire
    got = answered(request)
    np.testing.assert_array_equal(got["ids"], want[:, 2:5])


@pytest.mark.parametrize("with_index", long_after(1, True, False))
def test_a_request_chooses_classes_by_their_attributes(exported, indexed, with_index):
    """The columns of a REST request, and those of gRPC, are tensors of the signature's types."""
    (model, *_, path), x = indexed if with_index else exported, features(2)
    inputs = signature_of(path).inputs
    names = "where_country", "where_price_min", "where_price_max", "where_tags"
    assert {name for name in inputs if name.startswith("where_")} == {*names}
    attributes = tfxc.search.Attributes(attributes_of(model.head.num_classes))
    predict_pb2 = pytest.importorskip("tensorflow_serving.apis.predict_pb2")
    answered = served_as_by_serving(path)
    for where in (
        {},
        {"where_country": [["DE", "FR"]], "where_price_max": [[9.0], [3]]},
        {
            "where_country": [["DE", ""], ["FR", "nowhere"]],
            "where_tags": [[1, 2]],
            "where_price_min": [[1.0]],
        },
        {"where_tags": [[11], [-1]], "allow": [[1, 2, 3, 4, 5, 6]], "exclude": [[3]]},
        {"where_country": [["nowhere"]]},
    ):
        request = predict_pb2.PredictRequest()
        request.model_spec.signature_name = "serving_default"
        options = {"num_probes": 1 << 30} if with_index else {}
        for name, value in {"features": x, **where, **options}.items():
            request.inputs[name].CopyFrom(tf.make_tensor_proto(value, inputs[name].dtype))
        got, want = answered(request), model.rank(x, 5, attributes=attributes, **where)
        np.testing.assert_array_equal(got["ids"], want["ids"])
        np.testing.assert_allclose(got["scores"], want["scores"], rtol=1e-5, atol=1e-6)


def test_attributes_that_cannot_be_served_are_refused(tmp_path):
    for attributes, message in (
        ({"country": ["DE"] * 3}, "'country' has values of 3 classes, but the head 25"),
        ({"price": [np.nan] * NUM_CLASSES}, "'price' hold NaN for class 0"),
    ):
        with pytest.raises(ValueError, match=message):
            make_model().export(tmp_path / "1", attributes=attributes)
    named = keras.Sequential([keras.Input((DIM,), name="where_country"), keras.layers.Dense(DIM)])
    with pytest.raises(ValueError, match=r"\['where_country'\] clash with the signature's own inputs"):
        make_model(encoder=named).export(tmp_path / "1", attributes={"Country": ["DE"] * NUM_CLASSES})
    assert os.listdir(tmp_path) == []


def model_of_items(item_encoder):
    encoder = dense_encoder(item_encoder.output_shape[-1])
    return make_model(head=EncodedHead(item_encoder, NUM_CLASSES), encoder=encoder)


def check_items(item_encoder, given, path):
    model_of_items(item_encoder).export_item_encoder(path)
    served = tf.saved_model.load(str(path))
    np.testing.assert_allclose(served.serve(given)["vectors"], item_encoder(given), rtol=1e-5)


@long_traced
def test_texts_that_a_layer_has_adapted_to_are_served(tmp_path, served_by):
    """tf-keras counts a vocabulary among the weights, though it is no variable."""
    words = keras.layers.TextVectorization(output_sequence_length=2)
    words.adapt(np.array(["red car", "blue hat"]))
    text = keras.Input((), dtype="string", name="text")
    vectors = keras.layers.Embedding(words.vocabulary_size(), DIM)(words(text))
    encoder = keras.Model(text, keras.layers.GlobalAveragePooling1D()(vectors))
    model, x = make_model(encoder=encoder), tf.constant(["red hat"])
    served = served_by(model)
    np.testing.assert_array_equal(served.serve(x, k=5)["ids"], model.rank(x, 5)["ids"])
    named_k = keras.Sequential([keras.Input((3,), name="k"), keras.layers.Dense(DIM)])
    check_items(encoder, x, tmp_path / "items")
    check_items(named_k, tf.ones([1, 3]), tmp_path / "items")  # k is no option of this signature


class Codes(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        keys, values = tf.constant(["red", "hat"]), tf.constant([1.0, 2.0])
        self.codes = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, values), 0.0)
        self.parts = {"scale": [tf.Variable(3.0)]}

    def call(self, words):
        return self.parts["scale"][0] * self.codes.lookup(words)


@long_traced
def test_an_encoder_with_tables_and_variables_of_its_own_is_served(tmp_path, served_by):
    words = keras.Input((DIM,), dtype="string", name="words")
    encoder = keras.Model(words, keras.layers.Dense(DIM)(Codes()(words)))
    model, x = make_model(encoder=encoder), tf.constant([["red", "hat", "?", "red", "", "hat"]])
    served = served_by(model)
    np.testing.assert_allclose(served.serve(x)["scores"], model.rank(x, 5)["scores"], rtol=1e-5)
    check_items(encoder, x, tmp_path / "items")
    assert not np.allclose(encoder(x), encoder(tf.fill([1, DIM], "?")))


@long_traced
def test_export_in_the_scope_of_a_strategy_is_refused(tmp_path):
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    with strategy.scope():
        model = make_model()
        with pytest.raises(ValueError, match=r"scope of the MirroredStrategy .* outside of strategy\.scope"):
            model.export(tmp_path / "1")
    model.export(tmp_path / "1")
    assert (tmp_path / "1" / "saved_model.pb").exists()
