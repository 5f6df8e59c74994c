"""How large the contracts of the package are: ``python tests/contract_sizes.py`` prints the counts.

A name counts if it stands in the body of a class and is public, and if Keras does not define it for every
layer or loss. ``tests/test_contract_sizes.py`` bounds the counts.
"""

import ast
import re
import tokenize
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "tfxc"
OF_KERAS = {"build", "call", "compute_output_shape", "from_config", "get_config"}
OF_KERAS |= {"load_own_variables", "save_own_variables"}
CONTRACTS = {
    "Head": "layers/head.py",
    "Sampler": "samplers/sampler.py",
    "ClassificationLoss": "losses/classification_loss.py",
}
CLASSIFIER = PACKAGE / "model" / "classifier.py"


def parsed(path):
    return ast.parse((PACKAGE / path).read_text(encoding="utf-8"))


def class_of(path, name):
    return next(node for node in parsed(path).body if isinstance(node, ast.ClassDef) and node.name == name)


def public_names(name):
    names = set()
    for node in class_of(CONTRACTS[name], name).body:
        if isinstance(node, ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.AnnAssign):
            names.add(node.target.id)
    return sorted(name for name in names if not name.startswith("_") and name not in OF_KERAS)


def lines_of_fit():
    """The lines of code of ``ExtremeClassifier.fit``, without its docstring, comments and blank lines."""
    methods = class_of(CLASSIFIER, "ExtremeClassifier").body
    (fit,) = (node for node in methods if isinstance(node, ast.FunctionDef) and node.name == "fit")
    lines = CLASSIFIER.read_text(encoding="utf-8").splitlines()
    code = lines[fit.body[0].end_lineno : fit.end_lineno]
    return [line for line in code if line.strip() and not line.strip().startswith("#")]


def imports_of_classifier():
    """The modules of the package that ``classifier.py`` imports from."""
    nodes = ast.walk(parsed(CLASSIFIER))
    return sorted({n.module for n in nodes if isinstance(n, ast.ImportFrom) and n.module.startswith("tfxc")})


def names_of_servers():
    """Identifiers outside of ``cluster`` that name a parameter server or a shard: file, line and name."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        if path.parts[len(PACKAGE.parts)] == "cluster":
            continue
        with path.open("rb") as file:
            for token in tokenize.tokenize(file.readline):
                if token.type == tokenize.NAME and re.search("shard|server", token.string, re.IGNORECASE):
                    found.append(f"{path.relative_to(PACKAGE)}:{token.start[0]} {token.string}")
    return found


def main():
    for name in CONTRACTS:
        names = public_names(name)
        print(f"{name}: {len(names)} public names: {', '.join(names)}")
    print(f"ExtremeClassifier.fit: {len(lines_of_fit())} lines of code")
    print(f"classifier.py: {len(CLASSIFIER.read_text(encoding='utf-8').splitlines())} lines")
    print(f"classifier.py: {len(imports_of_classifier())} imports: {', '.join(imports_of_classifier())}")
    print("servers and shards outside of cluster:", *names_of_servers(), sep="\n  ")


if __name__ == "__main__":
    main()
