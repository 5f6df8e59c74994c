import contract_sizes
import pytest


@pytest.mark.parametrize(("name", "most"), {"Head": 26, "Sampler": 18, "ClassificationLoss": 14}.items())
def test_a_contract_has_few_names(name, most):
    names = contract_sizes.public_names(name)
    assert len(names) <= most, names


def test_fit_and_the_classifier_are_short():
    assert len(contract_sizes.lines_of_fit()) <= 20
    assert len(contract_sizes.CLASSIFIER.read_text(encoding="utf-8").splitlines()) <= 400
    imports = contract_sizes.imports_of_classifier()
    assert len(imports) <= 15, imports


def test_only_the_cluster_names_servers_and_shards():
    assert contract_sizes.names_of_servers() == []
