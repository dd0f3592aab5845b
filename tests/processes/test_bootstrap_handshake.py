"""The handshake: who gets in, who does not, and what each side is told."""

from __future__ import annotations

import os
import socket
import threading
import time

import pytest

from ringleader.runtime import handshake
from ringleader.runtime.handshake import (
    AuthenticationError,
    Conversation,
    Hello,
    Purpose,
    accepting,
    converse,
    initiating,
)

SECRET = b"0123456789abcdef"
ME = Hello(Purpose.DATA, "group", 3, index=2)
HELLO_SIZE = len(ME.pack(bytes(32)))


def meet(
    *, theirs=SECRET, me=ME, peer_rank=1, group="group", rank=1, expected=lambda hello: True, family=socket.AF_UNIX
):
    """Both sides' results, a value or an exception each: (initiator, acceptor)."""
    a, b = socket.socketpair(family)
    results: dict[str, object] = {}

    def side(name, sock, steps):
        try:
            results[name] = converse(sock, steps, time.monotonic() + 10)
        except (AuthenticationError, EOFError, OSError) as error:
            results[name] = error
        if isinstance(results[name], Exception):
            sock.close()

    thread = threading.Thread(target=side, args=("acceptor", b, accepting(SECRET, group, rank, expected)))
    thread.start()
    side("initiator", a, initiating(theirs, me, peer_rank))
    thread.join()
    if not isinstance(results["initiator"], Exception):
        a.sendall(b"what follows")
        assert b.recv(100) == b"what follows"  # nothing was read ahead
    a.close()
    b.close()
    return results["initiator"], results["acceptor"]


def test_both_know_each_other_afterwards():
    assert meet() == (None, ME)


def test_wrong_secret():
    initiator, acceptor = meet(theirs=b"another secret..")
    assert isinstance(initiator, AuthenticationError) and "secret differs" in str(initiator)
    assert isinstance(acceptor, AuthenticationError) and "claimed to be rank 3" in str(acceptor)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"group": "other group"}, "was not expected"),
        ({"expected": lambda hello: hello.index != 2}, "was not expected"),
        ({"peer_rank": 2}, "expected rank 2 .* but rank 1 answered"),
    ],
)
def test_the_right_secret_is_not_enough(changes, told):
    initiator, _ = meet(**changes)
    assert isinstance(initiator, AuthenticationError)
    with pytest.raises(AuthenticationError, match=told):
        raise initiator


def play(steps, *messages):
    """Feed an endless supply of given messages to one side by hand; return what it sends."""
    sent, queue = [], list(messages)
    step = next(steps)
    while True:
        if isinstance(step, int):
            if not queue:
                return sent
            assert len(queue[0]) == step
            step = steps.send(queue.pop(0))
        else:
            sent.append(step)
            step = steps.send(b"")


def test_a_recorded_conversation_cannot_be_played_again():
    initiator, acceptor = initiating(SECRET, ME, 1), accepting(SECRET, "group", 1, lambda hello: True)
    hello = next(initiator)
    assert next(acceptor) == HELLO_SIZE
    challenge = acceptor.send(hello)
    initiator.send(b"")
    proof = initiator.send(challenge)
    assert acceptor.send(b"") == len(proof)
    verdict = acceptor.send(proof)
    assert len(verdict) == 33
    with pytest.raises(AuthenticationError, match="did not know the job's secret"):
        play(accepting(SECRET, "group", 1, lambda hello: True), hello, proof)
    with pytest.raises(AuthenticationError, match="does not know the job's secret"):
        play(initiating(SECRET, ME, 1), challenge, verdict[:1], verdict[1:])


def test_an_acceptor_without_the_secret_is_found_out():
    """It may say "welcome", but it cannot prove that it knows the secret."""
    mine = Hello(Purpose.DATA, "group", 1, index=2).pack(os.urandom(32))
    with pytest.raises(AuthenticationError, match="does not know"):
        play(initiating(SECRET, ME, 1), mine, bytes([handshake._Status.WELCOME]), os.urandom(32))


