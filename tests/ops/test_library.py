import importlib.util
import json
import shutil
import stat
import warnings
from pathlib import Path

import pytest
import tensorflow as tf

from tfxc.ops import library

RECORD = {"tensorflow": tf.__version__, "ops": library._REGISTRATIONS}
BUILD_SCRIPT = Path(__file__).parents[2] / "custom_ops" / "build.py"


@pytest.fixture
def moved_library(monkeypatch, tmp_path):
    monkeypatch.delenv("TFXC_DISABLE_OPS", raising=False)
    monkeypatch.delenv("TFXC_OPS_LIBRARY", raising=False)
    monkeypatch.setattr(library, "LIBRARY", tmp_path / "_tfxc_ops.so")
    library._load.cache_clear()
    yield library.LIBRARY
    library._load.cache_clear()


@pytest.fixture
def build_module():
    if not BUILD_SCRIPT.exists():
        pytest.skip("installed without the op sources")
    spec = importlib.util.spec_from_file_location("build_ops", BUILD_SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _fake_compiler(tmp_path, monkeypatch, body):
    """A compiler that notes its target (the last argument) in calls.txt and then does ``body``."""
    script = tmp_path / "fake-g++"
    version = 'if [ "$1" = -dM ]; then echo "#define __GNUC__ 12"; exit; fi'
    note = f'for target; do :; done\necho "$target" >> {tmp_path}/calls.txt'
    script.write_text(f"#!/bin/sh\n{version}\n{note}\n{body}\n")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("CXX", str(script))
    return tmp_path / "calls.txt"


def test_missing_library_warns_once_and_names_the_remedy(moved_library):
    with pytest.warns(RuntimeWarning, match=r"were not built.*slower.*custom_ops/build\.py") as caught:
        assert library.load() is None
        assert not library.available()
        assert not library.use_compiled()
    assert len(caught) == 1


@pytest.mark.parametrize(
    ("record", "message"),
    [
        *((text, "an unknown version") for text in (None, "", "{}", "not json")),
        ('{"tensorflow": "2.3.1"}', rf"built for TensorFlow 2\.3\.1, but {tf.__version__} is running"),
        (json.dumps({"tensorflow": tf.__version__}), r"of another version of tfxc.*custom_ops/build\.py"),
        (json.dumps(RECORD | {"ops": "of last year"}), r"of another version of tfxc.*custom_ops/build\.py"),
        (json.dumps(RECORD), "cannot be loaded"),
    ],
)
def test_library_that_does_not_fit_is_refused_before_it_is_loaded(moved_library, record, message):
    moved_library.write_bytes(b"would crash")
    if record is not None:
        moved_library.with_suffix(".json").write_text(record)
    with pytest.warns(RuntimeWarning, match=message):
        assert library.load() is None


def test_the_package_knows_the_ops_that_its_sources_register(build_module):
    assert build_module.registrations() == library._REGISTRATIONS


def test_another_patch_release_is_accepted(moved_library):
    moved_library.write_bytes(b"")
    minor = ".".join(tf.__version__.split(".")[:2])
    moved_library.with_suffix(".json").write_text(json.dumps({**RECORD, "tensorflow": f"{minor}.99"}))
    assert library._find_problem(moved_library) is None


def test_a_chosen_library_that_cannot_be_used_is_an_error(moved_library, monkeypatch, tmp_path):
    chosen = tmp_path / "variant" / "ops.so"
    monkeypatch.setenv("TFXC_OPS_LIBRARY", str(chosen))
    with pytest.raises(RuntimeError, match="TFXC_OPS_LIBRARY is .*ops.so.*were not built"):
        library.load()
    chosen.parent.mkdir()
    chosen.write_bytes(b"would crash")
    for record, message in (
        ({"tensorflow": "2.3.1"}, r"built for TensorFlow 2\.3\.1"),
        (RECORD, "cannot be lo"),
    ):
        chosen.with_suffix(".json").write_text(json.dumps(record))
        with pytest.raises(RuntimeError, match=message):
            library.load()


def test_environment_disables_silently_at_any_time(moved_library, monkeypatch):
    monkeypatch.setenv("TFXC_DISABLE_OPS", "1")
    with warnings.catch_warnings(action="error"):
        assert library.load() is None
        assert not library.use_compiled()
    monkeypatch.delenv("TFXC_DISABLE_OPS")
    with pytest.warns(RuntimeWarning):
        library.load()


def test_compiled_ops_are_for_float32_on_cpu_outside_xla(monkeypatch):
    monkeypatch.setattr(library, "available", lambda: True)
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: [])
    assert library.use_compiled()
    assert library.use_compiled(tf.zeros([1]), tf.Variable([1.0]))
    assert not library.use_compiled(tf.zeros([1]), tf.zeros([1], tf.float64))
    answers = []

    def trace():
        answers.append(library.use_compiled())
        return tf.constant(0)

    tf.function(trace)()
    tf.function(trace, jit_compile=True)()
    assert answers == [True, False]
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: ["a GPU"])
    assert not library.use_compiled()


