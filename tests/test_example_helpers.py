"""What the example programs share, where a program alone would not show it."""

import lzma
import os
import re
import shlex
import sys
from argparse import ArgumentTypeError, Namespace
from pathlib import Path

import cluster
import daily_catalogue
import extreme_classification
import language_model
import mach_workers
import numpy as np
import product_tags
import pytest
import sequential_recommendation
import session_points
import skip_gram
import tensorflow as tf
from common.arguments import count, rate, share, whole
from common.classification_data import BUNDLED, load
from common.encoders import lstm
from common.language_data import load_text
from common.plots import plot, pyplot
from common.quality_sample import QualitySample
from common.quiet_start import start_quietly
from common.recommendation_data import batches, load_split, training_batches
from common.run_options import check_options
from common.searched_labels import encoded_labels
from common.text_data import load_texts
from common.text_encoders import vocabulary_of
from common.training_log import TrainingLog
from common.up_to_date import UpToDate
from common.word_pieces import SPECIAL, WordPieces, make_vocabulary

import tfxc
from tfxc._keras import keras
from tfxc.data import Sequences

PAPERS = (Path(__file__).resolve().parents[1] / "docs" / "papers.md").read_text(encoding="utf-8")


def parsed(program, *options):
    """What a program reads from a command line, which is given in parts of any length."""
    return program.parse_arguments(shlex.split(" ".join(map(str, options))))


def recommendation(*options):
    return parsed(sequential_recommendation, *options)


@pytest.mark.long
def test_lstm_layers_go_on_where_the_batch_before_stopped():
    encoder = lstm(num_classes=50, max_length=3, dim=8, num_blocks=2, batch_size=2)
    whole = lstm(num_classes=50, max_length=6, dim=8, num_blocks=2, batch_size=2)
    whole.set_weights(encoder.get_weights())
    items = np.random.default_rng(0).integers(1, 51, size=[2, 6]).astype(np.int32)
    halves = [encoder(tf.constant(part)).numpy() for part in np.split(items, 2, axis=1)]
    np.testing.assert_allclose(np.concatenate(halves, 1), whole(tf.constant(items)), atol=1e-6)
    for layer in encoder.layers:
        if getattr(layer, "stateful", False):
            layer.reset_states()
    again = encoder(tf.constant(items[:, :3])).numpy()
    np.testing.assert_allclose(again, halves[0], atol=1e-6)
    assert np.abs(encoder(tf.constant(items[:, :3])).numpy() - again).max() > 1e-4


def test_numbers_of_a_command_line_lie_in_their_range():
    right = {count: "1 20", whole: "0 3", rate: "1e-9 2", share: "0 0.5"}
    wrong = {count: "0 -1", whole: "-1", rate: "0 -1 inf nan", share: "1 -0.1 nan"}
    for number, texts in right.items():
        assert [number(text) for text in texts.split()] == [float(text) for text in texts.split()]
        for text in wrong[number].split():
            with pytest.raises(ArgumentTypeError, match=f"but is {text}"):
                number(text)


REFUSED = {
    extreme_classification: {
        "--epochs 0": "argument --epochs: must be at least 1, but is 0",
        "--epochs many": "argument --epochs: invalid int value: 'many'",
        "--seed -1": "argument --seed: must be at least 0, but is -1",
        "--num-hard 0": "argument --num-hard: must be at least 1, but is 0",
        "--samplers curriculum --epochs 3": "--start-epoch 5 comes after --epochs 3",
        "--samplers astra --epochs 9 --num-negatives 4": "--num-hard 8 is more than --num-negatives 4",
        "--samplers curriculum --epochs 9 --num-negatives 8": "less --num-hard hard ones, which leaves none",
        "--halve-after 2 --warm-up 0.1": "keeps the rate until it is halved: leave out --warm-up",
        "--samplers uniform hard --start-epoch 1": "argument --start-epoch: must be at least 2, but is 1",
    },
    product_tags: {
        "--epochs 2": "--start-epoch 2 comes after --epochs 2",
        "--negatives searched --num-negatives 4": "--num-hard 8 is more than --num-negatives 4",
        "--max-length 2": "argument --max-length: must be at least 3, but is 2",
    },
    mach_workers: {  # these are for sparse heads
        f"--repetitions 0-3 {option}": f"unrecognized arguments: {option}"
        for option in ("--fan-in 8", "--num-inputs 64", "--group-size 4")
    },
    sequential_recommendation: {
        "--loss softmax-at-k --samplers midx-rq full": "does not go with the sampler full, as it weighs by",
        "--loss softmax-at-k --heads mach": "does not go with --heads mach, which has no sampler",
        "--loss gbce --heads dense mach": "--loss gbce does not go with --heads mach, whose buckets have",
        "--loss binary --heads mach": "--loss binary does not go with --heads mach",
    },
}