def test_an_initiator_that_is_reflected_does_not_authenticate_itself():
    """An attacker who sends everything back that it gets learns nothing that passes."""
    initiator = initiating(SECRET, ME, 3)
    hello = next(initiator)
    initiator.send(b"")
    proof = initiator.send(hello)  # its own hello as the challenge
    with pytest.raises(AuthenticationError):
        assert initiator.send(b"") == 1
        assert initiator.send(bytes([handshake._Status.WELCOME])) == 32
        initiator.send(proof)


@pytest.mark.parametrize("position", range(0, HELLO_SIZE, 5))
def test_every_byte_of_the_hello_is_bound(position):
    """Changed on the way, the conversation fails on the acceptor's side, whatever the byte means."""
    initiator, acceptor = initiating(SECRET, ME, 1), accepting(SECRET, "group", 1, lambda hello: True)
    hello = bytearray(next(initiator))
    hello[position] ^= 1
    next(acceptor)
    with pytest.raises(AuthenticationError):
        challenge = acceptor.send(bytes(hello))
        initiator.send(b"")
        proof = initiator.send(challenge)
        acceptor.send(b"")
        acceptor.send(proof)
        acceptor.send(b"")


def test_versions_and_strangers_are_told_apart():
    other = ME.pack(bytes(32))
    with pytest.raises(AuthenticationError, match="protocol version 7"):
        play(accepting(SECRET, "group", 1, lambda hello: True), other[:8] + b"\0\7" + other[10:])
    with pytest.raises(AuthenticationError, match="does not speak"):
        play(accepting(SECRET, "group", 1, lambda hello: True), b"GET / HTTP/1.1".ljust(HELLO_SIZE))


def test_a_stranger_learns_a_nonce_and_nothing_else():
    seen = []
    for _ in range(2):
        acceptor = accepting(SECRET, "group", 1, lambda hello: True)
        next(acceptor)
        seen.append(acceptor.send(ME.pack(bytes(32))))
    assert len(seen[0]) == HELLO_SIZE and seen[0][:-48] == seen[1][:-48] and seen[0][-48:] != seen[1][-48:]
    assert seen[0][-16:] == bytes(16)  # no tag: a stranger gets nothing that he could try secrets on


@pytest.mark.parametrize(
    ("secret", "guess", "believed"),
    [(SECRET, None, True), (b"another secret..", None, False), (lambda _: SECRET, None, False),
     (lambda _: SECRET, SECRET, True), (lambda _: SECRET, b"an old key......", False)],
)  # fmt: skip
def test_only_the_secret_makes_a_hello_that_is_believed(secret, guess, believed):
    noted = []
    acceptor = accepting(SECRET, "group", 1, lambda hello: True, believe=lambda: noted.append(1))
    next(acceptor)
    acceptor.send(next(initiating(secret, ME, 1, guess)))
    assert noted == [1] * believed


def test_a_key_is_found_by_its_id():
    key_id = bytes(range(16))
    asked = []

    def find(told):
        asked.append(told)
        return SECRET

    initiator, acceptor = initiating(find, ME, 1), accepting(SECRET, "group", 1, lambda hello: True, key_id)
    hello = next(initiator)
    next(acceptor)
    challenge = acceptor.send(hello)
    initiator.send(b"")
    proof = initiator.send(challenge)
    acceptor.send(b"")
    assert acceptor.send(proof)[0] == handshake._Status.WELCOME
    assert asked == [key_id]


def test_deadline_and_hang_up():
    a, b = socket.socketpair()
    with a, b:
        with pytest.raises(TimeoutError):
            converse(a, accepting(SECRET, "group", 1, lambda hello: True), time.monotonic() + 0.1)
        conversation = Conversation(b, accepting(SECRET, "group", 1, lambda hello: True), time.monotonic())
        assert conversation.overdue and not conversation.advance()
        a.close()
        with pytest.raises(EOFError):
            conversation.advance()


def test_a_byte_at_a_time():
    a, b = socket.socketpair()
    with a, b:
        acceptor = Conversation(b, accepting(SECRET, "group", 1, lambda hello: True), time.monotonic() + 10)
        for byte in ME.pack(bytes(32)):
            assert not acceptor.advance()
            a.sendall(bytes([byte]))
        assert not acceptor.advance()
        assert len(a.recv(1000)) == HELLO_SIZE
