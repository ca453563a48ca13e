"""page.py: one self-contained, safe file; what is refused; what is written."""

from __future__ import annotations

import base64
import hashlib
import re
import subprocess
import sys

import pytest
from msgspec.structs import replace
from plotly.offline import get_plotlyjs, get_plotlyjs_version

from profiles import CPU, GPU, GQA_SHAPE, SHAPE, dense, profile, quest, two_baselines
from questprof.errors import QuestprofError
from questprof.model import Shape
from questprof.report import render, write_report

HOSTILE = (
    "</script><script>alert(1)</script>",
    "{{7*7}}",
    "{% raw %}",
    '" onmouseover="alert(1)" x="',
    "<img src=x onerror=alert(1)>",
    "<!--<script>",
    "javascript:alert(1)",
    "</style><b>",
    "%{y}",
)
MEGABYTE = 1 << 20


@pytest.fixture(scope="module")
def page_html() -> str:
    return render([profile(*two_baselines())])


def hostile_profile(text: str):
    shape = replace(SHAPE, name=text)
    env = replace(GPU, device_name=text, driver=text, versions={text: text}, commit=text)
    records = [
        *(
            dense(length, 100.0 * length / 2048, shape=shape, env=env, backend=text)
            for length in (2048, 8192)
        ),
        quest(2048, (100.0, 100.0, 100.0), shape=shape, env=env, variant=text),
        quest(8192, (10.0, 10.0, 10.0), shape=shape, env=env, variant=text, policy_params={text: text}),
        quest(4096, None, shape=shape, env=env, variant=text, status="oom", reason=text),
    ]
    found = profile(*records, env=env, command=text, started_at=text)
    return replace(found, warnings=(text,))


@pytest.mark.parametrize("text", HOSTILE)
def test_text_of_a_profile_stays_text(parse, text):
    calm = parse(render([hostile_profile("calm")], plotlyjs="directory"))
    page = parse(render([hostile_profile(text)], plotlyjs="directory"))
    assert [tag for tag, _, _ in page.elements] == [tag for tag, _, _ in calm.elements]
    for (_, ours, _), (_, theirs, _) in zip(page.elements, calm.elements, strict=True):
        assert ours.keys() == theirs.keys()
    (_, command) = page.all("pre")[0]
    assert command == text
    assert text in page.all("title")[0][1]
    assert f"{text} {text}" in [option for _, option in page.all("option")]
    assert f"oom, {text}. At 4k" in page.text


@pytest.mark.parametrize("text", HOSTILE)
def test_names_in_a_figure_cannot_be_markup(parse, text):
    """Plotly reads a little HTML in names: a `<` reaches it only as an entity."""
    page = parse(render([hostile_profile(text)], plotlyjs="directory"))
    names = [trace["name"] for figure in page.figures for trace in figure["data"]]
    assert any("dense" in name for name in names)
    assert not [name for name in names if "<" in name or '"' in name]
    assert "<" not in "".join(re.findall(r'figure-data">(.*?)</script>', page.html, re.S))


def test_nothing_is_loaded_from_elsewhere(parse, page_html):
    page = parse(page_html)
    for tag, attrs, _ in page.elements:
        for name in ("src", "href", "action", "data", "poster", "srcset"):
            assert attrs.get(name, "#").startswith("#"), attrs
        assert not [name for name in attrs if name.startswith("on")]
        assert "style" not in attrs or tag in ("path", "g", "text", "style", "rect")  # of a static picture
    (_, style) = page.all("style")[0]
    assert "url(" not in style
    assert "@import" not in style


def test_the_policy_lets_only_our_scripts_run(parse, page_html):
    page = parse(page_html)
    (policy,) = [
        a["content"] for a, _ in page.all("meta") if a.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policy.startswith("default-src 'none';")
    running = [text for attrs, text in page.all("script") if attrs.get("type") != "application/json"]
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in running]
    scripts = re.search(r"script-src ([^;]*);", policy)[1]
    assert scripts.split() == [f"'sha256-{found}'" for found in hashes]
    assert len(running) == 2


