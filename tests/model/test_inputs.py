from collections import OrderedDict

import numpy as np
import pandas
import polars
import pyarrow as pa
import pytest
import scipy.sparse
import tensorflow as tf
from classifier_checks import DIM, NUM_CLASSES, Subclassed, dense_encoder, features, item_encoder, make_model

import tfxc
from tfxc._keras import keras
from tfxc.data import row_batches
from tfxc.metrics import RecallAtK
from tfxc.model.inputs import first_examples, flatten_reserved, last_position, query_width, split_inputs
from tfxc.samplers import Uniform


def test_reserved_inputs_are_taken_out():
    encoder, x = dense_encoder(), tf.zeros([2, DIM])
    assert split_inputs(x, encoder) == (x, {})
    plain = {"features": x}
    assert split_inputs(plain, encoder) == (plain, {})
    given = {"features": x, "exclude": tf.ragged.constant([[1], [2, 3]]), "example_ids": tf.range(2)}
    rest, reserved = split_inputs(given, encoder)
    assert rest is x and reserved["exclude"].numpy().tolist() == [[1, -1], [2, 3]]
    rest, _ = split_inputs({"a": x, "b": x, "example_ids": tf.range(2)}, encoder)
    assert set(rest) == {"a", "b"}


@pytest.mark.long
@pytest.mark.parametrize(
    ("reads", "given"), [pytest.param("items", "items", marks=pytest.mark.both_keras), (None, "any name")]
)
def test_a_subclassed_encoder_gets_a_dict_if_it_reads_one_and_else_an_array(reads, given):
    x, y = features(6), np.arange(6)
    inputs = {reads: x} if reads else x
    numbered, bare = make_model(encoder=Subclassed(reads)), make_model(encoder=Subclassed(reads))
    numbered.fit(tfxc.data.with_example_ids(inputs), y, verbose=0)
    bare.fit(inputs, y, verbose=0)
    for model in (numbered, bare):
        ids = model.predict({given: x, "exclude": np.full([6, 1], 3)}, verbose=0)["ids"]
        assert ids.shape == (6, 5) and not (ids == 3).any()


def test_a_reserved_input_that_is_misspelt_is_named():
    x, encoder = tf.zeros([2, DIM]), keras.Sequential([keras.Input((DIM,)), keras.layers.Dense(3)])
    for name, meant in (("exlude", "exclude"), ("exclude_ids", "exclude"), ("example_id", "example_ids")):
        with pytest.warns(UserWarning, match=f"Nothing reads the input '{name}'.* The model reads '{meant}'"):
            split_inputs({"features": x, name: tf.zeros([2, 1], tf.int32)}, encoder)


@pytest.mark.filterwarnings("error")
def test_an_input_of_the_encoder_is_not_taken_for_a_misspelt_one():
    x = tf.zeros([2, DIM])
    inputs = {name: keras.Input((DIM,), name=name) for name in ("features", "example_id")}
    for given in (inputs, list(inputs.values())):
        encoder = keras.Model(given, keras.layers.Add()(list(inputs.values())))
        taken, reserved = split_inputs({"features": x, "example_id": x}, encoder)
        assert set(taken) == set(inputs) and not reserved


def test_sequences_have_an_id_a_position():
    query, where = tf.zeros([2, 3, 4]), tf.constant([[0, 1], [1, 0], [1, 2]], tf.int64)
    reserved = {"exclude": tf.constant([[7], [8]]), "example_ids": tf.reshape(tf.range(6), [2, 3])}
    flat = flatten_reserved(reserved, query, where, 9)
    assert flat["exclude"].numpy().tolist() == [[7], [8], [8]]
    assert flat["example_ids"].numpy().tolist() == [1, 3, 5]
    with pytest.raises(ValueError, match=r"integers \[B, T\], one for each position"):
        flatten_reserved({"example_ids": tf.range(2)}, query, where, 9)
    for bad in (tf.zeros([2]), tf.zeros([2, 1], tf.int32)):
        with pytest.raises(ValueError, match=r"must hold integers \[B\], but is"):
            flatten_reserved({"example_ids": bad}, query, None, 9)
    with pytest.raises(ValueError, match=r"exclude must be class ids \[N, X\]"):
        flatten_reserved({"exclude": tf.constant([7, 8])}, query, None, 9)


