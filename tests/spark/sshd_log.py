"""A seeded sshd log and the alerts that plain Python finds in it."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

ALLOWED = "10.0.0.1"
FIRST = datetime(2015, 3, 1, 6, 0, tzinfo=UTC)
Alert = tuple[str, datetime, int, int]


def write_log(path: Path, *, lines: int, seed: int) -> list[Alert]:
    """Write *lines* lines in time order and return the alerts, sorted."""
    random = Random(seed)
    at = FIRST
    failures: dict[tuple[str, datetime], list[str]] = defaultdict(list)
    with path.open("w") as file:
        for _ in range(lines):
            at += timedelta(seconds=random.randrange(8))
            source_ip = f"10.0.0.{random.randrange(1, 12)}"
            user = random.choice(["root", "admin", "", "invalid user oracle", "a b"])
            times = random.choice([1, 1, 1, 4])
            message = f"Failed password for {user} from {source_ip} port 4711 ssh2"
            kind = random.randrange(4)
            if kind == 0:
                message, times = f"Accepted password for root from {source_ip} port 4711 ssh2", 0
            elif times > 1:
                message = f"message repeated {times} times: [ {message}]"
            file.write(f"{at:%b} {at.day:2d} {at:%H:%M:%S} host sshd[7]: {message}\n")
            window = at - timedelta(
                minutes=at.minute % 10, seconds=at.second, microseconds=at.microsecond
            )
            failures[source_ip, window] += [user.removeprefix("invalid user ")] * times
    return sorted(
        (source_ip, window, len(users), len(set(users)))
        for (source_ip, window), users in failures.items()
        if len(users) >= 5 and source_ip != ALLOWED
    )


def write_allowlist(path: Path) -> Path:
    path.write_text(f"# ours\n\n  {ALLOWED}  \n")
    return path