@pytest.mark.parametrize("number", [1, 2, 3])
def test_one_copy_of_plotly(parse, number):
    page = parse(render([profile(*two_baselines(), dense(k, 1.0)) for k in range(1, number + 1)]))
    assert len([text for _, text in page.all("script") if len(text) > MEGABYTE]) == 1
    assert len(page.figures) == number + (number > 1)  # and the comparison of the first two


def test_a_page_without_figures_carries_no_plotly(parse):
    page = parse(render([profile(dense(2048, 10.0))]))
    assert len(page.html) < MEGABYTE / 10
    assert len(page.all("script")) == 1


def test_a_large_page_stays_small():
    """A thousand records of 24 settings x 3 budgets x 7 lengths, three baselines each."""
    records = []
    for i in range(24):
        shape = Shape(f"shape-{i}", num_qo_heads=8, num_kv_heads=8, head_dim=128)
        for k in (2, 4, 8, 16, 32, 64, 128):
            records += [dense(k * 1024, 7.77 * k, shape=shape, backend=name) for name in ("a", "b", "c")]
            records += [
                quest(k * 1024, (k / 3, 2.2, budget / 333), shape=shape, budget=budget)
                for budget in (1024, 2048, 4096)
            ]
    page = render([profile(*records[:1000], ceilings=())])
    assert 5 * MEGABYTE < len(page.encode()) < 6e6
    assert page.count('<svg class="picture"') == 24


def test_cdn_mode_pins_what_it_loads(parse):
    page = parse(render([profile(*two_baselines())], plotlyjs="cdn"))
    (script,) = [attrs for attrs, _ in page.all("script") if "src" in attrs]
    assert script["src"] == f"https://cdn.plot.ly/plotly-{get_plotlyjs_version()}.min.js"
    digest = base64.b64encode(hashlib.sha256(get_plotlyjs().encode()).digest()).decode()
    assert script["integrity"] == f"sha256-{digest}"
    assert len(page.html) < MEGABYTE


def test_directory_mode_shares_one_library(tmp_path, parse):
    for name in ("one.html", "two.html"):
        write_report([profile(*two_baselines())], tmp_path / "deep" / name, plotlyjs="directory")
    assert sorted(p.name for p in (tmp_path / "deep").iterdir()) == ["one.html", "plotly.min.js", "two.html"]
    page = parse((tmp_path / "deep" / "one.html").read_text(encoding="utf-8"))
    assert [attrs["src"] for attrs, _ in page.all("script") if "src" in attrs] == ["plotly.min.js"]
    assert (tmp_path / "deep" / "plotly.min.js").read_text(encoding="utf-8") == get_plotlyjs()


def test_another_library_beside_the_page_is_not_replaced_unasked(tmp_path):
    library = tmp_path / "plotly.min.js"
    library.write_text("other")
    with pytest.raises(QuestprofError, match=r"plotly\.min\.js exists"):
        write_report([profile(*two_baselines())], tmp_path / "a.html", plotlyjs="directory")
    assert [p.name for p in tmp_path.iterdir()] == ["plotly.min.js"]
    write_report([profile(*two_baselines())], tmp_path / "a.html", plotlyjs="directory", force=True)
    assert library.read_text(encoding="utf-8") == get_plotlyjs()


def test_nothing_is_overwritten_without_force(tmp_path):
    path = tmp_path / "report.html"
    path.write_text("mine")
    with pytest.raises(QuestprofError, match="--force") as caught:
        write_report([profile(*two_baselines())], path)
    assert caught.value.what == f"{path} exists"
    assert path.read_text() == "mine"
    assert write_report([profile(*two_baselines())], path, force=True) == path
    assert path.read_text(encoding="utf-8") == render([profile(*two_baselines())])
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]


