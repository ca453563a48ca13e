"""Points in words: labels and settings name what varies, and no two points share a name."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from profiles import GQA_SHAPE, SHAPE, dense, quest
from questprof.decode.records import DecodeSetup
from questprof.model import Point
from questprof.points import kernels, labels, setting, settings, varying

US = (2.0, 1.0, 5.0)
USUAL = quest(4096, US).point


def test_labels_name_what_varies_and_are_unique() -> None:
    points = [USUAL, quest(8192, US, page_size=32).point]
    assert labels(points) == ["4k/1k page 16", "8k/1k page 32"]
    assert labels([dense(1000, 1.0).point]) == ["1000"]
    alike = [replace(USUAL, policy_params={"k": k}) for k in (1, 2)]
    assert len(set(labels(alike))) == 2
    assert labels([USUAL] * 2) == ["4k/1k"] * 2
    assert labels([]) == []


def test_variants_of_a_backend_are_told_apart() -> None:
    points = [replace(USUAL, variant=variant) for variant in ("", "cuda")]
    assert list(map(kernels, points)) == ["questprof", "questprof (cuda)"]
    assert labels(points) == ["4k/1k questprof", "4k/1k questprof (cuda)"]


def test_a_setting_leaves_the_usual_out() -> None:
    assert setting(USUAL) == "toy (fp16), batch 1, page 16"
    assert setting(replace(USUAL, shape=GQA_SHAPE)) == "toy-gqa (fp16), batch 1, page 16, independent queries"
    odd = replace(USUAL, policy="quest-open", backend="triton", summary_layout="transposed", data="ramp")
    assert setting(replace(odd, page_order="scattered")) == (
        "toy (fp16), batch 1, page 16, quest-open, triton, transposed summary, scattered pages, ramp keys"
    )


def test_settings_that_read_the_same_are_told_apart() -> None:
    seeds = [replace(USUAL, seed=seed) for seed in (0, 1)]
    usual = "toy (fp16), batch 1, page 16"
    assert settings([*seeds, replace(USUAL, page_size=32)]) == [
        f"{usual}, seed 0",
        f"{usual}, seed 1",
        "toy (fp16), batch 1, page 32",
    ]
    heads = [replace(USUAL, shape=replace(SHAPE, num_qo_heads=heads)) for heads in (2, 4)]
    assert len(set(settings(heads))) == 2
    assert settings([]) == []


def test_only_what_differs_is_said() -> None:
    points = [USUAL, replace(USUAL, seed=3, batch_size=2)]
    assert varying(points) == [["batch 1", "seed 0"], ["batch 2", "seed 3"]]
    assert varying([USUAL]) == [[]]


POINTS = st.builds(
    lambda changes: replace(USUAL, **changes),
    st.fixed_dictionaries(
        {},
        optional={
            "seed": st.integers(0, 2),
            "page_size": st.sampled_from([8, 16]),
            "variant": st.sampled_from(["", "cuda"]),
            "pool_bytes": st.integers(0, 1),
            "policy_params": st.sampled_from([{}, {"k": 1}]),
        },
    ),
)


@given(st.lists(POINTS, min_size=1, max_size=6))
def test_no_two_points_share_a_name(points: list[Point]) -> None:
    for names in (labels(points), settings(points)):
        by_name: dict[str, set[str]] = {}
        for point, name in zip(points, names, strict=True):
            by_name.setdefault(name, set()).add(point.point_id)
        assert max(map(len, by_name.values())) == 1


def test_steps_are_told_apart_by_their_weights_and_dense_layers() -> None:
    """A dense step has no first layers that are dense, as all are: nothing is said of them there."""
    fp16, int4 = (DecodeSetup("toy", name, dense_layers=2) for name in ("fp16", "int4"))
    dense_step = replace(USUAL, policy="dense", token_budget=0)
    steps = [replace(p, decode=setup) for p in (USUAL, dense_step) for setup in (fp16, int4)]
    assert labels(steps) == [
        "4k/1k quest fp16 weights",
        "4k/1k quest int4 weights",
        "4k dense fp16 weights",
        "4k dense int4 weights",
    ]
    setups = [replace(fp16, dense_layers=n) for n in (0, 1)] + [replace(fp16, layer_budgets=(64, 32))]
    assert labels([replace(USUAL, decode=setup) for setup in setups]) == [
        "4k/1k no layer dense", "4k/1k first 1 layer dense", "4k/1k budgets by layer"
    ]  # fmt: skip
    by = [replace(dense_step, decode=replace(fp16, dense_backend=name)) for name in ("questprof", "sdpa")]
    assert labels(by) == ["4k dense layers by questprof", "4k dense layers by sdpa"]
