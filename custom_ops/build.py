"""Compiles every ``custom_ops/*/*.cc`` into one library, ``tfxc/ops/_tfxc_ops.so``.

``pip install`` calls :func:`build`; developers run ``python custom_ops/build.py``.
The library is bound to the TensorFlow minor version it was compiled against, and to the
ops that it registers: ``_tfxc_ops.json`` beside it records both.

``--level x86-64-v3`` builds a library whose kernels stop at AVX2, and ``--sanitize`` a library that checks
its memory accesses, both for tests: ``TFXC_OPS_LIBRARY=build/custom_ops/x86-64-v3/_tfxc_ops.so`` chooses it.
``--threads`` builds a program that finds races between the threads of a kernel.
"""

import argparse
import hashlib
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SOURCES = Path(__file__).resolve().parent
LIBRARY = SOURCES.parent / "tfxc" / "ops" / "_tfxc_ops.so"
OBJECTS = SOURCES.parent / "build" / "custom_ops"

# One binary must run on every machine of an architecture: the baseline stays generic, and on x86-64 hot
# loops choose wider vectors themselves (TFXC_VECTORIZE in common/vectorize.h). No -ffast-math:
# it would switch the whole process to flush-to-zero and break the checks for NaN. No strict
# aliasing: it lets the compiler move reads of a vector's bits, and gradients go wrong without an error.
COMPILE_FLAGS = (
    *("-O3", "-fPIC", "-std=c++17", "-fno-math-errno", "-fno-trapping-math", "-fno-strict-aliasing"),
    "-DNDEBUG",
    # Only functions that are always inlined pass vectors by value, so no calling convention matters.
    *("-Wall", "-Wextra", "-Wstrict-aliasing=1", "-Wno-psabi"),
)

# Older versions are not tested. AVX-512 needs GCC 12.
LEAST_GCC, LEAST_CLANG = 11, 16
# Clang 16 forgets constructors that only the clones of a function call, unless it emits them without aliases.
CLANG_FLAGS = "-Xclang", "-mno-constructor-aliases"

# The highest level of the architecture that a library has code for (TFXC_LEVEL in common/vectorize.h).
LEVELS = {"x86-64": 1, "x86-64-v3": 3, "x86-64-v4": 4} if platform.machine() == "x86_64" else {"armv8-a": 1}
HIGHEST = max(LEVELS)
LEVELS_HEADER = SOURCES / "common" / "vectorize.h"

# The process must preload libasan: LD_PRELOAD=$(g++ -print-file-name=libasan.so). With the checks for null,
# constants in TensorFlow's headers do not compile; a read through null is a finding without them.
SANITIZE_FLAGS = (
    *("-O1", "-g", "-fsanitize=address,undefined", "-fno-omit-frame-pointer", "-D_GLIBCXX_ASSERTIONS"),
    "-fno-sanitize=null,nonnull-attribute,returns-nonnull-attribute",
)

# Without clones of functions: the processor's clone is chosen before the sanitizer starts.
THREAD_FLAGS = (
    *("-O1", "-g", "-fsanitize=thread", "-march=native", "-DTFXC_LEVEL=1"),
    *("-std=c++17", "-fno-strict-aliasing", "-Wall", "-Wextra", "-Wno-psabi"),
)


class CompilerNotFoundError(RuntimeError):
    """This machine has no suitable compiler for C++."""


class CompileError(RuntimeError):
    """A compiler ran and failed; the message holds its output."""