def test_build_compiles_each_source_once_and_again_only_what_changed(build_module, tmp_path, monkeypatch):
    sources = tmp_path / "custom_ops"
    for name in ("first", "second"):
        (sources / name).mkdir(parents=True)
        (sources / name / "op.cc").write_text("")
    monkeypatch.setattr(build_module, "SOURCES", sources)
    calls = _fake_compiler(tmp_path, monkeypatch, 'echo made > "$target"')
    target = tmp_path / "out" / "ops.so"

    def build():
        calls.write_text("")
        assert build_module.build(target, tmp_path / "objects") == target
        return sorted(Path(line).name.split(".so")[0].split(".o.")[0] for line in calls.read_text().split())

    assert build() == ["first.op", "ops", "second.op"]
    assert target.read_text() == "made\n"
    record = json.loads(target.with_suffix(".json").read_text())
    assert record == {"tensorflow": tf.__version__, "ops": build_module.registrations()}
    assert sorted(path.name for path in target.parent.iterdir()) == ["ops.json", "ops.so"]
    assert build() == []
    (sources / "first" / "op.cc").write_text("// changed")
    assert build() == ["first.op", "ops"]
    (sources / "second" / "shared.h").write_text("// a header may be included anywhere")
    assert build() == ["first.op", "ops", "second.op"]
    # A compiler that notes what it read: only that counts.
    noted = tmp_path / "objects" / "first.op.d"
    noted.write_text(f"op.o: {sources}/first/op.cc \\\n {sources}/first/own.h {sources}/common/shared.h\n")
    for name in ("first/own.h", "common/shared.h"):
        (sources / name).parent.mkdir(exist_ok=True)
        (sources / name).write_text("")
    assert build() == ["first.op", "ops", "second.op"]
    (sources / "second" / "shared.h").write_text("// changed")
    assert build() == ["ops", "second.op"]
    (sources / "first" / "own.h").unlink()
    assert "first.op" in build()


def test_warnings_are_errors_where_the_environment_says_so(build_module, tmp_path, monkeypatch, capsys):
    (tmp_path / "custom_ops" / "first").mkdir(parents=True)
    (tmp_path / "custom_ops" / "first" / "op.cc").write_text("")
    monkeypatch.setattr(build_module, "SOURCES", tmp_path / "custom_ops")
    body = 'echo made > "$target"; case "$*" in *-shared*) ;; *) echo "op.cc:1: a warning" >&2;; esac'
    body += '\ncase "$*" in *-Werror*) exit 1;; esac'
    calls = _fake_compiler(tmp_path, monkeypatch, body)
    monkeypatch.delenv("TFXC_WERROR", raising=False)
    for _ in range(2):  # what was compiled with a warning is never up to date
        calls.write_text("")
        build_module.build(tmp_path / "ops.so", tmp_path / "objects")
        assert "first.op" in calls.read_text()
        assert "op.cc:1: a warning" in capsys.readouterr().err
    monkeypatch.setenv("TFXC_WERROR", "1")
    with pytest.raises(build_module.CompileError, match="a warning"):
        build_module.build(tmp_path / "ops.so", tmp_path / "objects")