def test_a_place_that_cannot_be_written_is_an_error_in_words(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(QuestprofError, match="cannot write"):
        write_report([profile(*two_baselines())], tmp_path / "file" / "report.html")


def test_no_profile_is_no_report():
    with pytest.raises(QuestprofError, match="there is no profile to show"):
        render([])


def test_cpu_figures_say_so_before_anything_else(parse):
    cpu = parse(render([profile(*two_baselines(env=CPU), env=CPU)], plotlyjs="directory"))
    said = cpu.text.split()
    assert " ".join(said[:4]) == "These are CPU figures,"
    gpu = parse(render([profile(*two_baselines())], plotlyjs="directory"))
    assert "CPU figures" not in gpu.text


def test_the_verdict_comes_before_every_section(page_html, parse):
    text = parse(page_html).text
    verdict = text.index("Budget 1024: Quest is faster from 2.1k tokens; 7.3x at 32k.")
    assert text.index("Does Quest pay off on Toy GPU?") < verdict < text.index("Length scan")


def test_gqa_gives_one_sentence_two_figures_and_a_section(parse):
    records = [*two_baselines(GQA_SHAPE), *two_baselines(GQA_SHAPE, data="shared")]
    records = [
        record for record in records if (record.point.policy, record.point.data) != ("dense", "shared")
    ]
    page = parse(render([profile(*records)], plotlyjs="directory"))
    assert page.text.count("real models lie between") >= 2
    assert len(page.figures) == 2 + 1
    (select,) = page.all("select")
    assert select[0]["data-setting"] == "Heads of a group pick"
    assert "p1-gqa" in [attrs["id"] for attrs, _ in page.all("section")]


def test_the_contents_name_the_files_that_profiles_were_read_from(parse):
    """The first name is one that a page must not take for markup."""
    named = [
        replace(profile(dense(2048, us)), name=name)
        for us, name in enumerate(("<a>.jsonl", "second.jsonl"), 1)
    ]
    text = render(named)
    assert "&lt;a&gt;.jsonl: " in text
    assert "second.jsonl: " in text
    assert "<a>" not in text


def test_several_profiles_get_contents_and_sections_of_their_own(parse):
    page = parse(render([profile(*two_baselines()), profile(*two_baselines(env=CPU), env=CPU)]))
    links = [attrs["href"] for attrs, _ in page.all("a") if attrs["href"].startswith("#p")]
    assert [link for link in links if "-" not in link] == ["#p1", "#p2"]
    ids = [attrs["id"] for _, attrs, _ in page.elements if "id" in attrs]
    assert len(ids) == len(set(ids))
    assert {"p1", "p2", "p1-length-scan", "p2-length-scan", "p1-environment", "p2-environment"} <= set(ids)
    (nav,) = parse(render([profile(*two_baselines())])).all("nav")
    assert "Length scan" in nav[1]


def test_every_reference_to_an_id_has_its_element(parse, page_html):
    page = parse(page_html)
    ids = {attrs["id"] for _, attrs, _ in page.elements if "id" in attrs}
    wanted = {attrs["aria-labelledby"] for _, attrs, _ in page.elements if "aria-labelledby" in attrs}
    wanted |= {attrs["href"][1:] for _, attrs, _ in page.elements if "href" in attrs}
    assert wanted
    assert wanted <= ids


def test_a_section_without_data_is_absent(parse):
    page = parse(render([profile(dense(2048, 10.0))]))
    assert [attrs["id"] for attrs, _ in page.all("section")] == ["p1-environment"]
    assert "No verdict: this profile holds no Quest points." in page.text


def test_the_report_imports_neither_torch_nor_plotly():
    code = (
        "import sys, questprof.report, questprof.crossover.sentences;"
        "print([m for m in ('torch', 'triton', 'numba', 'matplotlib', 'plotly') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_rendering_imports_no_torch():
    code = (
        "import sys; from questprof.model import *; from questprof.report import render;"
        "e = Environment('cpu', 'x', 1, 0, 0, '3', 'l', {}); s = Shape('s', 1, 1, 64);"
        "p = Point(s, 2048, token_budget=512); r = Record('sweep', p, p.point_id, e.env_id, 'oom');"
        "render([Profile(Header(1, e, 'c', 't'), (r,))]); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
