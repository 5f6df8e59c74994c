import ast
import contextlib
import gzip
import io
import itertools
import json
import logging
import os
import re
import runpy
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from common.sampler_choice import SAMPLERS, Settings

import tfxc
from tfxc._keras import IS_KERAS_3, keras

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
PROGRAMS = sorted(path.name for path in EXAMPLES.glob("*.py"))
START_UP = re.compile("absl::InitializeLog|oneDNN custom|cuda|shuffle=True|AutoGraph could not")
PAGE = "The old man looked at the sea. The sea looked at the old man. Who is at sea, and why?\nNobody asks.\n"
BOOK = "=== A Book ===\n" + 60 * PAGE

pytestmark = pytest.mark.skipif(not IS_KERAS_3, reason="the examples are run once, under Keras 3")


def command(script, arguments):
    """A command line; a text among the arguments may hold several."""
    return [str(EXAMPLES / script), *itertools.chain(*(str(own).split() for own in arguments))]


def run(script, *arguments):
    keras.backend.clear_session()
    output, log = io.StringIO(), io.StringIO()
    handler = logging.StreamHandler(log)
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(output), warnings.catch_warnings():
        warnings.filterwarnings("error", "(?s).*shuffle=True")
        patch.setattr(sys, "argv", command(script, arguments))
        patch.setitem(sys.modules, "tfxc", tfxc)  # a program may hide it, or ask for another Keras
        patch.setenv("TF_USE_LEGACY_KERAS", os.environ.get("TF_USE_LEGACY_KERAS", "0"))
        tf.get_logger().addHandler(handler)
        try:
            runpy.run_path(sys.argv[0], run_name="__main__")
        except SystemExit as end:
            assert not end.code, end.code
        finally:
            tf.get_logger().removeHandler(handler)
    assert not START_UP.search(log.getvalue()), log.getvalue()
    return output.getvalue()


def run_alone(script, *arguments):
    own = [sys.executable, *command(script, arguments)]
    done = subprocess.run(own, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not START_UP.search(done.stderr), done.stderr
    return done.stdout


def interrupt(script, *arguments, after=1):
    replace = os.replace

    def replace_or_end(source, target):
        if Path(target).name == "history.json" and len(json.loads(Path(source).read_text())) > after:
            raise KeyboardInterrupt
        replace(source, target)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(os, "replace", replace_or_end)
        run(script, *arguments)


@pytest.mark.parametrize("program", PROGRAMS)
def test_says_how_it_is_used(program):
    assert run(program, "--help").startswith(f"usage: {program}")
    assert f"`{program}`" in (EXAMPLES / "README.md").read_text(encoding="utf-8")


def test_only_public_names_are_used():
    for path in EXAMPLES.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in getattr(node, "names", []) if isinstance(node, ast.Import)]
            if isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            for name in names:
                if name.split(".")[0] == "tfxc":
                    package, _, public = name.removeprefix("tfxc.").rpartition(".")
                    module = getattr(tfxc, package) if package else tfxc
                    assert name == "tfxc" or public in module.__all__, f"{path.name} imports {name}"


@pytest.mark.parametrize("program", PROGRAMS)
def test_starts_quietly(program):
    tree = ast.parse((EXAMPLES / program).read_text(encoding="utf-8"))
    imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    names = [getattr(node, "module", None) or node.names[0].name for node in imports]
    packages = [name.split(".")[0] for name in names]
    starts = [package for package in packages if package in ("common", "tensorflow", "keras", "tfxc")]
    assert starts[0] == "common", f"{program} imports {starts[0]} before common"


@pytest.mark.long
def test_every_sampler_that_can_be_named_draws():
    head = tfxc.layers.DenseHead(20)
    head.build((None, 8))
    query = tf.random.normal([3, 8])
    step = tfxc.samplers.Step(query, tf.constant([[0], [7], [19]]), score=lambda ids: head.score(query, ids))
    for name, make in SAMPLERS.items():
        sampler = make(Settings(num_negatives=20, num_codewords=2, counts=np.arange(1, 21)))
        if name == "full":
            assert sampler is None
            continue
        sampler.build((20, 8))
        sampler.refresh(head)
        ids = sampler.sample(step).ids.numpy()
        assert ids.size and ids.max() < 20, name