def build(library=LIBRARY, objects=OBJECTS, flags=(), level=None, compiler=None, tf=None):
    """Builds the op library; keeps up-to-date parts.

    Args:
        library: Path of the shared library to write; its ``.json`` goes beside it.
        objects: Folder for the object files.
        flags: More flags for the compiler and the linker.
        level: None, or one of ``LEVELS``, the highest level of x86-64 that kernels use. Sources without
            kernels share their object files with the usual library.
        compiler, tf: A cross compiler's command, and what stands for the other machine's ``tensorflow``.

    Returns:
        The path of the library.

    Raises:
        CompilerNotFoundError: There is no GCC ``LEAST_GCC`` or Clang ``LEAST_CLANG``, or newer.
        CompileError: The compiler failed.
    """
    library, objects = Path(library), Path(objects)
    compiler = compiler or find_compiler()
    if tf is None:
        import tensorflow as tf  # here, because the import is slow, and useless without a compiler

    objects.mkdir(parents=True, exist_ok=True)
    library.parent.mkdir(parents=True, exist_ok=True)
    compile_command = [*compiler, *_tensorflow_flags(tf), *COMPILE_FLAGS, *flags, f"-I{SOURCES}"]
    sources = sorted(SOURCES.glob("*/*.cc"))

    def compile_one(source):
        if level is None:
            return _compile(source, objects, compile_command)
        if not _takes_in(source, LEVELS_HEADER):
            return _compile(source, OBJECTS, compile_command)
        return _compile(source, objects, [*compile_command, f"-DTFXC_LEVEL={LEVELS[level]}"])

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        compiled = list(pool.map(compile_one, sources))

    link_command = [*compiler, *flags, _version_flag(tf), "-shared", *map(str, compiled)]
    link_command += tf.sysconfig.get_link_flags()
    if _outdated(library, compiled, link_command, stamp=objects / "link.command"):
        _run_aside(link_command, library)
    (objects / "link.command").write_text(shlex.join(link_command))
    # Written after the library: a build that stops in between leaves no record, or that of the
    # replaced library, and the loader refuses the new library instead of mistaking it.
    record = {"tensorflow": tf.__version__, "ops": registrations()}
    aside = library.with_suffix(f".{os.getpid()}.json")
    aside.write_text(json.dumps(record) + "\n")
    aside.replace(library.with_suffix(".json"))
    return library


def registrations():
    """An identifier of the ops with their inputs, outputs and attributes: a hash of every ``op.cc``."""
    sources = sorted(SOURCES.glob("*/op.cc"))
    return hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:16]


def build_variant(level=HIGHEST, sanitize=False):
    """Builds a library for tests, ``build/custom_ops/<variant>/_tfxc_ops.so``, and returns its path.

    Args:
        level: The highest level of x86-64 that its kernels use, one of ``LEVELS``.
        sanitize: Whether it checks memory accesses and arithmetic that C++ leaves undefined.
    """
    folder = OBJECTS / (level + "-sanitized" * sanitize)
    if sanitize:
        return build(folder / LIBRARY.name, folder, [f"-DTFXC_LEVEL={LEVELS[level]}", *SANITIZE_FLAGS])
    return build(folder / LIBRARY.name, folder, level=level)


def build_thread_check():
    """Builds a program that calls the kernels from several threads, with a sanitizer that finds races.

    The program does not contain TensorFlow: it links every source except the registrations, ``op.cc``, and
    the kernels that TensorFlow calls, ``*_cpu.cc``.

    Returns:
        The path of the program.
    """
    folder = OBJECTS / "threads"
    folder.mkdir(parents=True, exist_ok=True)
    compiler = find_compiler()
    kernels = [
        path for path in SOURCES.glob("*/*.cc") if not path.match("op.cc") and not path.match("*_cpu.cc")
    ]
    sources = [*sorted(kernels), SOURCES.parent / "tests" / "ops" / "kernel_threads.cc"]
    compile_command = [*compiler, *THREAD_FLAGS, f"-I{SOURCES}"]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        compiled = list(pool.map(lambda source: _compile(source, folder, compile_command), sources))
    program = folder / "kernel_threads"
    _run_aside([*compiler, "-fsanitize=thread", *map(str, compiled)], program)
    return program


def find_compiler(least=LEAST_GCC):
    """The compiler command as a list: ``$CXX``, or g++, c++ or clang++; a GCC must be ``least`` or newer."""
    chosen = os.environ.get("CXX")
    candidates = [shlex.split(chosen)] if chosen else [["g++"], ["c++"], ["clang++"]]
    unfit = []
    for command in candidates:
        if command and shutil.which(command[0]):
            name, version = _name_and_version(command)
            if version >= (LEAST_CLANG if name == "Clang" else least):
                return [*command, *CLANG_FLAGS] if name == "Clang" else command
            unfit.append(f"{shlex.join(command)} is {name} {version or ''}".rstrip())
    looked_for = ", ".join(shlex.join(command) for command in candidates)
    found = ", ".join(unfit) or f"there is none (looked for {looked_for})"
    raise CompilerNotFoundError(
        f"The ops are compiled by GCC {least} or Clang {LEAST_CLANG}, or newer, but {found}. Install g++ "
        "(Debian and Ubuntu: apt-get install g++) or set CXX to one."
    )


