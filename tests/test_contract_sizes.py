import contract_sizes


def test_a_contract_has_few_names():
    for contract, most in zip(contract_sizes.CONTRACTS, (26, 18, 14), strict=True):
        names = contract_sizes.public_names(contract)
        assert len(names) <= most, names


def test_fit_and_the_classifier_are_short():
    assert len(contract_sizes.lines_of_fit()) <= 20
    assert len(contract_sizes.SOURCE.splitlines()) <= 400
    imports = contract_sizes.imports_of_classifier()
    assert len(imports) <= 15, imports
