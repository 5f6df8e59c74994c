import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from custom_ops import build

ROOT = Path(__file__).resolve().parents[1]


def run_setup(arguments, **environment):
    command = [sys.executable, "setup.py", "--quiet", *map(str, arguments)]
    environment = {**os.environ, "TFXC_SKIP_OPS": "0", **environment}
    options = {"start_new_session": True, "capture_output": True, "text": True, "timeout": 120}
    return subprocess.run(command, cwd=ROOT, env=environment, check=False, **options)


def compiler_of(folder, script):
    """A compiler that does what a script of the shell does."""
    path = folder / "own-g++"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def broken_compiler(tmp_path):
    return compiler_of(tmp_path, "echo 'op.cc:1: error: expected unqualified-id' >&2\nexit 1")


def test_without_a_compiler_or_the_ops_the_package_installs(tmp_path, broken_compiler):
    stale_library = tmp_path / "tfxc" / "ops" / "_tfxc_ops.so"
    stale_library.parent.mkdir(parents=True)
    for compiler, skip, num_warnings in (("/nowhere/g++", "0", 1), (broken_compiler, "1", 0)):
        stale_library.write_bytes(b"of an earlier build")
        done = run_setup(["build_ext", "--build-lib", tmp_path], CXX=compiler, TFXC_SKIP_OPS=skip)
        assert done.returncode == 0 and done.stderr.count("WARNING") == num_warnings, done.stderr
        assert ("/nowhere/g++" in done.stderr and "Install g++" in done.stderr) == num_warnings
        assert not stale_library.exists()


@pytest.mark.parametrize(
    ("macros", "found"),
    [
        ("#define __GNUC__ 10", "is GCC 10"),
        ("#define __clang_major__ 15\n#define __GNUC__ 4", "is Clang 15"),
        ("", "is another compiler"),
    ],
)
def test_a_compiler_that_cannot_compile_the_ops_is_as_none(tmp_path, macros, found):
    old = compiler_of(tmp_path, f"cat <<END\n{macros}\n#define __GNUC_MINOR__ 2\nEND")
    done = run_setup(["build_ext", "--build-lib", tmp_path], CXX=old)
    assert done.returncode == 0, done.stderr
    assert f"{old} {found}" in done.stderr and "GCC 11 or Clang 16, or newer" in done.stderr
    assert not list(tmp_path.rglob("*.so"))


def test_a_wheel_of_fewer_instructions_than_its_machines_have_is_not_built(tmp_path):
    old = compiler_of(tmp_path, "echo '#define __GNUC__ 11'")
    command = [sys.executable, "custom_ops/build_wheel.py", "--output", tmp_path]
    environment = {**os.environ, "CXX": old}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and f"GCC 12 or Clang 16, or newer, but {old} is GCC 11" in done.stderr


@pytest.mark.long
def test_a_compiler_that_fails_stops_the_installation(tmp_path, broken_compiler):
    done = run_setup(["build_ext", "--build-lib", tmp_path], CXX=broken_compiler)
    assert done.returncode != 0
    assert "expected unqualified-id" in done.stderr and "TFXC_SKIP_OPS=1" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.rglob("*.so"))


def test_a_wheel_without_the_ops_is_for_any_system(tmp_path):
    build = ["build", "--build-base", tmp_path / "build", "bdist_wheel", "--bdist-dir", tmp_path / "bdist"]
    arguments = ["egg_info", "--egg-base", tmp_path, *build, "--dist-dir", tmp_path / "dist"]
    assert run_setup(arguments, TFXC_SKIP_OPS="1").returncode == 0
    (wheel,) = (tmp_path / "dist").iterdir()
    assert wheel.name.endswith("-py3-none-any.whl")
    assert not [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".so")]


def test_the_source_distribution_holds_the_ops_and_no_binary(tmp_path):
    done = run_setup(["egg_info", "--egg-base", tmp_path, "sdist", "--dist-dir", tmp_path])
    assert done.returncode == 0, done.stderr
    (archive,) = tmp_path.glob("tfxc-*.tar.gz")
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    sources = {
        str(path.relative_to(ROOT)) for path in ROOT.glob("custom_ops/**/*") if path.suffix in (".cc", ".h")
    }
    assert sources | {"custom_ops/build.py", "setup.py", "LICENSE"} <= names
    assert {"conftest.py", "CITATION.cff"} <= names  # what doctests begin with, and what the README links to
    assert not [name for name in names if name.endswith((".so", ".o", "_tfxc_ops.json"))]


@pytest.mark.long
def test_another_tensorflow_in_the_same_place_builds_anew(tmp_path, monkeypatch):
    script = f"""case "$*" in *-dM*) echo '#define __GNUC__ 12'; exit;; esac
echo "$@" >> {tmp_path}/log
while [ "$1" != -o ]; do shift; done
touch "$2"
"""
    monkeypatch.setenv("CXX", compiler_of(tmp_path, script))

    def commands(version):
        (tmp_path / "log").write_text("")
        paths = SimpleNamespace(get_compile_flags=lambda: ["-I/include"], get_link_flags=lambda: ["-L/lib"])
        stub = SimpleNamespace(__version__=version, sysconfig=paths)
        monkeypatch.setitem(sys.modules, "tensorflow", stub)
        build.build(tmp_path / "_tfxc_ops.so", tmp_path / "objects")
        return (tmp_path / "log").read_text().splitlines()

    num_sources = len(list(build.SOURCES.glob("*/*.cc")))
    assert len(commands("2.18.0")) == num_sources + 1 and commands("2.18.0") == []
    again = commands("2.19.1")
    assert len(again) == num_sources + 1 and all("2.19.1" in command for command in again)
    assert '"2.19.1"' in (tmp_path / "_tfxc_ops.json").read_text()