@pytest.mark.parametrize(
    ("program", "options"), [(program, options) for program, own in REFUSED.items() for options in own]
)
def test_options_that_do_not_suit_a_run_are_refused_at_once(program, options, capsys):
    with pytest.raises(SystemExit):
        parsed(program, options)
    assert REFUSED[program][options] in capsys.readouterr().err


@pytest.mark.parametrize(("program", "options"), re.findall(r"`python examples/(\w+)\.py ?(.*?)`", PAPERS))
def test_commands_for_the_tables_of_the_papers_are_understood(program, options, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for data in re.findall(r"--data (\S+)", options):
        Path(data).touch()
    parsed(sys.modules[program], options)


def test_a_transformer_without_keras_hub_is_refused_in_one_sentence(monkeypatch):
    monkeypatch.setattr(product_tags, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match=r"needs KerasHub: pip install '.\[text\]' .* give --encoders bag"):
        product_tags.run(parsed(product_tags))


def test_a_preset_whose_pieces_have_capitals_is_refused(monkeypatch):
    cased = Namespace(from_preset=lambda name: Namespace(lowercase=False))
    hub = Namespace(tokenizers=Namespace(DistilBertTokenizer=cased))
    monkeypatch.setitem(sys.modules, "keras_hub", hub)
    with pytest.raises(SystemExit, match="--preset cased reads capitals, but titles are read in lower case"):
        vocabulary_of([], parsed(product_tags, "--preset cased"))


@pytest.mark.long
def test_the_texts_of_tate_hold_the_words_of_their_points():
    texts, points = load_texts(BUNDLED)[0], load(BUNDLED)[0]
    with lzma.open(BUNDLED / "vocabulary.txt.xz", "rt", encoding="utf-8") as file:
        vocabulary = file.read().splitlines()
    assert len(texts) == len(points) == 47_008
    for row in range(0, len(points), 4_001):
        words = [vocabulary[word].split("_")[-1].lower() for word in points.features[row].indices]
        assert [word for word in words if word not in texts.texts[row].lower()] == []
        assert (texts.labels[row] != points.labels[row]).nnz == 0


def test_titles_without_labels_or_names_of_their_own_are_refused(tmp_path):
    with pytest.raises(SystemExit, match="must hold texts, trn.json and tst.json or trn_X.txt and tst_X.txt"):
        load_texts(tmp_path)
    for name, text in (("trn_X.txt", "a\nb\n"), ("tst_X.txt", "a\n"), ("Y.txt", "x\n")):
        (tmp_path / name).write_text(text)
    for name in ("trn_X_Y.txt", "tst_X_Y.txt"):
        (tmp_path / name).write_text("1 1\n0:1\n")
    with pytest.raises(SystemExit, match=r"has 2 texts, .* 1 names, but the labels are of shape \(1, 1\)"):
        load_texts(tmp_path)


def test_words_of_a_book_have_no_neighbours_in_the_next():
    text = Sequences.from_lists([["a", "b", "a"], ["c"]])
    words, labels = next(iter(skip_gram.batches(text, window=2, batch_size=9)))
    assert words.numpy().tolist() == [[0], [1], [0], [2]]
    assert labels.numpy().tolist() == [[-1, -1, 1, 0], [-1, 0, 0, -1], [0, 1, -1, -1], [-1] * 4]


VOCABULARY = [*SPECIAL, "!", "t", "##t", "##e", "##a", "te", "##as", "cafe", "茶"]


def test_words_fall_into_the_longest_pieces_from_their_start_on():
    pieces = WordPieces(VOCABULARY, max_length=7)
    ids = pieces(tf.constant(["Teas TEA!", "Café t\u00e9茶", "tex", "", "tea tea tea"])).numpy()
    found = [" ".join(VOCABULARY[piece] for piece in row if piece) for row in ids]
    assert found[:2] == ["[CLS] te ##as te ##a ! [SEP]", "[CLS] cafe te 茶 [SEP]"]
    assert found[2:] == ["[CLS] [UNK] [SEP]", "[CLS] [SEP]", "[CLS] te ##a te ##a te [SEP]"]


def test_word_pieces_are_those_of_keras_hub():
    hub = pytest.importorskip("keras_hub", reason="what is compared is KerasHub's: pip install '.[text]'")
    texts = ["Teas at the café, 5$ each!", "¿Qué? «Té» – 茶茶 a_b", "the tea's teapot", "  a\tb  "]
    vocabulary = make_vocabulary([*texts, "tea the te"], min_count=2)
    theirs = hub.tokenizers.WordPieceTokenizer(
        vocabulary, lowercase=True, strip_accents=True, special_tokens=list(SPECIAL)
    )
    for own, other in zip(WordPieces(vocabulary, 99)(tf.constant(texts)), theirs(texts), strict=True):
        assert [int(piece) for piece in own if piece][1:-1] == list(other)


def test_a_merge_keeps_the_decoder_of_the_training_unless_told():
    decoders = {"--merge": None, "--merge --decoder min": "min", "--repetitions 0": "geometric"}
    for options, decoder in decoders.items():
        assert parsed(mach_workers, options).decoder == decoder


def small_language_model(folder, num_streams):
    for part in ("train", "valid", "test"):
        (folder / f"{part}.txt").write_text(100 * "the old man looked at the sea\n")
    options = f"--batch-size {num_streams} --max-length 4 --dim 8 --num-blocks 1"
    args = parsed(language_model, "--data", folder, options)
    split = load_text(args.data, args.min_count)
    return language_model.make_model("full", split, 1, args), split, args


@pytest.mark.long
def test_a_language_model_of_any_number_of_streams_shows_what_it_expects(tmp_path, capsys):
    language_model.show_predictions(*small_language_model(tmp_path, 40))
    assert capsys.readouterr().out.count(" -> ") == 3


@pytest.mark.long
def test_a_language_model_shows_what_it_expects_whatever_it_read_before(tmp_path):
    model, split, args = small_language_model(tmp_path, 4)
    items, _ = next(iter(language_model.batches(split, args)[2]))

    def scores():
        return model.predict(items, batch_size=len(items), verbose=0)["scores"]

    first, second, third = scores(), scores(), scores()
    assert min(np.abs(first - second).max(), np.abs(second - third).max()) > 1e-6  # it goes on in the text
    language_model.show_predictions(model, split, args)  # begins it anew
    np.testing.assert_allclose(scores(), second, rtol=1e-6)
    language_model.forget_text(model)
    np.testing.assert_allclose(scores(), first, rtol=1e-6)


def sessions(folder, train, test):
    """The options of two files that hold these texts."""
    (folder / "train").write_text(train)
    (folder / "test").write_text(test)
    return f"--format sessions --data {folder}/train --test-data {folder}/test"


@pytest.mark.filterwarnings("ignore:.*1 bad of 2 lines")
def test_sessions_with_items_that_training_lacks_are_left_out_if_asked(tmp_path):
    options = sessions(tmp_path, 20 * "a b c\n", "a b\na x\n")
    with pytest.raises(ValueError, match="the item 'x' is not in the vocabulary"):
        load_split(recommendation(options))
    args = recommendation(options, "--skip-bad-lines")
    with pytest.warns(UserWarning, match="1 bad of 2 lines"):
        assert len(load_split(args).test) == 1
    (tmp_path / "train").write_text(9 * "a b c\n")
    with pytest.raises(SystemExit, match="has 9 sessions of two items or more, too few"):
        load_split(args)


def test_test_sessions_of_one_item_are_told(tmp_path):
    options = sessions(tmp_path, 20 * "a b c\n", "a\nb\n")
    to_points = lambda: session_points.main(f"{options} --output {tmp_path}/out".split())  # noqa: E731
    for run in (lambda: load_split(recommendation(options)), to_points):
        with pytest.raises(SystemExit, match="test has 2 sequences, none of two items or more"):
            run()


def test_bad_points_are_left_out_if_asked(tmp_path):
    (tmp_path / "train.txt").write_text("3 2 3\n0,2 0:1 1:1\n1 0:x\n1 1:2\n")
    (tmp_path / "test.txt").write_text("1 2 3\n0,2 0:1 1:1\n")
    with pytest.raises(ValueError, match="1 bad of"):
        load(tmp_path)
    args = parsed(extreme_classification, "--skip-bad-lines --data", tmp_path)
    with pytest.warns(UserWarning, match="1 bad of"):
        train, *_ = load(args.data, skip_bad_lines=args.skip_bad_lines)
    assert len(train) == 2


def test_a_file_that_is_not_there_is_named_before_anything_is_made(tmp_path, capsys):
    for example in (sequential_recommendation, extreme_classification):
        with pytest.raises(SystemExit):
            parsed(example, f"--data {tmp_path}/nowhere --output {tmp_path}/out")
        assert f"there is no file or folder {tmp_path}/nowhere" in capsys.readouterr().err


@pytest.mark.parametrize("begun, given", [([], ["0-2", "3-7"]), (["0-3"], ["4-6"])])
def test_ranges_that_could_not_be_merged_are_not_trained(begun, given, tmp_path):
    for name in begun:
        (tmp_path / f"repetitions_{name}").mkdir()
    (tmp_path / "repetitions_0-9.keras").touch()  # merged or not, a file alone is no run
    options = "--output", tmp_path, "--repetitions"
    with pytest.raises(SystemExit, match=f"{(begun + given)[0]}, {given[-1]}.*each range must hold as many"):
        mach_workers.run(parsed(mach_workers, *options, *given))
    mach_workers.check_ranges(parsed(mach_workers, *options, "4-7"))  # of as many as were begun


def test_rare_words_are_no_class_that_could_be_recommended(tmp_path):
    (tmp_path / "book.txt").write_text("=== A Book ===\n" + 100 * "the sea the sky\n" + "a whale\n")
    split = load_split(recommendation(f"--format text --data {tmp_path}/book.txt"))
    assert split.train.vocabulary.names == ["the", "sea", "sky"]


def test_a_quiet_start_hides_nothing_else(monkeypatch, capfd):
    def speak():
        os.write(2, b"I0000 00:00:1.2 port.cc:153] oneDNN custom operations are on.\nOut of memory.\n")
        raise RuntimeError("no devices")

    monkeypatch.setattr(tf.config, "list_logical_devices", speak)
    with pytest.raises(RuntimeError, match="no devices"):
        start_quietly()
    assert capfd.readouterr().err == "Out of memory.\n"


@pytest.mark.traced
@pytest.mark.parametrize(("num_runs", "clock"), [(2, "seconds"), (12, "processor_seconds")])
def test_few_runs_and_many_are_drawn(tmp_path, num_runs, clock):
    row = {"seconds": 3.0, "processor_seconds": 5.0, "val_ndcg_at_10": 0.2}
    curve = [{"seconds": 1.0, "processor_seconds": 2.0, "quality": 0.1}]
    runs = {f"run {number}": [row | {"curve": curve * (number % 2)}] for number in range(num_runs)}
    plot(runs, str(tmp_path / "runs.png"), clock=clock)
    assert (tmp_path / "runs.png").read_bytes().startswith(b"\x89PNG")
    lines = pyplot.gcf().axes[0].lines
    assert len({(line.get_color(), line.get_linestyle()) for line in lines}) == num_runs


def small_model(run_eagerly=True, dropout=0.0):
    """A compiled classifier of vectors [N, 4], and batches so few that to trace a step takes longer."""
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(4), keras.layers.Dropout(dropout)]
    encoder = keras.Sequential([keras.Input((4,)), *layers])
    model = tfxc.ExtremeClassifier(encoder, tfxc.layers.DenseHead(3), k=10)
    loss, metrics = tfxc.losses.SoftmaxCrossentropy(), [tfxc.metrics.NDCGAtK(10)]
    model.compile(tfxc.optimizers.LazyAdam(0.1), loss=loss, metrics=metrics, run_eagerly=run_eagerly)
    examples = tf.random.normal([8, 4]), tf.range(8)[:, tf.newaxis] % 3
    return model, tf.data.Dataset.from_tensor_slices(examples).batch(4)


