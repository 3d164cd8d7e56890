"""Aggressive training of an encoder: whose turn it is, from losses alone."""

import json

import pytest

from pretrain.objectives.turns import READS, WRITES, Turns
from pretrain.settings.elbo_config import AggressiveConfig
from pretrain.settings.trains import SIDES


def turns_of(**settings: int) -> Turns:
    return Turns(AggressiveConfig(**{"max_encoder_updates": 6, "window": 2} | settings))


def moved(turns: Turns, losses: list[float]) -> str:
    """E for each update of the encoder, D for those of the decoder."""
    letters = ""
    for nats in losses:
        letters += {READS: "E", WRITES: "D", SIDES: "A"}[turns.sides()]
        turns.note(nats)
    return letters


def test_the_decoder_moves_once_the_loss_of_a_window_has_not_fallen() -> None:
    turns = turns_of()
    # Means of windows: 9, 7, 7: not below, so the decoder's turn; then anew.
    assert moved(turns, [10, 8, 8, 6, 7, 7, 5, 9, 9]) == "EEEEEEDEE"
    assert turns.last_turn == 6
    assert moved(turns_of(max_encoder_updates=100), [4, 4, 5, 5, 1, 1]) == "EEEEDE"


def test_there_are_no_more_encoder_updates_than_asked_for() -> None:
    turns = turns_of(max_encoder_updates=3)
    assert moved(turns, [9, 8, 7, 6, 5, 4, 3, 2]) == "EEEDEEED"
    assert turns.scalars()["encoder_updates_per_decoder_update"] == 3


def test_it_ends_for_good_where_mutual_information_no_longer_rises() -> None:
    turns = turns_of()
    assert turns.note_evaluation({"mutual_information_nats": 0.5}) is None
    assert turns.note_evaluation({"mutual_information_nats": 0.6}) is None
    said = turns.note_evaluation({"mutual_information_nats": 0.6})
    assert said is not None and "0.600 nats, not above 0.600" in said
    assert moved(turns, [1, 1, 1, 1]) == "AAAA"
    assert turns.note_evaluation({"mutual_information_nats": 0.1}) is None


@pytest.mark.parametrize("cut", range(9))
def test_a_resumed_run_takes_the_same_turns(cut: int) -> None:
    losses = [10, 8, 8, 6, 7, 7, 5, 9, 9]
    first, second = turns_of(), turns_of()
    letters = moved(first, losses[:cut])
    first.note_evaluation({"mutual_information_nats": 0.5})
    second.restore(json.loads(json.dumps(first.state(), allow_nan=False)))
    assert letters + moved(second, losses[cut:]) == moved(turns_of(), losses)
    assert second.note_evaluation({"mutual_information_nats": 0.4}) is not None


@pytest.mark.parametrize("state", [{"is_over": True}, {"a": 1}, [1]])
def test_a_state_of_another_make_is_refused(state: dict) -> None:
    with pytest.raises(ValueError, match="aggressive training"):
        turns_of().restore(state)