@pytest.fixture
def out(tmp_path):
    """A folder for what a program writes."""
    return tmp_path / "out"


@pytest.fixture
def book(tmp_path):
    """The options of a small text."""
    (tmp_path / "book.txt").write_text(BOOK)
    return f"--data {tmp_path}/book.txt --min-count 1 --dim 8 --verbose 2 --output {tmp_path}/out"


def results_in(folder):
    return json.loads((folder / "results.json").read_text(encoding="utf-8"))


def is_picture(path):
    return path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.long
@pytest.mark.traced
def test_trains_resumes_compares_exports_and_answers(book, out):
    options = "--num-blocks 1 --max-length 6 --num-negatives 4 --num-codewords 2 --refresh-steps 2"
    program = "sequential_recommendation.py", book, options, "--learning-rate 0.01 --epochs 2"
    interrupt(*program, "--samplers midx-rq")
    printed = run(*program, "--samplers full midx-rq")
    resumed = printed.split("== midx-rq")[1]
    assert "resumed after 1" in resumed and "Epoch 2/2" in resumed and "Epoch 1/2" not in resumed
    results = results_in(out)
    assert set(results["results"]) == {"full", "midx-rq"}
    assert re.search(r"midx-rq: [\d.]+x (faster|slower) than full, .* NDCG@10", printed)
    assert "epoch 2.0: " in printed and "ndcg_at_10 of the sample" in printed
    curve = [point for row in results["histories"]["midx-rq"] for point in row["curve"]]
    seconds = [point["seconds"] for point in curve]
    assert seconds == sorted(seconds) and curve[-1]["epoch"] == 2
    assert all(0 <= point["quality"] <= 1 for point in curve)
    assert [row["epoch"] for row in results["histories"]["midx-rq"]] == [1, 2]
    assert all(0 < row["ndcg_at_10"] <= 1 for row in results["results"].values())
    assert "| full | 2 |" in (out / "results.md").read_text()
    assert is_picture(out / "quality_against_time.png")
    names = ["the", "old", "zebra", "looked", "at", "the"]
    answer = run_alone("query_saved_model.py", out / "served", *names)
    history, best = answer.split(" -> ")
    assert history.split() == names and re.search(r"  \([\d.]+ ms\)$", best.strip())
    assert not {"the", "old", "looked"} & set(best.replace(",", "").split()) and best.count(",") == 4


def test_names_on_the_standard_input_may_have_blanks(monkeypatch):
    monkeypatch.setitem(sys.modules, "tfxc", tfxc)  # which the program hides
    names_in = runpy.run_path(EXAMPLES / "query_saved_model.py")["names_in"]
    assert names_in("green tea\tmilk\t\n") == ["green tea", "milk"]
    assert names_in(" tea  milk\n") == ["tea", "milk"] and names_in("\n") == []
    assert names_in("green tea\tmilk\r\n") == ["green tea", "milk"] and names_in("\r\n") == []


@pytest.mark.long
@pytest.mark.traced
def test_a_saved_model_that_takes_no_names_is_refused(tmp_path):
    module = tf.Module()
    module.serve = tf.function(lambda price: {"vectors": price}, [tf.TensorSpec([None, 3], name="price")])
    tf.saved_model.save(module, tmp_path / "items", signatures={"serving_default": module.serve})
    tf.saved_model.save(tf.Module(), tmp_path / "nothing")
    specs = [tf.TensorSpec([None, None], tf.string, "exclude"), tf.TensorSpec(None, tf.string, "x")]
    module.serve = tf.function(lambda exclude, x: {"both": tf.size(exclude) + tf.size(x)}, specs)
    tf.saved_model.save(module, tmp_path / "any", signatures={"serving_default": module.serve})
    encoder = keras.Sequential([keras.Input((2,), dtype="int32"), keras.layers.Embedding(4, 3)])
    encoder.add(keras.layers.GlobalAveragePooling1D())
    model = tfxc.ExtremeClassifier(encoder, tfxc.layers.DenseHead(3), class_names=["tea", "milk", "rice"])
    model.export(tmp_path / "integers", strings=())
    for folder in ("items", "nothing", "any", "integers"):
        with pytest.raises(AssertionError, match=f"{folder} .*model.export.path, strings=True"):
            run("query_saved_model.py", tmp_path / folder, "tea")