def test_variants_have_folders_and_flags_of_their_own(build_module, tmp_path, monkeypatch):
    monkeypatch.setattr(build_module, "OBJECTS", tmp_path)
    monkeypatch.setattr(build_module, "LEVELS", {"x86-64-v3": 3, "x86-64-v4": 4})
    _fake_compiler(tmp_path, monkeypatch, 'echo "$@" >> log; touch "$target"')
    monkeypatch.chdir(tmp_path)
    library = build_module.build_variant("x86-64-v3")
    assert library == tmp_path / "x86-64-v3" / "_tfxc_ops.so" and library.with_suffix(".json").exists()
    kernels, usual = ({path.name for path in folder.glob("*.o")} for folder in (library.parent, tmp_path))
    assert "common.products.o" in kernels and "midx_draw.op.o" in usual and not kernels & usual
    assert len(kernels) + len(usual) == len(list(build_module.SOURCES.glob("*/*.cc")))
    calls = (tmp_path / "log").read_text().splitlines()
    assert sum("-DTFXC_LEVEL=3" in call for call in calls) == len(kernels)
    (tmp_path / "log").unlink()
    library = build_module.build_variant("x86-64-v4", sanitize=True)
    assert library == tmp_path / "x86-64-v4-sanitized" / "_tfxc_ops.so"
    calls = (tmp_path / "log").read_text().splitlines()
    assert all("-fsanitize=address,undefined" in call for call in calls)
    assert sum("-DTFXC_LEVEL=4" in call for call in calls) >= len(kernels) + len(usual)


def test_build_reports_the_compilers_own_words(build_module, tmp_path, monkeypatch):
    _fake_compiler(tmp_path, monkeypatch, "echo 'op.cc:1: a telling error' >&2; exit 3")
    with pytest.raises(build_module.CompileError, match="status 3(.|\n)*a telling error"):
        build_module.build(tmp_path / "ops.so", tmp_path / "objects")
    assert not (tmp_path / "ops.so").exists()


def test_build_without_a_compiler_names_what_to_install(build_module, tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler -O1")
    with pytest.raises(build_module.CompilerNotFoundError, match="looked for no-such-compiler -O1.*apt-get"):
        build_module.build(tmp_path / "ops.so", tmp_path / "objects")
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(build_module.CompilerNotFoundError, match=r"g\+\+, c\+\+, clang\+\+\)"):
        build_module.find_compiler()


@pytest.mark.parametrize(
    ("macros", "problem"),
    [
        ({"__GNUC__": 11}, None),
        ({"__GNUC__": 10}, "GCC 10"),
        ({"__GNUC__": 4, "__clang_major__": 16}, None),
        ({"__GNUC__": 4, "__clang_major__": 15}, "Clang 15"),
        ({}, "another compiler"),
    ],
)
def test_compilers_are_told_apart(build_module, tmp_path, monkeypatch, macros, problem):
    text = "\n".join(f"#define {name} {version}" for name, version in macros.items())
    script = tmp_path / "compiler"
    script.write_text(f"#!/bin/sh\necho '{text}'")
    script.chmod(0o755)
    monkeypatch.setenv("CXX", str(script))
    if problem is None:
        flags = build_module.CLANG_FLAGS if "__clang_major__" in macros else ()
        assert build_module.find_compiler() == [str(script), *flags]
    else:
        with pytest.raises(build_module.CompilerNotFoundError, match=rf"compiler is {problem}\. Install"):
            build_module.find_compiler()


@pytest.mark.long
@pytest.mark.parametrize("compiler", ["clang++-16", "aarch64-linux-gnu-g++"])
def test_another_compiler_takes_the_kernels_without_a_warning(build_module, tmp_path, monkeypatch, compiler):
    if not shutil.which(compiler):
        pytest.skip(f"there is no {compiler}")
    monkeypatch.setenv("TFXC_WERROR", "1")
    command = [compiler, *build_module.COMPILE_FLAGS, f"-I{build_module.SOURCES}"]
    for source in build_module.SOURCES.glob("*/*.cc"):
        if source.stem != "op" and not source.stem.endswith("_cpu"):  # these include TensorFlow
            build_module._compile(source, tmp_path, command)
