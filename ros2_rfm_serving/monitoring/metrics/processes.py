"""Metric families of a factory's processes: certificates, log disks, and the recorder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from ros2_rfm_serving.monitoring.board import ProcessRow
from ros2_rfm_serving.types.process_problems import ENDED

SILENT_AFTER_S = 16.0
"""Silence that counts as an end: three status periods of a process."""
FORGOTTEN_AFTER_S = 1800.0
"""Silence after which a process is forgotten. One that was killed (`kill -9`) does not count as lost for ever."""
GAUGES = {
    "certificate_left_s": ("rfm_certificate_left_seconds", "Until the process' certificate ends; below 0: it has ended"),
    "certificate_invalid": ("rfm_certificate_invalid", "1: no other process accepts the certificate now"),
    "revocations_unusable": ("rfm_revocations_unusable", "1: the process cannot use its list of revoked certificates"),
    "log_disk_full": ("rfm_log_disk_full", "1: there is no room for the process' log"),
    "recorder_bytes": ("rfm_recorder_bytes", "Size of the recording"),
    "recorder_problem": ("rfm_recorder_problem", "1: nothing can be written now"),
}
COUNTERS = {
    "recorder_messages": ("rfm_recorder_messages", "Messages that were recorded"),
    "recorder_lost": ("rfm_recorder_lost_messages", "Messages that were received and not recorded"),
}
RECORDING = "recorder_messages"
"""Figure by which a recording process is recognised."""


def processes(rows: Mapping[tuple[str, str], ProcessRow], now_s: float) -> Iterator[Metric]:
    """Yield the metrics of processes. One whose reports are refused only for its certificate has the gauges of that certificate."""
    invalid = {key: row for key, row in rows.items() if now_s - row.invalid_received_s < SILENT_AFTER_S <= now_s - row.seen_s}
    rows = {key: row for key, row in rows.items() if now_s - row.seen_s < FORGOTTEN_AFTER_S}
    there = {key: row for key, row in rows.items() if now_s - row.seen_s < SILENT_AFTER_S}
    up = GaugeMetricFamily(
        "rfm_recorder_up", "1: the recorder reports; 0: it is silent; gone: it has ended in order", labels=["process", "host"]
    )
    for key, row in rows.items():
        if RECORDING in row.numbers and not row.numbers.get(ENDED):
            up.add_metric(key, float(key in there))
    yield up
    for number, (metric, about) in GAUGES.items():
        gauge = GaugeMetricFamily(metric, about, labels=["process", "host"])
        for key, row in there.items():
            if number in row.numbers:
                gauge.add_metric(key, row.numbers[number])
        for key, row in invalid.items():
            figures = {"certificate_left_s": row.invalid_left_s, "certificate_invalid": 1.0}
            if number in figures:
                gauge.add_metric(key, figures[number])
        yield gauge
    for number, (metric, about) in COUNTERS.items():
        counter = CounterMetricFamily(metric, about, labels=["process", "host"])
        for key, row in rows.items():
            if number in row.numbers:
                counter.add_metric(key, row.numbers[number])
        yield counter
