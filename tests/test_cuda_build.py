"""The CUDA kernels compile, and agree with plain loops where there is a GPU. Runs with TFXC_CUDA=1 only."""

import os
import subprocess

import pytest

from custom_ops import build

NO_DEVICE = 77


def has_nvcc():
    try:
        return bool(build.find_nvcc())
    except build.CompilerNotFoundError:
        return False


pytestmark = pytest.mark.skipif(
    os.environ.get("TFXC_CUDA") != "1" or not has_nvcc(), reason="needs TFXC_CUDA=1 and nvcc"
)


@pytest.fixture(scope="module")
def program():
    (path,) = (path for path in build.build_cuda() if path.name == "sparse_head_launch_check")
    return path


def test_kernels_agree_with_plain_loops(program):
    done = subprocess.run([program, "--no-timing"], capture_output=True, text=True, timeout=600, check=False)
    if done.returncode == NO_DEVICE:
        assert done.stdout == "no CUDA device\n"
        pytest.skip("compiled, but there is no CUDA device to run on")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "FAILED" not in done.stdout and done.stdout.endswith("all agree\n")


def test_what_is_up_to_date_is_kept(program):
    before = program.stat().st_mtime_ns
    assert program in build.build_cuda()
    assert program.stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("variable", "value", "looked_for"),
    [
        ("NVCC", "/nowhere/nvcc -v", "/nowhere/nvcc -v"),
        ("CUDA_HOME", "/nowhere", "/nowhere/bin/nvcc"),
        ("PATH", "/nowhere", "nvcc"),
    ],
)
def test_without_nvcc_the_error_says_what_to_set(monkeypatch, variable, value, looked_for):
    monkeypatch.delenv("NVCC", raising=False)
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.setenv(variable, value)
    with pytest.raises(build.CompilerNotFoundError, match=f"looked for {looked_for}\\).*CUDA_HOME"):
        build.find_nvcc()


def test_a_compiler_that_fails_is_quoted(monkeypatch, tmp_path):
    broken = tmp_path / "nvcc"
    broken.write_text("#!/bin/sh\necho 'launch.cu(1): error: expected a declaration' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("NVCC", str(broken))
    with pytest.raises(build.CompileError, match="expected a declaration"):
        build.build_cuda(tmp_path)
