import pytest


@pytest.fixture
def written(tmp_path):
    """A function of text or bytes, and perhaps of a name and an encoding, which writes a file."""

    def write(content, name="log.csv", encoding="utf-8"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode(encoding))
        return path

    return write
