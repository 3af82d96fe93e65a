"""The names that may be part of a key; refusals do not depend on ``assert``."""

from __future__ import annotations

import pytest

from sluice.core.ids import CheckpointId
from sluice.errors import ConfigurationError, ProtocolViolation
from sluice.protocol.keys import PipelinePaths, check_key, check_prefix, is_answer

PATHS = PipelinePaths("auctions")
ODD_NAMES = ["", ".", "..", "../../x", "a/b", "/a", "-a", "a b", "a\n", "ä", "a" * 129]


@pytest.mark.parametrize("name", ODD_NAMES)
def test_no_key_is_built_of_a_name_that_a_savepoint_cannot_have(name: str) -> None:
    with pytest.raises(ConfigurationError, match="use up to 128 of A-Z"):
        PATHS.savepoint_metadata(name)


@pytest.mark.parametrize("uid", [*ODD_NAMES, "Auctions", "1a", "a.b", "a" * 64])
def test_no_key_is_built_of_what_is_no_uid(uid: str) -> None:
    with pytest.raises(ConfigurationError, match="use up to 63 of a-z, 0-9 and _"):
        PipelinePaths(uid)


@pytest.mark.parametrize(
    "key", ["", "/a", "a/", "a//b", "..", "a/../b", "./a", "a/.", "a/.sluice-tmp-1", "../a"]
)
def test_what_leads_elsewhere_is_no_key(key: str) -> None:
    with pytest.raises(ProtocolViolation, match="is no key"):
        check_key(key)


@pytest.mark.parametrize("key", ["a", "..a/.b", "a/...", "a./b..", "a/.sluice-tmp", "a\n/b\n", "ä"])
def test_a_name_with_dots_in_it_is_one(key: str) -> None:
    check_key(key)


def test_a_prefix_ends_anywhere_and_leads_nowhere_else() -> None:
    for prefix in ("", "a", "a/", "a/b", "a/.slu"):
        check_prefix(prefix)

    for prefix in ("../", "a/../b", "/", "//a", "a/./"):
        with pytest.raises(ProtocolViolation, match="is no key"):
            check_prefix(prefix)


def test_only_what_we_write_is_taken_for_ours() -> None:
    assert PATHS.is_journal_entry(PATHS.journal_entry(7))
    assert PATHS.is_early_publish(PATHS.early_publish(7, "alerts"))
    assert PATHS.is_compaction(PATHS.compaction("a", CheckpointId(7)))
    assert PATHS.savepoint_of(PATHS.savepoint_metadata("mine")) == "mine"
    assert is_answer("auctions/checkpoints/0000000003/acks/count_bids/11.2")

    for key in ("x", "7", "000000000007/x", "00000000000x", "auctions/savepoints/m/_metadata"):
        assert not PATHS.is_journal_entry(PATHS.journal() + key)
    assert not PATHS.is_early_publish(PATHS.early_publishes() + "notes.txt")
    assert not PATHS.is_compaction(PATHS.compactions("a") + "copy/record")
    assert PATHS.savepoint_of(PATHS.savepoints() + "ä/_metadata") is None
    assert not is_answer("auctions/checkpoints/0000000003/acks/count_bids/.DS_Store")
