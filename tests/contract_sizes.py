"""How large the contracts of the package are: ``python tests/contract_sizes.py`` prints the counts.

A name counts if it stands in the body of a class and is public, and if Keras does not define it for every
layer or loss. ``tests/test_contract_sizes.py`` bounds the counts.
"""

import ast
import inspect

from tfxc.layers import Head
from tfxc.losses import ClassificationLoss
from tfxc.model import classifier
from tfxc.samplers import Sampler

CONTRACTS = Head, Sampler, ClassificationLoss
OF_KERAS = {"build", "call", "compute_output_shape", "from_config", "get_config"}
OF_KERAS |= {"load_own_variables", "save_own_variables"}
SOURCE = inspect.getsource(classifier)


def public_names(contract):
    names = {*vars(contract), *inspect.get_annotations(contract)}
    return sorted(name for name in names if not name.startswith("_") and name not in OF_KERAS)


def lines_of_fit():
    """The lines of code of ``ExtremeClassifier.fit``, without its docstring, comments and blank lines."""
    code = inspect.getsource(classifier.ExtremeClassifier.fit).rpartition('"""')[2].splitlines()
    return [line for line in code if line.strip() and not line.strip().startswith("#")]


def imports_of_classifier():
    """The modules of the package that ``classifier.py`` imports from."""
    nodes = ast.walk(ast.parse(SOURCE))
    return sorted({n.module for n in nodes if isinstance(n, ast.ImportFrom) and n.module.startswith("tfxc")})


def main():
    for contract in CONTRACTS:
        names = public_names(contract)
        print(f"{contract.__name__}: {len(names)} public names: {', '.join(names)}")
    print(f"ExtremeClassifier.fit: {len(lines_of_fit())} lines of code")
    print(f"classifier.py: {len(SOURCE.splitlines())} lines")
    print(f"classifier.py: {len(imports_of_classifier())} imports: {', '.join(imports_of_classifier())}")


if __name__ == "__main__":
    main()
