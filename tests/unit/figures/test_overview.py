"""Distributions: the rule of Flink's histogram."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sluice.figures.overview import StatsSummary, interpolated_percentile, summary_of

values = st.lists(st.integers(0, 2**53), min_size=1, max_size=200)
shares = st.floats(0.001, 0.999)


def test_percentiles_are_those_that_flink_computes() -> None:
    assert summary_of(range(1, 100)) == StatsSummary(
        min=1, max=99, avg=50, p50=50.0, p90=90.0, p95=95.0, p99=99.0, p999=99.0
    )
    assert summary_of([10, 20, 30, 40]) == StatsSummary(
        min=10, max=40, avg=25, p50=25.0, p90=40.0, p95=40.0, p99=40.0, p999=40.0
    )


def test_one_value_is_its_own_distribution() -> None:
    assert summary_of([7]) == StatsSummary(
        min=7, max=7, avg=7, p50=7.0, p90=7.0, p95=7.0, p99=7.0, p999=7.0
    )


def test_what_was_not_measured_is_no_zero() -> None:
    assert summary_of([None, 4, None]) == summary_of([4])
    assert summary_of([None]) is None
    assert summary_of([]) is None


@given(values, shares, shares)
def test_a_percentile_lies_between_the_extremes_and_grows_with_the_share(
    given_values: list[int], one: float, other: float
) -> None:
    ordered = sorted(given_values)
    low, high = sorted((one, other))

    assert (
        ordered[0]
        <= interpolated_percentile(ordered, low)
        <= interpolated_percentile(ordered, high)
        <= ordered[-1]
    )


@given(values, shares)
def test_the_order_of_the_values_does_not_matter(given_values: list[int], share: float) -> None:
    assert summary_of(given_values) == summary_of(reversed(given_values))
