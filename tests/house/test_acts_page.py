"""Acts are declared once: their page is rendered from them, and each face has each field."""

from __future__ import annotations

import pytest

from sluice.errors import ConfigurationError
from sluice.surface.acts import ACTS, ALL, RESTORE, Act, Kind
from tests.house.acts_page import PAGE, PLACES, written


def test_the_page_is_what_the_acts_declare() -> None:
    assert PAGE.read_text() == written(), "run: python -m tests.house.acts_page"


@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.name)
def test_what_a_face_does_not_have_says_why(act: Act) -> None:
    silent = [field.name for field in act.fields if field.on != ALL and not field.why_not]

    assert silent == []


@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.name)
def test_a_field_that_is_not_given_means_its_default(act: Act) -> None:
    given = act.given({})

    assert given == {field.name: field.empty for field in act.fields}
    for field in act.fields:
        if field.choices:
            assert given[field.name] in field.choices
        assert field.flag_for is None or field.flag_for != given[field.name]
        assert field.kind is not Kind.FLAG or isinstance(given[field.name], bool)


def test_only_the_checkpoint_to_restore_may_be_the_latest() -> None:
    assert RESTORE.given({"checkpoint_id": "latest"})["checkpoint_id"] is None
    with pytest.raises(ConfigurationError, match="'latest' is no number"):
        RESTORE.given({"ignore_in_flight_of": "latest"})


def test_every_act_has_a_command_and_a_route() -> None:
    assert {act.name for act in ACTS} == set(PLACES)
