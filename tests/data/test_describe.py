import numpy as np
import pytest

from tfxc.data import Sequences, Vocabulary, describe

LOG = Sequences(
    items=[0, 1, 1, 2, 0, 2, 1, 0, 2, 3],
    offsets=[0, 4, 4, 10],
    vocabulary=Vocabulary(["9", "10", "NULL", "8", "x"]),
    user_ids=["ann", "none", "bob"],
    times=np.array([1, 1, 2, 3, 4, 4, 4, 5, 6, 9]) * 10**9,
)


def test_what_a_practitioner_checks_first(capsys):
    found = describe(LOG)
    told = found.pop("findings")
    want = {"users": 3, "items": 4, "interactions": 10, "density": 10 / 12, "span": (1e9, 9e9)}
    want |= {"lengths": {0: 0, 0.25: 2, 0.5: 4, 0.75: 5, 0.95: 5.8, 1: 6}}
    want |= {"ties": 3 / 8, "repeats": 1 / 8, "rising": 4 / 8, "cold_items": 1, "cold": 1}
    want |= {"largest_user": ("bob", 6, 0.6), "largest_item": ("9", 3, 0.3)}
    assert found == want
    assert [own[:12] for own in told] == ["Names that m", "3 of 8 steps"]
    printed = capsys.readouterr().out
    assert "density       0.8333\n" in printed and "span          1000000000.0 to 9000000000.0\n" in printed
    assert printed.endswith(f"- {told[1]}\n")


@pytest.mark.parametrize(("names", "share"), [(["9", "10"], 1.0), (["b", "a"], 0.0), (["10", "9x"], 1.0)])
def test_names_rise_by_number_if_they_are_integers(names, share):
    assert describe(Sequences([0, 1], [0, 2], Vocabulary(names)))["rising"] == share


def test_rows_that_are_there_twice():
    each = np.arange(150)
    once = Sequences(each, [0, 150], Vocabulary(each), times=each * 10**7)
    twice = Sequences(each.repeat(2), [0, 300], once.vocabulary, times=each.repeat(2) * 10**7)
    message = "150 of 299 steps (50.2%) go to the same item at the same time, as if rows were there twice"
    assert describe(once)["findings"] == [] and describe(twice)["findings"][0].startswith(message)


@pytest.mark.parametrize(
    ("lists", "users", "is_told"),
    [
        ([["items", "more"], "12", "23"], ["uid", "1", "2"], True),
        ([["items"], "12", "23"], None, True),
        ([["items"], "12"], None, False),  # too few to tell
        ([["tea"], ["milk"], ["rum"]], ["ann", "1", "2"], True),
        ([["tea"], ["milk"], ["tea"]], ["ann", "1", "2"], False),
        ([["12 Monkeys"], ["2001"], ["Alien"]], ["ann", "bob", "1"], False),
        ([["1"], ["2"], ["3"]], ["ann", "1", "2"], False),
        ([[], ["2"], ["3"]], ["ann", "1", "2"], False),
    ],
)
def test_a_first_sequence_of_names_among_integers_may_be_a_header(lists, users, is_told):
    told = describe(Sequences.from_lists(lists, user_ids=users))["findings"]
    assert [own.startswith("The first names, ") for own in told] == [True] * is_told


@pytest.mark.parametrize(("num_ties", "is_told"), [(1, False), (2, True)])
def test_a_few_items_of_one_time_among_many_steps_are_no_order_to_learn(num_ties, is_told):
    times = np.arange(151) * 10**7
    times[1 : 1 + num_ties] = times[0]
    log = Sequences(np.arange(151), [0, 151], Vocabulary(np.arange(151)), times=times)
    told = [own for own in describe(log)["findings"] if "go to another item at the same time" in own]
    assert len(told) == is_told


def test_few_interactions_without_times_or_names():
    found = describe(Sequences([0], [0, 1], Vocabulary("a")))
    assert found["span"] is None and found["largest_user"] == (None, 1, 1.0) and found["cold"] == 0
    found = describe(Sequences([0, 1, 1, 0], [0, 2, 4], Vocabulary("ab")))
    assert (found["cold_items"], found["cold"]) == (0, 0)
    with pytest.raises(ValueError, match="no interaction to describe"):
        describe(Sequences([], [0], Vocabulary("a")))


@pytest.mark.long
def test_a_picture(tmp_path):
    describe(LOG, plot=tmp_path / "log.png")
    assert (tmp_path / "log.png").stat().st_size > 1000