@pytest.mark.parametrize("of_sequences", [False, True])
def test_one_row_of_exclude_holds_for_all_of_a_batch(of_sequences):
    encoder, x, y = dense_encoder(), features(6), np.arange(6)
    if of_sequences:
        encoder, x, y = item_encoder(), [[0, 4, 5], [1, 2, 3]], [[-1, 2, 9], [3, 4, 5]]
    model = make_model(encoder=encoder, metrics=[RecallAtK(3)])

    def data(num_rows):
        return tf.data.Dataset.from_tensors(({"x": x, "exclude": tf.constant([[1, 2]] * num_rows)}, y))

    assert not np.isin(model.predict(data(1), verbose=0)["ids"], [1, 2]).any()
    assert model.evaluate(data(1), verbose=0) == model.evaluate(data(len(x)), verbose=0)
    model.fit(data(1), verbose=0)
    with pytest.raises(tf.errors.InvalidArgumentError, match="^exclude must have a row for each query, or"):
        model.evaluate(data(len(x) + 1), verbose=0)


def test_sparse_excluded_ids_are_as_wide_as_the_longest_row():
    seen = tf.SparseTensor([[0, 3], [0, 10**9], [1, 70]], [3, 10**9, 70], [3, 10**10])
    _, reserved = split_inputs({"x": tf.zeros([3, DIM]), "exclude": seen}, dense_encoder())
    assert reserved["exclude"].numpy().tolist() == [[3, 10**9], [70, -1], [-1, -1]]


@pytest.mark.long
def test_a_sparse_matrix_of_classes_to_exclude_is_refused():
    model, x = make_model(), features(6)
    best = model.predict(x, verbose=0)["ids"][:, 0]
    seen = scipy.sparse.csr_matrix((np.ones(6, int), (np.arange(6), best)), (6, NUM_CLASSES))
    with pytest.raises(tf.errors.InvalidArgumentError, match="all 1, as in a one-hot or multi-hot matrix"):
        model.predict({"x": x, "exclude": seen}, verbose=0)
    ids = tf.RaggedTensor.from_row_splits(seen.indices, seen.indptr)
    assert not (model.predict({"x": x, "exclude": ids}, verbose=0)["ids"] == best[:, np.newaxis]).any()


@pytest.mark.long
def test_ids_that_nobody_reads_change_nothing():
    x, y, results = features(8), np.arange(8), []
    for inputs in (x, {"features": x, "example_ids": np.arange(8)}):
        keras.utils.set_random_seed(1)
        model = make_model(Uniform(5, seed=1), run_eagerly=True)
        model.fit(inputs, y, batch_size=4, shuffle=False, verbose=0)
        results.append((model.evaluate(inputs, y, verbose=0), model.predict(inputs, verbose=0)["ids"]))
    assert results[0][0] == results[1][0] and (results[0][1] == results[1][1]).all()


def test_sequence_ids_reach_the_sampler():
    class Recorder(Uniform):
        def prepare(self, step):
            seen.append(step.example_ids.numpy().tolist())
            return super().prepare(step)

    seen = []
    history = np.array([[0, 4, 5], [1, 2, 3]])
    labels = np.where(history > 0, history % NUM_CLASSES, -1)
    model = make_model(Recorder(3, seed=1), encoder=item_encoder(), run_eagerly=True)
    inputs = {"history": history, "example_ids": np.arange(6).reshape(2, 3)}
    model.fit(inputs, labels, verbose=0, shuffle=False)
    assert seen == [[1, 2, 3, 4, 5]]


def encoder_of_two(names="bc"):
    b, c = (keras.Input((DIM,), name=name) for name in names)
    query = keras.layers.Dense(DIM)(keras.layers.Concatenate()([b, c]))
    return keras.Model({names[0]: b, names[1]: c}, query)


@pytest.mark.long
@pytest.mark.both_keras
@pytest.mark.parametrize("form", ["arrays", "dataset"])
def test_inputs_that_an_encoder_has_not_are_passed_over(form):
    """Keras 3 sorts a dict, and gave an encoder that wants "b" what stands under "a"."""
    model = make_model(encoder=encoder_of_two())
    own = {"c": features(6, seed=1), "b": features(6, seed=2)}
    more, y = {"a": features(6, seed=3), **own, "d": features(6, seed=4)}, np.arange(6)
    model.fit(own, y, verbose=0)

    def given(x, *y):
        return (x, *y) if form == "arrays" else (tf.data.Dataset.from_tensors((x, *y) if y else x),)

    assert model.evaluate(*given(more, y), verbose=0) == model.evaluate(*given(own, y), verbose=0)
    want = model.predict(*given(own), verbose=0)
    ordered = OrderedDict(c=own["c"], b=own["b"])  # as make_csv_dataset gives them
    for each in (more, ordered, {**more, "exclude": np.full([6, 1], -1)}):
        np.testing.assert_array_equal(model.predict(*given(each), verbose=0)["ids"], want["ids"])
    np.testing.assert_array_equal(model.rank(more, 5)["ids"], want["ids"])
    for each in (more, ordered):
        np.testing.assert_array_equal(model.queries(each), model.queries(own))
    model.fit(*given(more, y), verbose=0)


