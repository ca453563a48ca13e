"""traffic.py, coverage.py: shares and gains by hand, files as people have them, stored examples."""

from __future__ import annotations

import json
import math
import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiles import dense, profile, quest
from questprof.crossover.coverage import cover
from questprof.crossover.outlook import outlooks
from questprof.crossover.predict import fit
from questprof.crossover.tables import traffic as traffic_table
from questprof.crossover.traffic import Traffic, read_traffic, stored
from questprof.errors import QuestprofError
from questprof.scan import scan_rows


def rows_of(curve: dict[int, tuple[float, float]], *, budget: int = 16, **header):
    records = []
    for length, (dense_us, quest_us) in curve.items():
        thirds = (quest_us / 4, quest_us / 4, quest_us / 2)
        records += [dense(length, dense_us), quest(length, thirds, budget=budget)]
    return scan_rows(profile(*records, **({"ceilings": ()} | header)))


def lengths_of(*pairs: tuple[float, float]) -> Traffic:
    return Traffic("t", "", "", tuple(at for at, _ in pairs), tuple(steps for _, steps in pairs))


def test_shares_and_gains_worked_by_hand():
    """8k: 40 us against 80; 32k: 160 against 80. So 16k: 80 against 80, and crossing there.

    Steps: 100 at 8k, 100 at 32k, 50 at 4k (below), 250 at 64k (above). Inside: 200 of 500. Faster: half of
    the steps, 160 / 200 of the dense time. Always: (40 + 160) / (80 + 80); chosen: 200 / (40 + 80).
    """
    rows = rows_of({8192: (40.0, 80.0), 32768: (160.0, 80.0)})
    found = cover(rows, lengths_of((8192, 100), (32768, 100), (4096, 50), (65536, 250)))
    assert (found.inside, found.below, found.above) == (0.4, 0.1, 0.5)
    assert (found.faster_requests, found.faster_steps, found.faster_time) == (0.5, 0.5, 0.8)
    assert (found.gain_always, found.gain_chosen) == (pytest.approx(1.25), pytest.approx(5 / 3))
    assert (found.modelled_always, found.modelled_chosen) == (None, None)


def test_between_lengths_times_are_straight_in_the_logarithms():
    """16k is halfway: sqrt(40 x 160) = 80 us of dense, 80 of Quest; as fast is not faster."""
    found = cover(rows_of({8192: (40.0, 80.0), 32768: (160.0, 80.0)}), lengths_of((16384, 1)))
    assert found.gain_always == pytest.approx(1.0)
    above = cover(rows_of({8192: (40.0, 80.0), 32768: (160.0, 80.0)}), lengths_of((17000, 1)))
    assert (above.faster_steps, above.gain_always > 1) == (1.0, True)


def test_outside_the_lengths_only_a_model_counts():
    """Dense 10 us at 8k and 20 at 16k is 1.22 ns a token from nothing; Quest 5 + 5 stays 10 at 8k and 16k."""
    rows = rows_of({8192: (10.0, 10.0), 16384: (20.0, 10.0)}, budget=1024, ceilings=profile().header.ceilings)
    model = fit(rows)
    traffic = lengths_of((8192, 1), (65536, 1))
    found = cover(rows, traffic, model, 1024)
    assert found.gain_always == pytest.approx(1.0)
    dense_us, quest_us = 10 + model.dense_us(65536), 10 + model.quest_us(65536, 1024)
    assert found.modelled_always == pytest.approx(dense_us / quest_us)
    assert (found.inside, found.above) == (0.5, 0.5)


def test_nothing_inside_is_no_figure():
    found = cover(rows_of({8192: (40.0, 80.0)}), lengths_of((100, 1)))
    assert (found.inside, found.below, found.gain_always, found.faster_steps) == (0.0, 1.0, None, None)
    none = cover((), lengths_of((100, 1)))
    assert (none.inside, none.below, none.above) == (None, None, None)
    one = cover(rows_of({8192: (80.0, 40.0)}), lengths_of((8192, 1)))
    assert (one.inside, one.gain_always) == (1.0, 2.0)


def test_points_that_are_no_evidence_are_not_interpolated():
    rows = scan_rows(profile(dense(8192, 40.0), quest(8192, (1.0, 1.0, 1.0), status="unstable"), ceilings=()))
    found = cover(rows, lengths_of((8192, 1)))
    assert (found.inside, found.below, found.above, found.gain_chosen) == (None, None, None, None)


def test_without_a_valid_point_no_request_counts_as_below():
    """`100 % below the lengths measured` would say that the traffic is too short; nobody knows."""
    records = [dense(8192, 40.0), quest(8192, None, status="oom")]
    (found,) = outlooks(scan_rows(profile(*records, ceilings=())), [lengths_of((100, 1), (65536, 1))])
    (cells,) = traffic_table(found).rows
    assert cells == ("t", "1024", "unknown: no valid point", "-", "-", "-", "-", "-", "-")


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.floats(1, 1e5), st.floats(0.1, 1e3)), min_size=1, max_size=20),
    st.lists(st.tuples(st.floats(1, 1e3), st.floats(1, 1e3)), min_size=1, max_size=5),
    st.floats(0.01, 100),
)
def test_choosing_never_loses_and_units_do_not_matter(pairs, times, scale):
    curve = {1024 * 2**i: pair for i, pair in enumerate(times)}
    traffic = lengths_of(*pairs)
    found = cover(rows_of(curve), traffic)
    assert found.inside + found.below + found.above == pytest.approx(1.0)
    if found.gain_always is None:
        return
    assert found.gain_chosen >= max(1.0, found.gain_always) * (1 - 1e-9)
    assert 0 <= found.faster_steps <= 1
    scaled = cover(rows_of({n: (scale * d, scale * q) for n, (d, q) in curve.items()}), traffic)
    assert scaled.gain_always == pytest.approx(found.gain_always)