def test_fewer_classes_than_are_ranked_are_measured():
    model, batches = small_model()
    sample = QualitySample(model, batches, tfxc.metrics.NDCGAtK(10))
    measured, evaluated = sample.measure(), model.evaluate(batches, return_dict=True, verbose=0)
    assert measured == pytest.approx(evaluated["ndcg_at_10"]) and 0 < measured < 1


def test_nothing_is_compared_with_a_model_that_found_nothing():
    row = {"epochs": 1, "seconds": 2.0, "recall_at_10": 0.0, "loss": 1.0}
    results = {"full": row | {"ndcg_at_10": 0.0}, "uniform": row | {"ndcg_at_10": 0.1}}
    assert sequential_recommendation.verdict(results) == ""
    assert "| uniform | 1 | 2.0 | 2.0 | 0.1000 |" in sequential_recommendation.table(results)


@pytest.mark.parametrize("loss", ["softmax", "partition", "softmax-at-k", "binary", "gbce"])
def test_a_loss_that_asks_yes_or_no_of_each_item_starts_at_no(loss):
    heads = "dense mach" if loss == "partition" else "dense"
    args = recommendation("--samplers midx-rq --heads", heads, "--loss", loss)
    head = sequential_recommendation.make_head("dense", 50, args)
    assert head.use_bias == (loss in ("binary", "gbce"))
    if head.use_bias:
        assert float(head.bias_initializer([1])[0]) == pytest.approx(-np.log(50))