@pytest.mark.long
def test_recommends_from_an_interaction_log_with_little_memory(tmp_path, out):
    lines = [f"u{user} i{(user * 3 + step * step) % 40}" for user in range(40) for step in range(8)]
    (tmp_path / "log.txt").write_text("\n".join([*lines, ""]))
    options = f"--data {tmp_path}/log.txt --format interactions --dim 8 --max-length 5 --exclude-seen"
    model = "--model esasrec --num-blocks 1 --epochs 1 --table-dtype bfloat16 --rowwise-adagrad 0.1 --ks 50"
    heads = "--heads mach dense --num-buckets 8 --num-repetitions 4 --samplers uniform"
    printed = run("sequential_recommendation.py", options, model, heads, "--verbose 2 --output", out)
    assert "| mach | 1 |" in printed and "| uniform | 1 |" in printed and "| Recall@50 |" in printed


@pytest.mark.long
@pytest.mark.traced
def test_language_model_learns_resumes_and_compares_proposals(tmp_path, out):
    line = " the old man looked at <unk> \n sea . who is there ? \n"
    for name, copies in [("train", 60), ("valid", 12), ("test", 12)]:
        (tmp_path / f"tiny.{name}.txt").write_text(copies * line)
    options = f"--data {tmp_path} --dim 32 --dropout 0 --max-length 5 --batch-size 4 --num-negatives 4"
    more = f"--num-codewords 2 --refresh-steps 20 --learning-rate 0.02 --epochs 4 --verbose 2 --output {out}"
    interrupt("language_model.py", options, more, "--samplers midx-rq")
    printed = run("language_model.py", options, more, "--samplers full midx-rq")
    assert "resumed after 1" in printed and "sampler/kl" in printed and "sampler/index_age" in printed
    assert "13 words" in printed
    results = results_in(out)
    for name in ("full", "midx-rq"):
        assert [row["epoch"] for row in results["histories"][name]] == [1, 2, 3, 4]
        assert 1 <= results["results"][name]["perplexity"] < 4  # 13 before it has learnt anything
    assert set(results["proposals"]) == {"midx-rq"}
    assert 0 <= results["proposals"]["midx-rq"]["accidental_hits"] <= 1
    assert "| midx-rq | 4 |" in (out / "results.md").read_text()
    assert is_picture(out / "perplexity_against_time.png") and is_picture(out / "cumulative_probability.png")


@pytest.mark.long
@pytest.mark.traced
def test_language_model_reads_any_text_by_a_transformer(book):
    model = "--model transformer --num-blocks 1 --max-length 6 --batch-size 8 --num-negatives 4"
    printed = run("language_model.py", book, model, "--num-codewords 2 --samplers dns --epochs 1")
    assert "| dns | 1 |" in printed


def write_points(folder, num_train, num_test):
    for seed, (name, num_points) in enumerate({"train": num_train, "test": num_test}.items()):
        random = np.random.default_rng(seed)
        lines = [f"{num_points} 30 10"]
        for _ in range(num_points):
            first, second = sorted(random.choice(10, 2, replace=False))
            lines.append(f"{first},{second} {first}:1 {second + 10}:1 {20 + random.integers(10)}:1")
        (folder / f"{name}.txt").write_text("\n".join(lines) + "\n")
    return f"--data {folder} --verbose 2 --output {folder}/out"


@pytest.mark.long
@pytest.mark.traced
def test_classifies_with_dense_sparse_and_mach_heads(tmp_path, out):
    data = write_points(tmp_path, 400, 50)
    (tmp_path / "label_names.txt").write_text("".join(f"subject {label}\n" for label in range(10)))
    options = "--dim 32 --dropout 0.1 --batch-size 16 --learning-rate 0.01 --epochs 4"
    heads = "--num-inputs 64 --fan-in 8 --num-buckets 8 --num-repetitions 6 --heads sparse"
    interrupt("extreme_classification.py", data, options, heads)
    printed = run("extreme_classification.py", data, options, heads, "dense mach")
    assert printed.count("resumed after 1") == 1 and "subject " in printed
    results = results_in(out)["results"]
    assert set(results) == {"dense", "sparse", "mach"}
    assert all(results[name]["precision_at_1"] > 0.9 for name in ("dense", "sparse", "mach"))
    classes, wide = 10 * 8 * 16 + 10 * 12, (64 + 1) * 64 * 12  # with connections, and Adam's two numbers
    directions = 2 * 64 * 64 * 4 + 3 * 8
    assert results["sparse"]["head_mb"] == pytest.approx((classes + wide + directions) / 2**20)
    assert is_picture(out / "precision_against_time.png")


