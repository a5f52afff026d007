"""Numbers as people read them."""

import pytest

from stripectl.hardware.profile_fields import FIGURES
from stripectl.util.units import NOTHING, duration, in_unit, nbytes, rate, times


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (duration(0.0), "0 ns"),
        (duration(1.0), "1.00 s"),
        (duration(0.0123), "12.3 ms"),
        (duration(1793.2), "1,793 s"),
        (nbytes(1536), "1.50 KiB"),
        (nbytes(2**40), "1,024 GiB"),
        (rate(45e9, "B/s"), "45.0 GB/s"),
        (rate(0.5, "Hz"), "0.500 Hz"),
        (times(1.4567), "1.46x"),
    ],
)
def test_three_digits_and_a_unit(shown: str, expected: str) -> None:
    assert shown == expected


def test_what_is_not_known_is_neither_zero_nor_one() -> None:
    assert {duration(None), nbytes(None), rate(None, "B/s"), times(None)} == {NOTHING}


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("matmul_flops_per_s_bfloat16", 275e12, "275 TFLOP/s"),
        ("flops_per_s", 1e9, "1.00 GFLOP/s"),
        ("link_bytes_per_s_one_way", 45e9, "45.0 GB/s"),
        ("hbm_bytes", 2**35, "32.0 GiB"),
        ("hop_latency_s", 1e-6, "1.00 us"),
        ("clock_hz", 1.05e9, "1.05 GHz"),
        ("error", 0.01, "+1.0%"),
        ("cores", 2, "2"),
    ],
)
def test_the_unit_is_what_the_name_ends_in(name: str, value: float, expected: str) -> None:
    assert in_unit(name, value) == expected


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_of_a_profile_has_a_unit(name: str) -> None:
    assert in_unit(name, 1.0) != "1.0"