def logged(folder, model, held_out, epochs, batches=None, **options):
    """The epochs of the run in the folder, and the rows of its log when it has gone on to the last."""
    log = TrainingLog(folder, model, patience=5, verbose=0, **options)
    done = log.resume(batches)
    log.fit(batches or held_out, held_out, epochs)
    return done, log.rows


@pytest.mark.long
def test_a_run_of_other_options_is_not_taken_for_this_one(tmp_path):
    def epochs_done(**options):
        options = {"dim": 4, "loss": "binary", **options}
        return logged(tmp_path / "run", *small_model(), epochs=1, options=options)[0]

    assert epochs_done() == 0
    others = {"samplers": ["midx"], "output": "elsewhere", "verbose": 2, "patience": 7}
    assert epochs_done(**others, new_in_this_version=1) == 1
    with pytest.raises(SystemExit, match="made with --dim 4, not 8; --loss binary, not gbce: give the same"):
        epochs_done(dim=8, loss="gbce")


def test_a_cluster_goes_on_with_the_options_of_its_run_alone(tmp_path, monkeypatch):
    started = []
    monkeypatch.delenv("TF_CONFIG", raising=False)
    monkeypatch.setattr(cluster.Cluster, "run", lambda own: started.append(own))

    def start(*options):
        monkeypatch.setattr(sys, "argv", ["cluster.py", "--output", str(tmp_path / "run"), *options])
        cluster.main()

    start()
    start("--learning-rate", "0.002")  # nothing is trained yet
    start()
    (tmp_path / "run" / "checkpoint").write_text("of an epoch")
    start("--workers", "3", "--servers", "1", "--epochs", "9")
    assert len(started) == 4
    with pytest.raises(SystemExit, match="with --learning-rate 0.003, not 0.01: give the same options or"):
        start("--learning-rate", "0.01")
    with pytest.raises(SystemExit, match="with --num-negatives 100, not 20"):
        cluster.coordinate(parsed(cluster, f"--num-negatives 20 --output {tmp_path}/run"))