@pytest.mark.long
def test_a_run_that_stopped_early_has_come_to_its_end(tmp_path):
    options = "--heads dense --dim 8 --learning-rate 1e-9 --epochs 4 --patience 1"
    program = "extreme_classification.py", write_points(tmp_path, 60, 20), options
    assert run(*program).count("val_loss") == 2
    assert "val_loss" not in run(*program)


@pytest.mark.long
@pytest.mark.traced
def test_classifies_hashed_features_with_hard_negatives_and_label_texts(tmp_path, out):
    data = write_points(tmp_path, 200, 50)
    (tmp_path / "label_names.txt").write_text("".join(f"Subject word{label}\n" for label in range(10)))
    (tmp_path / "vocabulary.txt").write_text("".join(f"word{feature}\n" for feature in range(30)))
    options = "--dim 32 --dropout 0.1 --batch-size 16 --heads dense --epochs 3 --label-texts"
    rates = "--learning-rate 0.01 --head-learning-rate 0.1 --warm-up 0.2 --hash-features 16"
    hard = "--num-negatives 6 --num-hard 2 --start-epoch 2 --refresh-every 1 --samplers curriculum"
    program = "extreme_classification.py", data, options, rates, hard
    interrupt(*program, after=2)
    printed = run(*program, "label-astra searched up-to-date")
    assert "210 training and 50 test points, 16 features" in printed
    assert printed.count("resumed after 2") == 1
    written = results_in(out)
    histories = written["histories"]
    others = {"dense-label-astra", "dense-searched", "dense-up-to-date"}
    assert set(histories) == {"dense-curriculum", *others}
    weights = 4 * (10 * 64 + 10)  # gradient descent remembers nothing
    assert written["results"]["dense-searched"]["head_mb"] == pytest.approx(weights / 2**20)
    assert histories["dense-curriculum"][-1]["mining/failures"] == 0
    assert (out / "dense-curriculum" / "hard-negatives").is_dir()


@pytest.mark.long
def test_classifies_by_softmax_with_sampled_labels_and_measures_at_any_cutoff(tmp_path, out):
    options = "--loss softmax --dim 32 --dropout 0.1 --batch-size 10 --learning-rate 0.05 --epochs 2"
    heads = "--heads dense mach --num-buckets 8 --samplers full unigram midx-rq --ks 100 2 --refresh-steps 5"
    data = write_points(tmp_path, 100, 50), "--num-codewords 2 --num-negatives 6"
    printed = run("extreme_classification.py", *data, options, heads)
    assert "| P@1 | P@2 | P@100 | N@1 |" in printed and "| PSN@100 |" in printed
    results = results_in(out)["results"]
    assert list(results) == ["dense", "dense-unigram", "dense-midx-rq", "mach"]
    for row in results.values():
        assert row["precision_at_1"] > 0.6 and row["recall_at_100"] == 1