def test_inputs_by_the_names_that_the_model_or_rank_reads_are_refused():
    inputs = {"exclude": tf.zeros([2, DIM]), "c": tf.zeros([2, DIM])}
    with pytest.raises(ValueError, match="encoder has inputs called .'exclude'., which the model reads"):
        split_inputs(inputs, encoder_of_two(["exclude", "c"]))
    inputs = {"b": tf.zeros([2, DIM]), "c": tf.zeros([2, DIM]), "allow": tf.zeros([2, 3], tf.int32)}
    with pytest.raises(ValueError, match="may hold 'exclude', but not 'allow': pass it to model.rank"):
        split_inputs(inputs, encoder_of_two())


@pytest.mark.both_keras
def test_inputs_of_the_model_alone_are_refused():
    model, x = make_model(run_eagerly=True), {"exclude": np.ones([2, 1], int)}
    for call in (lambda: model.fit(x, np.arange(2), verbose=0), lambda: model.predict(x, verbose=0)):
        with pytest.raises(ValueError, match=r"hold \['exclude'\] alone, .* nothing is left for the encoder"):
            call()


def test_ids_that_the_encoder_would_take_for_others_are_refused():
    model = make_model(encoder=item_encoder())
    for given in (np.array([[3, 2**32 + 7]]), np.array([[3, 7.5]]), np.array([[3, np.nan]])):
        for inputs in (given, {"history": given, "exclude": np.array([[1]])}):
            with pytest.raises(tf.errors.InvalidArgumentError, match="'history' as int32, which does not"):
                model.predict(inputs, verbose=0)
    with pytest.raises(tf.errors.InvalidArgumentError, match="does not hold 7.5.*It was batch 1 of epoch 1"):
        model.fit(np.array([[3, 7.5]]), np.array([[1, 2]]), verbose=0)
    given = [keras.Input((DIM,), name="z"), keras.Input((DIM,), dtype="int32", name="a")]
    several = make_model(encoder=keras.Model(given, keras.layers.Dense(DIM)(given[0])))
    z, a = np.ones([1, DIM]), np.full([1, DIM], 2**32)
    for inputs in ([z, a], {"z": z, "a": a}):
        with pytest.raises(tf.errors.InvalidArgumentError, match="'a' as int32"):
            several.predict(inputs, verbose=0)
    assert several.predict({"z": z / 2, "a": a // 2**32}, verbose=0)["ids"].shape == (1, 5)
    whole = model.predict(np.array([[3, 7]], "int32"), verbose=0)["scores"]
    for dtype in ("int64", "uint64", "float64", "int8"):
        np.testing.assert_array_equal(model.rank(np.array([[3, 7]], dtype), 5)["scores"], whole)


def reader_of_texts():
    texts = keras.Input((), dtype="string", name="text")
    ids = keras.layers.StringLookup(vocabulary=["tea", "milk"])(texts)
    encoder = keras.Model(texts, keras.layers.Embedding(3, DIM)(ids))
    return tfxc.ExtremeClassifier(encoder, tfxc.layers.DenseHead(NUM_CLASSES), k=3)


def test_texts_of_any_kind_and_lists_are_inputs():
    model, texts = reader_of_texts(), np.array(["milk", "tea", "rum"])
    wanted = model.predict(tf.constant(texts), verbose=0)["ids"]
    series = pandas.Series(texts)
    kinds = [texts, texts.astype("S"), texts.tolist(), series, series.astype("category")]
    for given in [*kinds, polars.Series(texts), pa.array(texts)]:
        np.testing.assert_array_equal(model.predict(given, verbose=0)["ids"], wanted)
        np.testing.assert_array_equal(model.rank(given, 3)["ids"], wanted)
    model.compile(tfxc.optimizers.LazyAdam(), loss=tfxc.losses.SoftmaxCrossentropy())
    model.fit(texts, np.arange(3), validation_data=(texts.tolist(), np.arange(3)), verbose=0)


def test_numbers_of_pandas_are_inputs_and_objects_are_named():
    model, x = make_model(), features(4)
    wanted = model.predict(x, verbose=0)["ids"]
    for given in (x.tolist(), pandas.DataFrame(x), polars.DataFrame(x)):
        np.testing.assert_array_equal(model.predict(given, verbose=0)["ids"], wanted)
    nullable = pandas.DataFrame(x).astype("Float32")
    for given in (nullable, x.astype(object), np.where(x > 0, x, None), np.zeros([4, DIM], "datetime64[D]")):
        with pytest.raises(ValueError, match="must be numbers or texts, but are .* convert them"):
            model.predict(given, verbose=0)


def test_texts_for_numbers_and_numbers_for_texts_are_refused():
    with pytest.raises(ValueError, match="reads the input 'text' as string, but it is int"):
        reader_of_texts().predict(np.arange(3), verbose=0)
    with pytest.raises(ValueError, match=r"as float32, but it is string: convert it, .*encode"):
        make_model().predict(np.full([4, DIM], "a"), verbose=0)


@pytest.mark.long
@pytest.mark.traced
def test_lists_of_classes_have_a_row_for_each_query():
    model = make_model()
    model.predict(features(3), verbose=0)
    for name in ("exclude", "allow"):
        with pytest.raises(ValueError, match=f"{name} must have a row for each .* are 2 and the queries 3"):
            model.rank(features(3), 2, **{name: np.array([[1, 2], [3, 4]])})
        for num_rows in (3, 1):  # whatever shapes were traced before
            model.rank(features(3), 2, **{name: np.full((num_rows, 2), 1)})
        with pytest.raises(ValueError, match=rf"{name} must be class ids \[N, X\], .*: write a single row"):
            model.rank(features(3), 2, **{name: [1, 2, 3]})


@pytest.mark.long
def test_a_mask_in_place_of_class_ids_is_refused():
    model = make_model()
    x, mask = features(3), np.eye(NUM_CLASSES, dtype=np.int32)[:3]
    ids = np.where(mask, np.arange(NUM_CLASSES), -1)  # as the refusal says
    index = tfxc.search.InvertedIndex(num_cells=4)
    index.build_from(model.head)
    query = model.head.effective_query(model.queries(x))
    for name in ("exclude", "allow"):
        message = f"{name} must hold class ids .* like a mask. Pass ids: for a mask m np.where"
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            model.rank(x, 2, **{name: mask})
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            index.top_k(query, 2, **{name: mask})
        found = model.rank(x, 1, **{name: ids})["ids"][:, 0].numpy()
        assert (found == np.arange(3)).all() == (name == "allow")
    with pytest.raises(tf.errors.InvalidArgumentError, match="exclude must hold class ids"):
        model.evaluate({"features": x, "exclude": mask}, np.arange(3), verbose=0)
    short = {"features": x, "exclude": np.array([[0, 1]] * 3)}  # two ids
    assert not np.isin(model.predict(short, verbose=0)["ids"], [0, 1]).any()


def test_what_is_to_be_excluded_is_named_where_it_is_no_class_id():
    model = make_model()
    with pytest.raises(ValueError, match="An excluded class id must be an integer, but the ids are float32"):
        model.predict({"features": features(3), "exclude": np.ones([3, 2], np.float32)}, verbose=0)
    with pytest.raises(ValueError, match=r"the ids are string: turn names into ids by vocabulary.encode"):
        model.rank(features(1), 2, exclude=[["a name"]])
    for wrong in (tf.sparse.from_dense([[1, 2]]), [[1], [2, 3]], {1}):
        with pytest.raises(ValueError, match="allow must be class ids .N, X., padded with -1 or tf.ragged"):
            model.rank(features(3), 2, allow=wrong)


ROWS = np.arange(6.0, dtype=np.float32).reshape(3, 2)


class Batches(keras.utils.Sequence):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        return {"x": ROWS[index:]}, np.zeros(3 - index)


def test_the_first_examples_are_a_row_or_a_batch():
    sparse = scipy.sparse.csr_matrix(ROWS), scipy.sparse.coo_matrix(ROWS), tf.sparse.from_dense(ROWS)
    for rows in (ROWS, tf.constant(ROWS), *sparse):
        found, nothing = first_examples([{"x": rows}, None])
        dense = tf.sparse.to_dense(found["x"]) if isinstance(found["x"], tf.SparseTensor) else found["x"]
        assert dense.numpy().tolist() == [[0.0, 1.0]] and nothing is None
    assert first_examples({"ragged": tf.ragged.constant([[1, 2], [3]])})["ragged"].to_list() == [[1, 2]]
    data = tf.data.Dataset.from_tensor_slices(({"x": ROWS}, [0, 1, 2])).batch(2)
    assert first_examples(data)["x"].numpy().tolist() == ROWS[:2].tolist()
    assert first_examples(Batches())["x"].tolist() == ROWS.tolist()
    batches = iter([(ROWS, [0, 1, 2])])  # a generator is not read
    assert first_examples(batches) is None and len(list(batches)) == 1


@pytest.mark.both_keras
def test_matrices_of_scipy_of_each_format_with_entries_in_any_order_are_inputs():
    model, x, y = make_model(), features(4), np.arange(4)
    wanted = model.predict_on_batch(x)["scores"]
    row, column = np.divmod(np.arange(x.size)[::-1], DIM)
    twice = np.concatenate([row, row]), np.concatenate([column, column])
    forms = [scipy.sparse.csr_matrix(x).asformat(name) for name in ("csr", "csc", "coo", "lil", "dok", "bsr")]
    forms.append(scipy.sparse.coo_matrix((np.tile(x[row, column] / 2, 2), twice), x.shape))
    for matrix in forms:
        np.testing.assert_allclose(model.predict(matrix, verbose=0)["scores"], wanted, rtol=1e-5)
        np.testing.assert_allclose(model.rank(matrix, 5)["scores"], wanted, rtol=1e-5)
        np.testing.assert_allclose(model.predict_on_batch(matrix)["scores"], wanted, rtol=1e-5)
    of_batch = model.test_on_batch(x, y)
    csc = forms[1]
    np.testing.assert_allclose(model.test_on_batch(csc, y), of_batch, rtol=1e-5)
    assert model.fit(x, y, validation_data=(csc, y), verbose=0).history["loss"] == pytest.approx([of_batch])
    assert np.isfinite(model.train_on_batch(csc, y))


def test_the_order_of_shuffled_data_is_not_spent():
    rows = row_batches(100, 10, lambda rows: rows, seed=0)
    rows.epoch_order.next = 3
    for data in (rows, tf.data.Dataset.zip(rows.map(lambda rows: rows + 1), rows).prefetch(1), rows.repeat()):
        first_examples(data)
        assert rows.epoch_order.next == 3


@pytest.mark.long
@pytest.mark.both_keras
def test_a_subclassed_encoder_trains_on_the_orders_of_others():
    for encoder in (Subclassed(), keras.Sequential([keras.Input([2]), keras.layers.Dense(4)])):
        data = row_batches(6, 2, lambda rows: (tf.gather(np.tile(ROWS, [2, 1]), rows), rows), seed=0)
        model = tfxc.ExtremeClassifier(encoder, tfxc.layers.DenseHead(6))
        model.compile("sgd", loss=tfxc.losses.SoftmaxCrossentropy())
        model.fit(data, epochs=2, verbose=0)
        assert data.epoch_order.next == 2


class Loader:
    """Batches that can be read again, of arrays of another library, as a loader of PyTorch or Grain gives."""

    class Array:
        def __init__(self, values):
            self.values, self.shape, self.dtype = values, values.shape, values.dtype

        def __array__(self, dtype=None, copy=None):
            return np.asarray(self.values, dtype)

    def __iter__(self):
        for start in (0, 2):
            yield [self.Array(np.array(part[start : start + 2])) for part in (ROWS, [0, 1, 2])]


@pytest.mark.parametrize("form", ["loader", "distributed"])
def test_what_keras_reads_as_batches_builds_an_encoder(form, monkeypatch):
    adapters = keras.src.trainers.data_adapters  # grain and torch are not installed: their data are arrays
    monkeypatch.setattr(adapters, "is_grain_dataset", lambda data: isinstance(data, Loader))

    def adapter(data):
        return adapters.GeneratorDataAdapter(tuple(map(np.asarray, batch)) for batch in data)

    monkeypatch.setattr(adapters, "GrainDatasetAdapter", adapter)
    data = Loader()
    if form == "distributed":
        data = tf.data.Dataset.from_tensor_slices((ROWS, [0, 1, 2])).batch(2)
        data = tf.distribute.get_strategy().experimental_distribute_dataset(data)
    model = make_model(Uniform(4), encoder=Subclassed())
    history = model.fit(data, epochs=1, verbose=0).history
    assert model.built and np.isfinite(history["loss"]).all() and int(model.optimizer.iterations) == 2


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.shuffle=True. was passed", "ignore:Your input ran out of data")
@pytest.mark.parametrize(
    ("make_encoder", "has_length"),
    [(dense_encoder, True), (Subclassed, False), (lambda: Subclassed("items"), True)],
)
def test_a_loader_of_pytorch_trains_as_arrays_do(make_encoder, has_length):
    torch = pytest.importorskip("torch.utils.data")
    x, y = features(10), np.array([[3, -1], [4, 5]] * 5)
    rows = [{"items": row} for row in x] if getattr(make_encoder(), "key", None) else x

    class Log(torch.IterableDataset):
        def __iter__(self):
            return zip(rows, y, strict=True)

    examples = list(zip(rows, y, strict=True)) if has_length else Log()
    loader, results = torch.DataLoader(examples, batch_size=4), []
    arrays = {"x": {"items": x} if rows is not x else x, "y": y, "batch_size": 4, "shuffle": False}
    for data in ({"x": loader}, arrays):
        keras.utils.set_random_seed(1)
        model = make_model(Uniform(4, seed=1), encoder=make_encoder(), metrics=[RecallAtK(3)])
        losses = model.fit(**data, epochs=2, validation_data=loader, verbose=0).history
        results.append((losses, *model.get_weights(), model.predict(data["x"], verbose=0)["ids"]))
    tf.nest.map_structure(np.testing.assert_array_equal, *results)


def test_a_data_set_without_a_batch_is_told_and_counts_no_epoch():
    data = row_batches(3, 2, lambda rows: rows, seed=0)
    empty = data.filter(lambda rows: tf.size(rows) > 2)
    with pytest.raises(ValueError, match="has no batch.*drop_remainder"):
        first_examples(empty)
    assert data.epoch_order.next == 0


class Gives(keras.Model):
    def __init__(self, give):
        super().__init__()
        self.give = give

    def call(self, x):
        return self.give(x)


@pytest.mark.parametrize(
    ("give", "message"),
    [
        (lambda x: x[:, 0], r"but gave float32 \(4,\)"),
        (lambda x: x[:, tf.newaxis, tf.newaxis], rf"but gave float32 \(4, 1, 1, {DIM}\)"),
        (lambda x: tf.cast(x, tf.int32), rf"but gave int32 \(4, {DIM}\)"),
        (lambda x: {"query": x}, "but gave a dict"),
    ],
)
def test_other_outputs_are_refused(give, message):
    model = tfxc.ExtremeClassifier(Gives(give), tfxc.layers.DenseHead(50))
    with pytest.raises(ValueError, match=message):
        model.queries(features(4))


def test_outputs_that_are_known_are_checked_at_once():
    x = keras.Input((DIM,))
    for outputs, message in (
        ([x, x], r"gives a list of 2: make keras.Model\(encoder.inputs, query\)"),
        (keras.layers.Reshape((1, 1, DIM))(x), r"gives \(None, 1, 1, "),
    ):
        with pytest.raises(ValueError, match=message):
            make_model(encoder=keras.Model(x, outputs))
    assert query_width(keras.Model(x, keras.layers.Dense(3)(x))) == 3
    assert query_width(Gives(lambda x: x)) is None


@pytest.mark.traced
def test_a_width_that_is_not_known_is_asked_for_where_nothing_is_built():
    def hidden(x):
        return tf.ensure_shape(tf.py_function(lambda x: x, [x], tf.float32), [None, None])

    x = features(4)
    model = tfxc.ExtremeClassifier(Gives(hidden), tfxc.layers.DenseHead(50), k=2)
    with pytest.raises(ValueError, match="whose width is not known: call the model on one batch first"):
        tf.function(model.queries)(x)
    want = model(x)["ids"]
    np.testing.assert_array_equal(model.rank(x, 2)["ids"], want)


def test_the_last_position_that_is_not_masked():
    ids = tf.constant([[1, 2, 0], [3, 0, 0], [0, 0, 4], [0, 0, 0]])
    embedded = keras.layers.Embedding(5, 2, mask_zero=True)(ids)
    want = np.stack([embedded[0, 1], embedded[1, 0], embedded[2, 2], embedded[3, 0]])
    np.testing.assert_array_equal(last_position(embedded), want)
    np.testing.assert_array_equal(last_position(tf.identity(embedded)), embedded[:, -1])
