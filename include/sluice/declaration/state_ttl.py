"""``StateTtlConfig``: when entries of one state of a keyed function are forgotten; Flink's.

Time is that of the barriers: an entry's last write, or read, is the moment at which its checkpoint
was triggered, and it is expired at the first barrier that is a TTL behind it.  So a repeated epoch
forgets the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import ClassVar

from sluice.errors import ConfigurationError

_MS = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class StateTtlConfig:
    """The TTL of one state; each entry of a list or map has its own.

    Raises:
        ConfigurationError: the TTL is below a millisecond, or a type is none of Flink's.
    """

    class UpdateType(Enum):
        """What begins the TTL of an entry anew."""

        Disabled = "Disabled"  # Nothing expires, also where the stage has a TTL.
        OnCreateAndWrite = "OnCreateAndWrite"
        OnReadAndWrite = "OnReadAndWrite"

    class StateVisibility(Enum):
        """Whether an expired entry is returned.

        In Flink it depends on when a cleanup ran.  Here that has a time: an expired entry is
        cleaned up when it is read, or else at the first barrier that is two TTLs behind its write.
        """

        ReturnExpiredIfNotCleanedUp = "ReturnExpiredIfNotCleanedUp"
        NeverReturnExpired = "NeverReturnExpired"

    DISABLED: ClassVar[StateTtlConfig]

    ttl: timedelta
    update_type: UpdateType = UpdateType.OnCreateAndWrite
    state_visibility: StateVisibility = StateVisibility.NeverReturnExpired

    def __post_init__(self) -> None:
        for given, kind in (
            (self.update_type, StateTtlConfig.UpdateType),
            (self.state_visibility, StateTtlConfig.StateVisibility),
        ):
            if not isinstance(given, kind):
                names = ", ".join(f"StateTtlConfig.{kind.__name__}.{one.name}" for one in kind)
                raise ConfigurationError(
                    f"StateTtlConfig is given {given!r} as {kind.__name__}; use one of: {names}"
                )
        if not isinstance(self.ttl, timedelta) or self.ttl < _MS:
            raise ConfigurationError(
                f"StateTtlConfig is given a TTL of {self.ttl!r}; use a timedelta of 1 ms or more"
            )

    @property
    def ttl_ms(self) -> int | None:
        """After how long without an update an entry is expired; None if never."""
        return None if self.update_type is self.UpdateType.Disabled else self.ttl // _MS

    @property
    def cleanup_ms(self) -> int | None:
        """After how long without an update an entry is gone; None if never."""
        return None if self.ttl_ms is None else self.ttl_ms * (2 if self.returns_expired else 1)

    @property
    def returns_expired(self) -> bool:
        return self.state_visibility is self.StateVisibility.ReturnExpiredIfNotCleanedUp

    @property
    def is_refreshed_by_reads(self) -> bool:
        return self.update_type is self.UpdateType.OnReadAndWrite


StateTtlConfig.DISABLED = StateTtlConfig(
    timedelta.max, update_type=StateTtlConfig.UpdateType.Disabled
)


def ttl_config(state: type, given: StateTtlConfig | timedelta | None) -> StateTtlConfig | None:
    """The TTL that is declared at a *state*; a timedelta alone is Flink's default of all else.

    Raises:
        ConfigurationError: it is neither.
    """
    if given is None or isinstance(given, StateTtlConfig):
        return given
    if isinstance(given, timedelta):
        return StateTtlConfig(given)
    raise ConfigurationError(
        f"{state.__name__} is given ttl={given!r}; use a timedelta or a StateTtlConfig"
    )