@pytest.mark.long
def test_each_epoch_of_a_cluster_reads_on_where_the_one_before_ended(capsys):
    model, _ = small_model()
    rows, saved = set(), []

    def read(row):
        rows.add(int(row))
        return np.zeros(4, np.float32)

    def example(row):
        return tf.ensure_shape(tf.numpy_function(read, [row], tf.float32), [4]), 0

    batches = tf.data.Dataset.range(1000).map(example).batch(4)
    args = parsed(cluster, "--epochs 12 --steps 2")
    cluster.train(model, batches.repeat(), Namespace(save=saved.append), 2, args)
    assert rows >= set(range(10 * 2 * 4)) and saved == [*range(3, 13)]
    assert capsys.readouterr().out.count("steps/s") == 10


@pytest.mark.long
def test_an_epoch_whose_files_are_not_all_written_is_trained_again(tmp_path, monkeypatch):
    def train(folder, calls_before_end=99):
        save, calls = tf.train.CheckpointManager.save, iter(range(calls_before_end))

        def save_or_end(*arguments):
            if next(calls, None) is None:
                raise KeyboardInterrupt
            return save(*arguments)

        with monkeypatch.context() as patch:
            patch.setattr(tf.train.CheckpointManager, "save", save_or_end)
            return [row["val_loss"] for row in logged(folder, *small_model(), epochs=3)[1]]

    whole = train(tmp_path / "whole")
    for number in range(1, 5):
        with pytest.raises(KeyboardInterrupt):
            train(tmp_path / str(number), number)
        assert train(tmp_path / str(number)) == pytest.approx(whole)


