"""MkDocs hook: runs the notebooks, and makes a page of each with what it prints and draws."""

import re
from pathlib import Path

import nbformat
from mkdocs.structure.files import File
from nbclient import NotebookClient
from nbconvert import MarkdownExporter

ROOT = Path(__file__).resolve().parents[2]


def on_files(files, config):
    """Adds the pages and their pictures. A cell that raises an error ends the build."""
    for path in sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")):
        notebook = nbformat.read(path, as_version=4)
        NotebookClient(notebook, timeout=1800, resources={"metadata": {"path": str(ROOT)}}).execute()
        for cell in notebook.cells:
            if cell.cell_type == "code":  # TensorFlow's messages are no result
                cell.outputs = [own for own in cell.outputs if own.get("name") != "stderr"]
        text, resources = MarkdownExporter().from_notebook_node(notebook)
        # Pictures of all notebooks lie in one folder.
        text = re.sub(r"\]\((output_\w+\.png)\)", rf"]({path.stem}_\1)", text)
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=text))
        for name, content in resources["outputs"].items():
            files.append(File.generated(config, f"notebooks/{path.stem}_{name}", content=content))
    return files
