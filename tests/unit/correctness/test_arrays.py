"""Protects the referee's edits of inputs: they change what they say, in every format, no more."""

from __future__ import annotations

import pytest

np = pytest.importorskip("numpy")

from fasttrack.correctness import arrays  # noqa: E402
from fasttrack.correctness.arrays import Packed  # noqa: E402

FLOATS = ("float16", "bfloat16", "float32", "float64")


def made(dtype: str, *shape: int, seed: int = 0) -> Packed:
    """Normal numbers in a format."""
    values = np.random.default_rng(seed).standard_normal(shape)
    return arrays.encoded(values, Packed(dtype, shape, b""))


@pytest.mark.parametrize("dtype", FLOATS)
def test_numbers_survive_their_format(dtype: str) -> None:
    one = made(dtype, 3, 4)
    again = arrays.encoded(one.value().astype(np.float64), one)
    assert arrays.same(one, again)
    assert np.abs(one.value() - made("float64", 3, 4).value()).max() < 0.02


@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf, -0.0])
def test_special_values_survive_bfloat16(special: float) -> None:
    one = arrays.encoded(np.array([special, 1.0]), Packed("bfloat16", (2,), b""))
    assert np.array_equal(one.value(), np.array([special, 1.0], np.float32), equal_nan=True)


def test_frames_carry_every_bit() -> None:
    given = {"a": made("bfloat16", 2, 3), "b": made("float32"), "c": Packed("bool", (2,), b"\1\0")}
    assert arrays.unwire(*arrays.wire(given)) == given


def test_a_frame_whose_sizes_disagree_is_refused() -> None:
    with pytest.raises(ValueError, match=r"reshape|buffer"):
        arrays.unwire([{"name": "a", "dtype": "float32", "shape": [3]}], [b"12345678"])


@pytest.mark.parametrize("rows", [2, 3, 8])
def test_a_permutation_moves_every_row_and_comes_back(rows: int) -> None:
    given = {"x": made("float32", rows, 4), "t": made("float32", 4, rows), "w": made("float32", 4)}
    axes = {"x": 0, "t": 1}
    order = arrays.order_of(given, axes, seed=1)
    assert order is not None and not (order == np.arange(rows)).any()
    moved = arrays.permuted(given, axes, order)
    assert arrays.same(moved["w"], given["w"]) and not arrays.same(moved["t"], given["t"])
    assert np.array_equal(moved["t"].value(), given["t"].value()[:, order])
    assert arrays.permuted(moved, axes, np.argsort(order)) == given


def test_one_row_cannot_be_permuted_and_rows_must_agree() -> None:
    assert arrays.order_of({"x": made("float32", 1, 4)}, {"x": 0}, 0) is None
    given = {"x": made("float32", 2, 4), "y": made("float32", 3, 4)}
    with pytest.raises(ValueError, match=r"rows: \[2, 3\]"):
        arrays.order_of(given, {"x": 0, "y": 0}, 0)


@pytest.mark.parametrize("dtype", FLOATS)
def test_two_seeds_bring_every_kind_of_hostile_row_among_benign_ones(dtype: str) -> None:
    values = made(dtype, 8, 64).value().astype(np.float64)
    values[:, -1] = np.nan
    given = {"x": arrays.encoded(values, Packed(dtype, (8, 64), b"")),
             "i": Packed("int64", (8,), bytes(64))}  # fmt: skip
    tiny = arrays.SMALLEST_NORMAL[dtype]
    seen = set()
    for seed in (0, 1):
        mixed = arrays.hostile(given, {"x": 0, "i": 0}, seed)
        assert arrays.same(mixed["i"], given["i"])
        before, after = given["x"].value()[:, :-1], mixed["x"].value()[:, :-1]
        assert np.isnan(mixed["x"].value()[:, -1]).all()
        assert 1 <= (before == after).all(1).sum() < 8
        size = np.abs(after)
        seen |= {
            name
            for name, found in {
                "zeros": (after == 0).all(1),
                "constant": (after == 1).all(1),
                "denormal": ((size < tiny) & (size > 0)).all(1),
                "outlier": size.max(1) > 20 * np.median(size, 1),
                "tiny": (size.max(1) < 1e-4) & (size.max(1) > tiny * 0.9),
            }.items()
            if found.any()
        }
    assert seen >= set(arrays.HOSTILE) - ({"tiny"} if dtype == "float16" else set())


@pytest.mark.parametrize("dtype", FLOATS)
def test_an_edit_changes_one_element(dtype: str) -> None:
    given = {"x": made(dtype, 4, 8), "w": made(dtype, 8)}
    change = arrays.one_element(given, {"x": 0}, seed=3)
    changed = arrays.edited(given, change)
    mask = arrays.differing(given["x"], changed["x"])
    assert mask.sum() == 1 and arrays.same(given["w"], changed["w"])
    ratio = changed["x"].value()[mask] / given["x"].value()[mask]
    assert ratio == pytest.approx(1.5, rel=0.01)
    assert arrays.one_element(given, {"x": 0}, seed=3) == change
    assert arrays.one_element({"i": Packed("int64", (1,), bytes(8))}, {"i": 0}, 0) == []


def test_poison_is_what_was_never_written() -> None:
    one = Packed("float32", (2, 2), b"\xff" * 4 + bytes(8) + b"\xff" * 3 + b"\0")
    assert arrays.poison(one).tolist() == [[True, False], [False, False]]