def write_named_points(folder, names, words):
    """Points, and names of labels and features in files that begin with a byte order mark."""
    for name in ("train", "test"):
        (folder / f"{name}.txt").write_text("3 3 2\n0 0:1 1:1\n1 2:1\n1 2:2\n")
    (folder / "label_names.txt").write_text("".join(f"{name}\n" for name in names), encoding="utf-8-sig")
    (folder / "vocabulary.txt").write_text("".join(f"{word}\n" for word in words), encoding="utf-8-sig")


def test_propensities_are_those_of_the_points_without_the_texts(tmp_path):
    write_named_points(tmp_path, ["sea", "sky"], ["sea", "sky", "b"])
    want = tfxc.metrics.propensities([1, 2], 3)
    for label_texts, num_points in ((False, 3), (True, 5)):
        train, test, names = load(tmp_path, label_texts, hash_features=3)
        assert len(train) == num_points and train.propensities() == pytest.approx(want)
        args = Namespace(label_order="random", seed=3)
        train, _, names = extreme_classification.ordered((train, test, names), args)
        assert names == ["sky", "sea"] and train.propensities() == pytest.approx(want[::-1])


def test_a_label_is_encoded_by_its_name_or_else_by_its_points(tmp_path):
    write_named_points(tmp_path, ["sea", "sky"], ["sea", "a", "b"])  # of "sky" only the points are known
    for label_texts, sea in ((True, [1, 0, 0]), (False, [0.5**0.5, 0.5**0.5, 0])):
        train, _, names = load(tmp_path, label_texts)
        assert names == ["sea", "sky"] and len(train) == 3 + label_texts  # one of a name
        np.testing.assert_allclose(train.of_labels().features.toarray(), [sea, [0, 0, 2]], atol=1e-6)
    encoder = extreme_classification.make_encoder("dense", 3, Namespace(dim=4, dropout=0))
    ask = encoded_labels(Namespace(encoder=encoder), train, batch_size=1)
    before = ask()
    encoder.set_weights([np.random.default_rng(0).normal(size=own.shape) for own in encoder.get_weights()])
    assert before.shape == ask().shape == (2, 8) and np.abs(ask() - before).max() > 0.1


def test_up_to_date_negatives_are_the_best_of_all_classes_but_the_labels():
    sampler = UpToDate(2, 3, num_retrieved=4)
    sampler.build((20, 8))
    scores = tf.random.normal([5, 20])
    labels = tf.math.top_k(scores, 1).indices
    step = tfxc.samplers.Step(tf.zeros([5, 8]), labels, score=lambda ids: tf.gather(scores, ids, axis=1))
    ids = sampler.sample(step).ids.numpy()
    np.testing.assert_array_equal(ids[:, :2], tf.math.top_k(scores, 3).indices[:, 1:])
    sampler.observe(step)  # needs no example ids


@pytest.mark.parametrize(
    ("names", "words", "message"),
    [
        (["sea", "sky"], ["sea", "a"], "vocabulary.txt must have a line for each of 3 features, but has 2"),
        (["sea"], ["sea", "a", "b"], "label_names.txt must have a line for each of 2 labels, but has 1"),
        (["sea", "sky"], ["a", "b", "c"], "No label's name has a word of the vocabulary"),
    ],
)
def test_label_texts_that_do_not_fit_are_named(tmp_path, names, words, message):
    write_named_points(tmp_path, names, words)
    with pytest.raises(SystemExit, match=message):
        load(tmp_path, label_texts=True)


@pytest.mark.long
def test_what_was_seen_is_not_shown_either(tmp_path, capsys):
    log = "".join(f"{user} {item}\n" for user in "ABC" for item in "abcdefghijklmnop"[:11])
    (tmp_path / "log.txt").write_text(log + "D q\nD r\nD s\nD t\nD u\n")
    options = "--format interactions --exclude-seen --dim 8 --max-length 3"
    args = recommendation(options, "--data", tmp_path / "log.txt")
    split = load_split(args)
    model = sequential_recommendation.make_model("full", split, 1, args)
    sequential_recommendation.show_predictions(model, split, args)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    for line in lines:
        assert set(line.split("->")[1].replace(",", "").split()) <= set("kqrstu")


