"""Starts the services of a plan in parallel: right ones are reused, others replaced.

Every start and stop is recorded before anything else happens, so that another process can stop the
services.  If one fails, all that were started here are stopped again.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path

from sluice.devstack import processes, stack_file
from sluice.devstack.plan import ServicePlan
from sluice.devstack.processes import ProcessRecord
from sluice.devstack.settings import inherited_environment
from sluice.devstack.stack_file import Service, StackFile
from sluice.errors import ConfigurationError

STOP_GRACE_S = 10.0  # The scheduler waits for running tasks, which Sluice does not need.
_REUSE_TIMEOUT_S = 20.0  # A process that runs but does not answer for this long is restarted.
_POLL_S = 0.05


class Ledger:
    """The record of starts and stops, written to the stack file at once, from any thread."""

    def __init__(self, sluice_dir: Path, content: StackFile) -> None:
        self._sluice_dir = sluice_dir
        self._content = content
        self._mutex = threading.Lock()
        self.started: list[ProcessRecord] = []
        stack_file.write(sluice_dir, content)

    @property
    def content(self) -> StackFile:
        return self._content

    def add(self, service: Service) -> None:
        with self._mutex:
            self.started.append(service.process)
            self._write({**self._content.services, service.process.name: service})

    def drop(self, record: ProcessRecord) -> None:
        with self._mutex:
            kept = {n: s for n, s in self._content.services.items() if s.process != record}
            self._write(kept)

    def _write(self, services: Mapping[str, Service]) -> None:
        self._content = replace(self._content, services=services)
        stack_file.write(self._sluice_dir, self._content)


def ensure_all(plans: tuple[ServicePlan, ...], ledger: Ledger) -> None:
    """Start every service of the plans, wait until all are ready, and stop all others.

    Raises:
        ConfigurationError: one of them did not start; those that this call started are stopped.
    """
    cancelled = threading.Event()
    ready = {plan.launch.name: threading.Event() for plan in plans}
    is_complete = False
    try:
        with ThreadPoolExecutor(max_workers=len(plans)) as pool:
            futures = [pool.submit(_ensure, plan, ledger, ready, cancelled) for plan in plans]
            try:
                done, _ = wait(futures, return_when=FIRST_EXCEPTION)
            finally:
                cancelled.set()  # Cancels the services that are not ready yet.
            for future in done:  # The results, or the error of one that failed.
                future.result()
        is_complete = True
    finally:
        if not is_complete:
            processes.stop_all(ledger.started, stack_id=None, grace_s=STOP_GRACE_S)
            for record in tuple(ledger.started):
                ledger.drop(record)
    # Last, when a database that is not planned any more has no clients.
    for name, service in tuple(ledger.content.services.items()):
        if name not in ready:
            processes.stop_all((service.process,), stack_id=None, grace_s=STOP_GRACE_S)
            ledger.drop(service.process)


def _ensure(
    plan: ServicePlan,
    ledger: Ledger,
    ready: Mapping[str, threading.Event],
    cancelled: threading.Event,
) -> None:
    service = ledger.content.services.get(plan.launch.name)
    if service is not None:
        if service.digest == plan.digest and _answers_soon(plan, service.process, cancelled):
            ready[plan.launch.name].set()
            return
        # Also if its first process is dead, as Airflow's components outlive their supervisor.
        processes.stop_all((service.process,), stack_id=None, grace_s=STOP_GRACE_S)
        ledger.drop(service.process)
    if plan.after is not None:
        while not ready[plan.after].wait(_POLL_S):
            if cancelled.is_set():
                return
    if cancelled.is_set():
        return
    plan.prepare()
    launch = replace(plan.launch, env={**inherited_environment(), **plan.launch.env})
    record = processes.start(launch)
    ledger.add(Service(process=record, digest=plan.digest))
    processes.wait_until_ready(
        record, plan.is_ready, timeout_s=plan.start_timeout_s, cancelled=cancelled
    )
    ready[plan.launch.name].set()


def _answers_soon(plan: ServicePlan, record: ProcessRecord, cancelled: threading.Event) -> bool:
    if not processes.is_alive(record):
        return False
    try:
        processes.wait_until_ready(
            record, plan.is_ready, timeout_s=_REUSE_TIMEOUT_S, cancelled=cancelled
        )
    except ConfigurationError:
        return False
    return True