def write_titles(folder, num_titles):
    """A folder of LF-AmazonTitles: a title holds two words, and each of six words is a tag."""
    words = ["Tea", "Milk", "Rice", "Café", "Soap", "Wool"]
    pairs = np.random.default_rng(0).integers(6, size=[num_titles, 2]).tolist()
    titles = [(f"{words[first]} & {words[second]}", [first, second]) for first, second in pairs]
    labels = [(word, [label]) for label, word in enumerate(words)]
    for part, rows in (("trn", titles), ("tst", titles[:40]), ("lbl", labels)):
        lines = [json.dumps({"uid": "a", "title": title, "target_ind": ids}) for title, ids in rows]
        with gzip.open(folder / f"{part}.json.gz", "wt", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
    (folder / "filter_labels_test.txt").write_text("0 0\n")
    model = "--dim 8 --dropout 0 --batch-size 16 --learning-rate 0.02 --num-negatives 3 --num-hard 1"
    return f"--data {folder} {model} --verbose 2 --output {folder}/out"


def check_tags(printed, folder):
    assert "300 training and 40 test titles, 6 tags" in printed
    loaded = tf.saved_model.load(folder / "served" / "1")
    first, second = loaded.serve(tf.constant(["wool, TEA!", "cafe"]), k=tf.constant(2))["names"].numpy()
    assert {name.decode() for name in first} == {"Wool", "Tea"} and second[0].decode() == "Café"


@pytest.mark.long
@pytest.mark.traced
def test_tags_titles_by_a_bag_of_words_and_exports_what_takes_strings(tmp_path, out):
    options = "--encoders bag --label-texts --negatives searched --epochs 6"
    check_tags(run("product_tags.py", write_titles(tmp_path, 300), options), out / "bag")
    assert results_in(out)["results"]["bag"]["precision_at_1"] > 0.95
    assert is_picture(out / "precision_against_time.png")


@pytest.mark.long
@pytest.mark.traced
def test_tags_titles_by_a_transformer_with_mined_negatives(tmp_path, out):
    pytest.importorskip("keras_hub", reason="the Transformer comes from KerasHub: pip install '.[text]'")
    program = "product_tags.py", write_titles(tmp_path, 300), "--num-layers 1 --epochs 12"
    interrupt(*program, after=2)
    printed = run(*program)
    assert "resumed after 2" in printed and "mining/recall" in printed
    check_tags(printed, out / "distilbert")


@pytest.mark.traced
def test_word_vectors_are_learnt_by_draws_from_50_tables(book, out):
    options = "--batch-size 32 --num-negatives 4 --refresh-steps 5 --epochs 2 --samplers lsh"
    printed = run("skip_gram.py", book, options)
    results = results_in(out)
    assert (results["arguments"]["num_tables"], results["arguments"]["num_bits"]) == ("50", "9")
    assert all(row["loss"] < 2.4 for row in results["results"].values())  # log 15 is 2.7
    assert "| lsh | 2 |" in printed and (out / "results.md").exists()


def test_sessions_become_points_labelled_with_the_next_item(tmp_path):
    (tmp_path / "train").write_text("a b c\nb a\nc\n")
    (tmp_path / "test").write_text("b b c\n")
    files = f"--data {tmp_path}/train --test-data {tmp_path}/test"
    run("session_points.py", files, "--num-last 2 --output", tmp_path)
    assert (tmp_path / "train.txt").read_text() == "3 6 3\n1 0:1 3:1\n2 0:1 1:1 4:1\n0 1:1 4:1\n"
    assert (tmp_path / "test.txt").read_text() == "1 6 3\n2 1:2 4:1\n"
    assert (tmp_path / "label_names.txt").read_text() == "a\nb\nc\n"


@pytest.mark.long
@pytest.mark.traced
def test_repetitions_trained_apart_are_those_trained_together(tmp_path):
    data = write_points(tmp_path, 300, 50)
    options = "--dim 16 --num-buckets 6 --batch-size 16 --learning-rate 0.01 --epochs 3"

    def workers(output, repetitions, call=run):
        return call("mach_workers.py", data, options, "--output", output, repetitions)

    alone, apart = tmp_path / "alone", tmp_path / "apart"
    workers(alone, "--repetitions 0-1 2-3", call=interrupt)
    assert not list(alone.glob("*.keras"))
    printed = workers(alone, "--repetitions 0-1 2-3")
    begun = re.findall("== repetitions_(.*): .* weights(.*)", printed)
    assert begun == [("0-1", ", resumed after 1"), ("2-3", "")]
    workers(apart, "--repetitions 2-3")
    one, other = (keras.models.load_model(folder / "repetitions_2-3.keras") for folder in (alone, apart))
    for left, right in zip(one.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_array_equal(left, right)
    with pytest.raises(AssertionError, match="holds the repetitions 2 to 3, but 0 to 3 are to be merged"):
        workers(apart, "--merge")
    with pytest.raises(AssertionError, match="holds the repetitions 0 to 3, but 0 to 7"):
        workers(alone, "--merge --num-repetitions 8")
    with pytest.raises(AssertionError, match="give the same --data and --hash-features"):
        workers(alone, "--merge --hash-features 5")
    merged = workers(alone, "--merge --num-repetitions 4 --decoder min")
    assert "4 repetitions of 2 encoders" in merged
    assert float(merged.split("precision_at_1 ")[1].split(",")[0]) > 0.9
    model, served = keras.models.load_model(alone / "model.keras"), tf.saved_model.load(str(alone / "served"))
    assert (one.head.decoder, model.head.decoder) == ("geometric", "min")
    inputs = {"ids": tf.constant([[3, 13, 20]]), "values": tf.constant([[0.6, 0.6, 0.5]])}
    np.testing.assert_array_equal(served.serve(**inputs)["ids"], model.predict(inputs, verbose=0)["ids"])


@pytest.mark.long
@pytest.mark.traced
def test_a_catalogue_is_carried_over_from_day_to_day(tmp_path, out):
    words = ["abcdefghijklmnop"[day + i % 7] for day in range(9) for i in range(200)]
    (tmp_path / "book.txt").write_text(" ".join(words) + "\n")
    options = "--days 2 --days-before 1 --sessions-a-day 10 --window 30 --max-length 5 --num-negatives 4"
    data = f"--data {tmp_path}/book.txt --min-count 1 --dim 8 --epochs 2 --output {out}"
    printed = run("daily_catalogue.py", data, options)
    rows = re.findall(r"^\| (\d) \| \d+ \| 1 \| 1 \| [\d.]+ \| ([a-z ]+) \|", printed, re.MULTILINE)
    assert rows[-4:] == [("1", "carried over"), ("1", "anew"), ("2", "carried over"), ("2", "anew")]
    epochs = re.findall(r"^\d+/\d+ - ", printed, re.MULTILINE)
    assert len(epochs) == 2 + 1 + 2 * (1 + 2)  # the first model, a day before, and of each day both models
    assert (out / "days.md").read_text() in printed
    assert [row[0] for row in results_in(out)["rows"]] == ["1", "1", "2", "2"]
    assert keras.models.load_model(out / "model.keras").class_names


@pytest.mark.long
@pytest.mark.traced
def test_follows_a_log_that_never_ends(tmp_path, out):
    lines = [" ".join(f"item{line // 20 + step}" for step in range(5)) for line in range(160)]
    (tmp_path / "log.txt").write_text("\n".join(lines), encoding="utf-8")
    model = "--rows 9 --dim 8 --num-negatives 5 --max-length 3 --batch-size 8"
    program = "stream.py", f"--log {tmp_path}/log.txt --lines 40 --output {out}", model
    assert len(re.findall("turn", run(*program, "--turns 2"))) == 2
    printed = run(*program)
    assert "goes on after 2 turns with 8 names" in printed
    turns = re.findall("turn (.*): .* (.*) names, (.*) new, (.*) gone", printed)
    assert turns == [("3", "9", "2", "1"), ("4", "9", "2", "2")]
    served = tf.saved_model.load(str(out / "served"))
    names = served.serve(tf.constant([["item8", "item9"]]))["names"].numpy().astype(str).ravel().tolist()
    assert "item11" in names and "item0" not in names


@pytest.mark.long
def test_trains_over_processes_and_exports(tmp_path, out):
    histories = [" ".join(f"item{(user + step) % 30}" for step in range(8)) for user in range(60)]
    lines = "\n".join(f"user{user} {items}" for user, items in enumerate(histories))
    (tmp_path / "lines.txt").write_text(lines, encoding="utf-8")
    model = "--dim 8 --num-negatives 5 --num-codewords 2 --batch-size 8 --max-length 6 --epochs 2 --steps 5"
    data = f"--data {tmp_path}/lines.txt --output {out} --workers 1 --servers 1"
    said = run_alone("cluster.py", data, model)
    assert "30 classes; from the start" in said and "epoch 2: loss" in said
    results = results_in(out)
    assert results["epochs"] == 2 and 0 < results["loss"] < 2 * np.log(30) and 0 <= results["ndcg_at_10"] <= 1
    served = tf.saved_model.load(str(out / "served"))
    assert served.serve(tf.constant([[1, 2, 3, 4, 5, 6]]))["ids"].shape == (1, 10)