@pytest.mark.long
def test_short_histories_are_packed_into_as_many_steps():
    random = np.random.default_rng(0)
    sequences = Sequences.from_lists([range(size) for size in random.integers(2, 9, 200)])

    def steps(max_length, packed):
        args = Namespace(max_length=max_length, batch_size=16, seed=0, packed=packed)
        data = training_batches(sequences, args)
        return len(data), next(iter(data))[0].shape[0]

    assert steps(30, False) == steps(7, None) == (13, 16)
    assert steps(30, None) == steps(30, True) == (12, 3)
    assert steps(7, True)[1] < 16


def test_options_that_a_text_cannot_follow_are_refused(tmp_path):
    book = tmp_path / "book.txt"
    book.write_text("=== A Book ===\n" + 100 * "the sea the sky\n")
    args = recommendation("--format text --min-count 1 --exclude-seen --data", book)
    split = load_split(args)
    with pytest.raises(SystemExit, match="--exclude-seen does not go with --format text"):
        batches(split, args)
    args.test_data = book
    with pytest.raises(SystemExit, match="--test-data does not go with --format text"):
        load_split(args)
    args.split = [8.0, 1.0, 1.0]
    with pytest.raises(SystemExit, match="--split goes with users' items, not with --format text"):
        load_split(args)


def test_users_are_split_by_shares_without_those_of_few_items(tmp_path):
    (tmp_path / "log.txt").write_text("".join(f"u{n} a b c\n" for n in range(20)) + "v a d\nw a\n")
    options = f"--format sequences --data {tmp_path}/log.txt --split 8 1 1"
    split = load_split(recommendation(options, "--min-user 3"))
    assert [len(part) for part in (split.train, split.validation, split.test)] == [16, 2, 2]
    assert split.train.vocabulary.names == ["a", "b", "c"]
    split = load_split(recommendation(options, "--min-item 2"))
    assert len(split.train) == 18 and split.train.vocabulary.names == ["a", "b", "c"]


@pytest.mark.long
def test_a_resumed_run_has_the_batches_and_dropout_that_were_to_come(tmp_path):
    def train(folder, epochs):
        model, held_out = small_model(run_eagerly=False, dropout=0.5)  # restored slots wait for a traced step
        x, y = (tf.concat(parts, 0) for parts in zip(*held_out, strict=True))
        batches = tfxc.data.row_batches(8, 2, lambda rows: (tf.gather(x, rows), tf.gather(y, rows)), seed=1)
        return [row["loss"] for row in logged(folder, model, held_out, epochs, batches)[1]]

    whole = train(tmp_path / "whole", 3)
    assert train(tmp_path / "cut", 1) == pytest.approx(whole[:1])
    assert train(tmp_path / "cut", 3) == pytest.approx(whole)


def test_a_run_on_data_that_have_changed_since_is_refused(tmp_path):
    data, folder = tmp_path / "log.txt", tmp_path / "run"
    data.write_text("a b c\n")
    options = {"data": data, "dim": 8}
    check_options(folder, options, {"verbose"})
    data.write_text("a c b\n")
    check_options(folder, {**options, "dim": 4}, {"verbose"})  # no epoch is done: it begins anew
    (folder / "history.json").write_text("[]")
    check_options(folder, {**options, "dim": 4}, {"verbose"})
    data.write_text("c b a\n")
    with pytest.raises(SystemExit, match=f"was made when {data} held other data: give another --output"):
        check_options(folder, {**options, "dim": 4}, {"verbose"})
    data.write_text("a c b\n")
    with pytest.raises(SystemExit, match="made with --dim 4, not 8"):
        check_options(folder, options, {"verbose"})


def test_a_day_that_is_most_of_its_window_is_no_more_than_an_epoch():
    sessions = Sequences.from_lists([[str(n), "x"] for n in range(100)])
    args = Namespace(sessions_a_day=40)
    for size in (30, 40, 70, 100):
        assert len(daily_catalogue.yesterday_and_before(sessions.select(np.arange(size)), 0, args)) <= size
    args.sessions_a_day = 10
    assert len(daily_catalogue.yesterday_and_before(sessions, 0, args)) == 98


