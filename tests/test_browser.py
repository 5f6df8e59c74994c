"""What the browser finds on pages; the guide is opened in tests/test_docs.py."""

import re

import browser
import pytest
from classifier_checks import NUM_CLASSES, features, make_model

import tfxc

pytestmark = [
    pytest.mark.long,
    pytest.mark.one_keras,
    pytest.mark.skipif(browser.CHROMIUM is None, reason="Chromium is not installed"),
]


def test_what_is_wrong_is_found(tmp_path):
    (tmp_path / "whole.html").write_text(
        '<meta name="viewport" content="width=device-width"><link rel="icon" href="data:,">'
        '<a href="wrong.html#here">a</a><a href="https://example.com">b</a>'
    )
    (tmp_path / "wrong.html").write_text(
        '<div style="width: 600px" id="here">wide</div><img src="none.png"><a href="none.html">a</a>'
        '<a href="whole.html#none">b</a><script>console.error("told"); nothing()</script>'
    )
    found = "\n".join(browser.check(tmp_path))
    for part in (
        "wrong.html on a phone: is 2",
        "no viewport",
        "does not load .*none.png",
        "wrong.html links to .*none.html, which is not there",
        "wrong.html links to .*whole.html#none, which that page does not have",
        "tells .'told'.",
        "throws ReferenceError: nothing is not defined",
    ):
        assert re.search(part, found), part
    assert "whole.html on" not in found and "a desk: is" not in found


@pytest.mark.parametrize(
    "names", [None, ["<b>" + "w" * 200] * 2 + [f"item {i}" for i in range(NUM_CLASSES - 2)]]
)
def test_a_report_is_whole(names, tmp_path):
    sampler, head = tfxc.samplers.MIDX(8, num_codewords=4), tfxc.layers.DenseHead(NUM_CLASSES)
    model = tfxc.ExtremeClassifier(make_model().encoder, head, sampler, class_names=names)
    model.compile("sgd", tfxc.losses.SoftmaxCrossentropy())
    tfxc.report(model, (features(50), [i % NUM_CLASSES for i in range(50)]), tmp_path / "report.html")
    assert browser.check(tmp_path / "report.html") == []
