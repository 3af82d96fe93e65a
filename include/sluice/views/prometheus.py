"""Metrics in Prometheus' text format, written by Prometheus' own client library."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from sluice.extras import require
from sluice.job.job import Job
from sluice.statistics.metric import Metric
from sluice.statistics.metrics import METRICS
from sluice.statistics.samples import Sample
from sluice.views.metrics import CountOrphans, metrics_of_each

if TYPE_CHECKING:
    from prometheus_client.core import GaugeMetricFamily
    from prometheus_client.registry import Collector, CollectorRegistry

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def metrics_text(jobs: Iterable[Job], count_orphans: CountOrphans | None = None) -> str:
    """The metrics of *jobs* as a page for a scraper, of the type ``CONTENT_TYPE``.

    Raises:
        ConfigurationError: the library is not installed.
    """
    return text_of(metrics_of_each(jobs, count_orphans))


def text_of(found: Iterable[Sample]) -> str:
    """*found* as such a page.  Raises as ``metrics_text``."""
    registry = registry_of(lambda: found)
    from prometheus_client import generate_latest

    return generate_latest(registry).decode()


def registry_of(read: Callable[[], Iterable[Sample]]) -> CollectorRegistry:
    """A registry that asks *read* anew at every scrape.  Raises as ``metrics_text``."""
    require("prometheus_client", who="the page of metrics")
    from prometheus_client.registry import CollectorRegistry

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_collector(read))
    return registry


def exposed_name(metric: Metric) -> str:
    """Flink's name behind Sluice's prefix, as ``sluice_job_numRestarts``."""
    return f"sluice_{metric.scope}_{metric.name}"


def _collector(read: Callable[[], Iterable[Sample]]) -> Collector:
    from prometheus_client.registry import Collector

    class BucketCollector(Collector):
        def collect(self) -> Iterator[GaugeMetricFamily]:
            return _families(read())

    return BucketCollector()


def _families(found: Iterable[Sample]) -> Iterator[GaugeMetricFamily]:
    """A family for each metric that has a sample, in the order of ``METRICS``."""
    from prometheus_client.core import GaugeMetricFamily

    by_metric: dict[str, list[Sample]] = {}
    for sample in found:
        by_metric.setdefault(sample.metric.key, []).append(sample)
    for key, metric in METRICS.items():
        if key in by_metric:
            family = GaugeMetricFamily(
                exposed_name(metric), metric.documentation, labels=metric.labels
            )
            for sample in by_metric[key]:
                family.add_metric(sample.labels, sample.value)
            yield family