def write_both_layouts(folder, num_labels=3):
    """The same points in a file of both features and labels, and in two; returns the folders."""
    old, new = folder / "old", folder / "new"
    lines = {"features": ["0:1 1:1", "2:1", "2:2 0:1"], "labels": ["0,1", "1", "2"]}
    for each, part in (("train", "trn"), ("test", "tst")):
        for own in (old, new):
            own.mkdir(exist_ok=True)
        points = "".join(f"{y} {x}\n" for x, y in zip(*lines.values(), strict=True))
        (old / f"{each}.txt").write_text(f"3 3 {num_labels}\n{points}")
        (new / f"{part}_X_Xf.txt").write_text("\n".join(["3 3", *lines["features"], ""]))
        labels = [" ".join(f"{y}:1.0" for y in own.split(",")) for own in lines["labels"]]
        (new / f"{part}_X_Y.txt").write_text("\n".join([f"3 {num_labels}", *labels, ""]))
    (new / "Y.txt").write_bytes(("caf\xe9\ntea\ntea\n" + "rum\n" * (num_labels - 3)).encode("latin-1"))
    features = "0:1\n1:1\n2:1\n" + "\n" * (num_labels - 3)
    (new / "lbl_X_Xf.txt").write_text(f"{num_labels} 3\n{features}")
    (new / "tst_X.txt").write_text("first\nsecond\nthird\n")
    (new / "filter_labels_test.txt").write_text("0 1\n2 0\n")
    return old, new


def test_features_and_labels_in_two_files(tmp_path):
    old, new = (load(folder, text_encoding="latin-1") for folder in write_both_layouts(tmp_path))
    for one, other in zip(old[:2], new[:2], strict=True):
        assert (one.features != other.features).nnz == (one.labels != other.labels).nnz == 0
    assert new[2] == ["caf\xe9", "tea [1]", "tea [2]"] and old[2] is None
    train, test, _ = load(tmp_path / "new", label_texts=True, text_encoding="latin-1")
    assert len(train) == 6 and train.labels[3:].toarray().tolist() == np.eye(3).tolist()
    assert test.filter_labels.tolist() == [[0, 1], [2, 0]] and test.texts[0] == "first"
    *some, _ = load(tmp_path / "new", text_encoding="latin-1", max_points=2)
    assert [*map(len, some)] == [2, 2] and some[1].filter_labels.tolist() == [[0, 1]]
    args = parsed(extreme_classification, "--label-order random --propensity 0.6 2.6")
    train, test, names = extreme_classification.ordered(new, args)
    named = {(point, names[label]) for point, label in test.filter_labels}
    assert named == {(0, "tea [1]"), (2, "caf\xe9")}
    inputs, labels = next(iter(test.dataset(4)))
    assert names[labels[0, 0]] == "caf\xe9" and names[inputs["exclude"][2, 0]] == "caf\xe9"
    assert train.propensities(*args.propensity) != pytest.approx(train.propensities())


@pytest.mark.long
def test_both_layouts_train_to_the_same_precision(tmp_path):
    old, new = write_both_layouts(tmp_path, num_labels=6)
    filters = new / "filter_labels_test.txt"
    pairs = filters.read_text()
    filters.unlink()

    def trained(name, folder, *more):
        options = f"--heads dense --epochs 2 --ks 5 --text-encoding latin-1 --output {tmp_path}/{name}"
        args = parsed(extreme_classification, options, "--data", folder, *more)
        results = extreme_classification.run(args)["dense"]
        return {name: value for name, value in results.items() if "_at_" in name}

    precision = trained("old", old)
    assert trained("new", new) == precision and len(precision) == 10 and precision["precision_at_1"] > 0
    filters.write_text(pairs)  # (0, 1) and (2, 0), of which (0, 1) is a label
    filtered = trained("filtered", new, "--label-texts")
    assert filtered.keys() == precision.keys() and filtered["precision_at_5"] == pytest.approx(3 / 15)


def test_folders_that_lack_a_file_of_the_layout(tmp_path):
    _, new = write_both_layouts(tmp_path)
    (new / "lbl_X_Xf.txt").write_text("2 3\n0:1\n1:1\n")
    with pytest.raises(SystemExit, match=r"be a matrix of labels and features \(3, 3\), but is \(2, 3\)"):
        load(new, label_texts=True, text_encoding="latin-1")
    (new / "tst_X_Y.txt").unlink()
    with pytest.raises(SystemExit, match="must hold train.txt and test.txt, or trn_X_Xf.txt, trn_X_Y.txt"):
        load(new)
