"""Python of Linux on ARM in an emulator, with TensorFlow's own wheel and the ops compiled for it.

    python custom_ops/arm64.py -m pytest tests/ops

The arguments go to that Python; a program of it cannot start another. Debian's mmdebstrap fetches it into
build/arm64, and pip what it imports. No code for ARM runs without the emulator, and nothing is installed.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import build

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / "build" / "arm64"
COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64-static"
PROGRAMS = {COMPILER: "g++-aarch64-linux-gnu", EMULATOR: "qemu-user-static", "mmdebstrap": "mmdebstrap"}
NEWEST = "2.21"
DEBIAN = "mmdebstrap --variant=extract --architectures=arm64 --skip=check/qemu --include=python3,libstdc++6"
PIP = (
    *(sys.executable, "-m", "pip", "install", "--quiet", "--only-binary=:all:", "--python-version=3.11"),
    *(f"--platform=manylinux{tag}_aarch64" for tag in ("2014", *(f"_2_{minor}" for minor in range(17, 37)))),
)
NEEDED = "keras>=3.12,<4", "numpy", "scipy", "faiss-cpu", "tqdm", "pyarrow", "pytest", "hypothesis"


def missing():
    """The Debian packages that this machine lacks."""
    return [package for program, package in PROGRAMS.items() if not shutil.which(program)]


def packages_of(version):
    """A folder with a minor version of TensorFlow and what tfxc needs beside it, for ``PYTHONPATH``."""
    folder = WORK / f"tensorflow-{version}"
    return _made(folder, *PIP, "--target", folder, f"tensorflow=={version}.*", *NEEDED)


def compile_ops(version, library=None):
    """Compiles the ops for ARM and a minor version of TensorFlow; returns the path of the library."""
    packages, objects = packages_of(version), WORK / f"objects-{version}"
    (installed,) = (path.stem.partition("-")[2] for path in packages.glob("tensorflow-*.dist-info"))
    includes, libraries = f"-I{packages}/tensorflow/include", f"-L{packages}/tensorflow"
    sysconfig = SimpleNamespace(
        get_compile_flags=lambda: [includes, "-D_GLIBCXX_USE_CXX11_ABI=1", "-DEIGEN_MAX_ALIGN_BYTES=64"],
        get_link_flags=lambda: [libraries, "-l:libtensorflow_framework.so.2"],
    )
    tf = SimpleNamespace(__version__=installed, sysconfig=sysconfig)
    return build.build(library or objects / build.LIBRARY.name, objects, compiler=[COMPILER], tf=tf)


def command(*arguments):
    """The command of that Python."""
    system = _made(WORK / "debian", *DEBIAN.split(), "bookworm", WORK / "debian")
    return [shutil.which(EMULATOR), "-L", system, system / "usr" / "bin" / "python3.11", *arguments]


def _made(folder, *command):
    ready = WORK / f"{folder.name}.ready"
    if not ready.exists():
        shutil.rmtree(folder, ignore_errors=True)
        WORK.mkdir(parents=True, exist_ok=True)
        subprocess.run([*map(str, command)], check=True)
        ready.touch()
    return folder


def main():
    if lacks := " ".join(missing()):
        sys.exit(f"This machine lacks {lacks}: on Debian or Ubuntu, apt-get install {lacks}.")
    variables = {"PYTHONPATH": f"{ROOT}:{packages_of(NEWEST)}", "TFXC_OPS_LIBRARY": str(compile_ops(NEWEST))}
    sys.exit(subprocess.run(command(*sys.argv[1:]), env=os.environ | variables, check=False).returncode)


if __name__ == "__main__":
    main()
