"""Ranks believe only who knows the ring's key, and what was heard once proves nothing again."""

from __future__ import annotations

import pytest

from sparkring.pipelines.parallel.handshake import Caller, Guest, Stranger

KEY, OTHER_KEY = b"k" * 32, b"o" * 32


def _talk(caller: Caller, guest: Guest, *, piece: int = 100) -> bytes:
    """Both sides, which hear each other's words in pieces; returns the caller's last words."""
    answer = _heard(guest, caller.hello, piece)
    proof = caller.reply(answer)
    assert _heard(guest, proof, piece) == b""
    return proof


def _heard(guest: Guest, data: bytes, piece: int) -> bytes:
    said = b""
    while data:
        part = min(piece, guest.missing_bytes)
        said += guest.hear(data[:part])
        data = data[part:]
    return said


@pytest.mark.parametrize("piece", [1, 7, 100])
def test_two_that_know_the_key_meet_however_their_words_are_cut(piece: int) -> None:
    guest = Guest(KEY, host=2)
    _talk(Caller(KEY, rank=5, host=2), guest, piece=piece)
    assert (guest.missing_bytes, guest.rank) == (0, 5)


def test_a_caller_does_not_believe_a_host_with_another_key() -> None:
    caller = Caller(KEY, rank=5, host=2)
    with pytest.raises(Stranger):
        caller.reply(Guest(OTHER_KEY, host=2).hear(caller.hello))


def test_a_host_does_not_believe_a_caller_with_another_key() -> None:
    caller, liar, guest = Caller(KEY, rank=5, host=2), Caller(OTHER_KEY, rank=5, host=2), Guest(KEY, host=2)
    answer = guest.hear(caller.hello)
    with pytest.raises(Stranger):
        guest.hear(liar.reply(Guest(OTHER_KEY, host=2).hear(liar.hello)))
    assert caller.reply(answer), "the control"


def test_a_caller_that_reached_another_rank_than_it_asked_for_does_not_believe_it() -> None:
    caller = Caller(KEY, rank=5, host=2)
    with pytest.raises(Stranger):
        caller.reply(Guest(KEY, host=3).hear(caller.hello))


def test_a_caller_cannot_say_afterwards_that_it_is_another_rank() -> None:
    caller, guest = Caller(KEY, rank=5, host=2), Guest(KEY, host=2)
    answer = guest.hear(Caller(KEY, rank=4, host=2).hello)
    with pytest.raises(Stranger):
        caller.reply(answer)


def test_what_was_heard_once_proves_nothing_again() -> None:
    caller, guest = Caller(KEY, rank=5, host=2), Guest(KEY, host=2)
    proof = _talk(caller, guest)
    again = Guest(KEY, host=2)
    again.hear(caller.hello)
    with pytest.raises(Stranger):
        again.hear(proof)


def test_a_host_s_own_proof_is_no_caller_s() -> None:
    """Who sends a rank's words back to another one of the ring proves nothing either."""
    guest = Guest(KEY, host=2)
    hello = Caller(KEY, rank=3, host=2).hello
    answer = guest.hear(hello)
    with pytest.raises(Stranger):
        guest.hear(answer[32:])