def _name_and_version(command):
    """GCC or Clang and its version; endless for a compiler that fails, since it reports that itself."""
    probe = [*command, "-dM", "-E", "-x", "c++", os.devnull]
    done = subprocess.run(probe, capture_output=True, text=True, check=False)
    defined = dict(re.findall(r"^#define (__clang_major__|__GNUC__) (\d+)$", done.stdout, re.MULTILINE))
    if done.returncode != 0 or not defined:
        return "another compiler", 0 if done.returncode == 0 else float("inf")
    is_clang = "__clang_major__" in defined  # it calls itself GCC 4, too
    return ("Clang", int(defined["__clang_major__"])) if is_clang else ("GCC", int(defined["__GNUC__"]))


def _version_flag(tf):
    """A flag that makes the commands differ for another TensorFlow in the same place, so that all is rebuilt.

    No source reads it. The compiler does not list the system headers that it read.
    """
    return f"-DTFXC_TENSORFLOW={tf.__version__}"


def _tensorflow_flags(tf):
    """TensorFlow's flags, with its headers as system headers, whose warnings are silent."""
    yield _version_flag(tf)
    for flag in tf.sysconfig.get_compile_flags():
        yield from ("-isystem", flag[2:]) if flag.startswith("-I") else (flag,)


def _compile(source, objects, compile_command):
    target = objects / f"{source.parent.name}.{source.stem}.o"
    stamp, included = target.with_suffix(".command"), target.with_suffix(".d")
    command = [*compile_command, "-c", str(source), "-MMD", "-MF", str(included)]
    if _outdated(target, [source, *_headers(source, included)], command, stamp):
        # A warning is an error under `make` only. A user's compiler may have other warnings, which must not
        # stop an installation.
        strict = ["-Werror"] if os.environ.get("TFXC_WERROR") == "1" else []
        warnings = _run_aside([*command, *strict], target)
        sys.stderr.write(warnings)
        stamp.unlink(missing_ok=True)
        if not warnings:  # a source with warnings is compiled again, so that -Werror sees them
            stamp.write_text(shlex.join(command))
    return target


def _takes_in(source, header):
    """Whether a source includes a header of this folder, directly or through another header."""
    included = [SOURCES / name for name in re.findall(r'#include "([^"]+)"', source.read_text())]
    return any(path == header or _takes_in(path, header) for path in included if path.exists())


def _headers(source, included):
    """The headers that the compiler listed as read; all headers if there is no list."""
    if included.exists():
        noted = included.read_text().replace("\\\n", " ").split()
        return [path for path in map(Path, noted) if path.suffix == ".h"]
    return SOURCES.glob("*/*.h")


def _outdated(target, inputs, command, stamp):
    if not target.exists() or not stamp.exists() or stamp.read_text() != shlex.join(command):
        return True
    built = target.stat().st_mtime_ns
    return any(not path.exists() or path.stat().st_mtime_ns > built for path in inputs)


def _run_aside(command, target):
    """Runs ``command -o target`` through a temporary file: a running process keeps its library.

    Returns the warnings of the compiler.
    """
    aside = target.with_name(f"{target.name}.{os.getpid()}")
    done = subprocess.run([*command, "-o", str(aside)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        aside.unlink(missing_ok=True)
        raise CompileError(
            f"The compiler failed with exit status {done.returncode}:\n{shlex.join(command)}\n{done.stderr}"
        )
    aside.replace(target)
    return done.stderr


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--level", choices=LEVELS, help="the widest instructions of a library for tests")
    parser.add_argument("--sanitize", action="store_true", help="a library for tests that checks its memory")
    parser.add_argument("--threads", action="store_true", help="a program that finds races")
    chosen = parser.parse_args()
    if chosen.threads:
        print(build_thread_check())
        return
    if chosen.level or chosen.sanitize:
        print(build_variant(chosen.level or HIGHEST, chosen.sanitize))
        return
    print(build())


if __name__ == "__main__":
    main()