@pytest.mark.parametrize(
    ("text", "lengths", "steps"),
    [
        ("seq_len\n1000\n2000\n", (1000, 2000), (1, 1)),
        ("# ours\nseq_len,weight\n1000,3\n\n2000,1\n", (1000, 2000), (3, 1)),
        ("input_tokens,output_tokens\n1000,9\n50,0\n", (1005,), (9,)),  # 1001 to 1009; no step in the second
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,4808,10\n", (4813.5,), (10,)),
        (
            '{"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": [0]}\n',
            (7008.5,),
            (500,),
        ),
    ],
)
def test_files_as_people_have_them(tmp_path: Path, text, lengths, steps):
    path = tmp_path / "lengths.csv"
    path.write_text(text)
    found = read_traffic(str(path))
    assert (found.lengths, found.steps) == (lengths, steps)
    assert found.name == "lengths.csv"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("tokens\n5\n", "its columns are tokens"),
        ("", "it holds no row"),
        ("seq_len\nmany\n", "seq_len is 'many'"),
        ("seq_len\n-4\n", "seq_len is '-4'"),
        ("seq_len,weight\n5,nan\n", "weight is 'nan'"),
        ("seq_len,weight\n5\n", "weight is None"),
        ("seq_len,weight\n5,0\n", "it holds no decode step"),
        ("seq_len\n", "it holds no row"),
        ("# lengths\n", "it holds no row"),
        ('"seq_len\n5', "it holds no row"),
        ("seq_len\n8k\n", "seq_len is '8k'"),
        ("seq_len\n1e999\n", "seq_len is '1e999'"),
        ("seq_len,weight\n5,1e308\n5,1e308\n", "weight is '1e308', no number from 0 to 1e+15"),
        ("seq_len,seq_len\n5,6\n", "a column is there twice"),
        ("SEQ_LEN;WEIGHT\n5;6\n", "its columns are SEQ_LEN;WEIGHT"),
        ("input_tokens,output_tokens\n5,0\n", "it holds no decode step"),
        (f"seq_len\n{'9' * 400}\n", "seq_len is '999"),
        ("{oops\n", "neither CSV nor JSON lines"),
        ('[{"seq_len": 5}]\n', "neither CSV nor JSON lines"),
        ('{"seq_len": 5}\n[5]\n', "neither CSV nor JSON lines"),
        ('{"seq_len": 5}\n{"weight": 5}\n', "row 2: seq_len is None"),
        ('{"seq_len": true}\n', "seq_len is True"),
        (f'{{"seq_len": {"9" * 400}}}\n', "seq_len is 999"),
        ("[" * 100_000, "neither CSV nor JSON lines"),
        ('{"input_length": 5}\n{"input_length": 5}\n', "its columns are input_length"),
    ],
)
def test_what_is_no_traffic_says_why(tmp_path: Path, text, why):
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with pytest.raises(QuestprofError, match=r"bad\.csv") as caught:
        read_traffic(str(path))
    assert why in str(caught.value)
    assert len(str(caught.value)) < 500


def test_bytes_that_are_no_text_are_no_traffic(tmp_path: Path):
    path = tmp_path / "bad.csv"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(QuestprofError, match="as a file it cannot be read"):
        read_traffic(str(path))
    with pytest.raises(QuestprofError, match="as a file it cannot be read"):
        read_traffic(str(tmp_path))


@given(st.text(alphabet='seq_lnwight,\n0123456789.-"{}[]: x', max_size=60))
def test_any_text_is_traffic_or_a_clean_error(tmp_path_factory, text: str):
    path = tmp_path_factory.getbasetemp() / "any.csv"
    path.write_text(f"seq_len,weight\n5,1\n{text}")
    try:
        found = read_traffic(str(path))
    except QuestprofError:
        return
    assert len(found.lengths) == len(found.steps) >= 1
    assert 0 < sum(found.steps) < math.inf


def test_an_unknown_name_lists_the_stored_ones(tmp_path: Path):
    with pytest.raises(QuestprofError) as caught:
        read_traffic("nowhere")
    assert "synthetic-chat" in caught.value.fix
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(QuestprofError, match="cannot be read"):
        read_traffic(str(tmp_path / "binary"))


def test_stored_examples_say_where_they_come_from_and_what_is_made_up():
    table = tomllib.loads(
        (Path(__file__).parents[2] / "questprof" / "crossover" / "traffic.toml").read_text()
    )
    assert set(stored()) == set(table)
    for name, entry in table.items():
        made_up = "requests" not in entry
        assert name.startswith("synthetic-") is made_up
        assert entry["about"].startswith("synthetic, no measurement") is made_up
        assert made_up or (
            "github.com" in entry["source"] and f"first {len(entry['requests'])} " in entry["about"]
        )
    json.dumps({name: [one.about, one.source] for name, one in stored().items()})


def test_synthetic_inputs_have_the_stated_median():
    found = stored()["synthetic-chat"]
    middle = sorted(found.lengths)[len(found.lengths) // 2 - 1 : len(found.lengths) // 2 + 1]
    assert middle[0] < 1500 + 125.5 < middle[1]  # inputs of median 1500, decoding 250 tokens: their middle
    assert set(found.steps) == {250.0}
