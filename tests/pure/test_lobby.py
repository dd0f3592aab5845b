"""Who waits at the door, against a reference that knows the rule; and warnings that strangers cannot multiply."""

from __future__ import annotations

import logging
import random
from dataclasses import dataclass

import pytest

from ringleader.runtime import lobby as rules
from ringleader.runtime.lobby import GRACE, Complaints, Lobby, room_for_strangers


@dataclass
class Guest:
    source: str
    since: float
    deadline: float
    speaking: bool = False
    believed: bool = False


def may_go_first(guests: dict[int, Guest], now: float) -> set[int]:
    """The reference: all that the rule allows to give way first; ties between sources leave several."""
    guests = {name: guest for name, guest in guests.items() if not guest.believed}
    load: dict[str, int] = {}
    for guest in guests.values():
        load[guest.source] = load.get(guest.source, 0) + 1
    willing: dict[int, set[int]] = {}
    for source, number in load.items():
        own = {name: g for name, g in guests.items() if g.source == source}
        for speaking in (False, True):
            late = {name: g for name, g in own.items() if g.speaking is speaking and now - g.since >= GRACE}
            if late:
                first = min(g.since for g in late.values())
                willing.setdefault(number, set()).update(n for n, g in late.items() if g.since == first)
                break
    return willing[max(willing)] if willing else set()


@pytest.mark.parametrize("seed", range(20))
def test_the_lobby_keeps_to_its_rule(seed):
    chance = random.Random(seed)
    lobby: Lobby[int] = Lobby(room=12)
    guests: dict[int, Guest] = {}
    now, came = 0.0, 0
    for _ in range(2000):
        now += chance.choice((0.0, 0.001, 0.005, 0.3))
        event = chance.random()
        if event < 0.5:
            if lobby.full:
                allowed = may_go_first(guests, now)
                victim = lobby.give_way(now)
                assert (victim in allowed) if allowed else victim is None
                if victim is None:
                    continue
                lobby.leave(victim)
                del guests[victim]
            source = chance.choice("aaab") + str(chance.randrange(2))
            lobby.enter(came, source, now, now + 5.0)
            guests[came] = Guest(source, now, now + 5.0)
            came += 1
        elif guests and event < 0.75:
            name = chance.choice(list(guests))
            if chance.random() < 0.2:
                lobby.believe(name)
                guests[name].believed = True
            lobby.speaks(name, now)
            if not guests[name].believed:
                guests[name].speaking, guests[name].since = True, now
        elif guests and event < 0.9:
            name = chance.choice(list(guests))
            lobby.leave(name)
            del guests[name]
            lobby.leave(name)  # no harm
        else:
            late = lobby.overdue(now)
            assert set(late) == {n for n, g in guests.items() if now >= g.deadline}
            for name in late:
                lobby.leave(name)
                del guests[name]
        assert len(lobby) == len(guests) and all(name in lobby for name in guests)
        assert lobby.strangers == sum(not g.believed for g in guests.values()) <= lobby.room
        assert lobby.next_deadline() == min((g.deadline for g in guests.values()), default=None)
    for name in list(guests):
        lobby.leave(name)
    assert lobby._groups == {} and lobby._stays == {}


def test_who_is_believed_keeps_its_place_whatever_comes():
    lobby: Lobby[str] = Lobby(room=4)
    lobby.enter("rank", "10.0.0.1", 0.0, 5.0)
    lobby.believe("rank")
    for i in range(1000):
        now = 0.004 * (i + 1)
        if lobby.full:
            victim = lobby.give_way(now)
            if victim is None:
                continue
            assert victim != "rank"
            lobby.leave(victim)
        lobby.enter(f"stranger{i}", "10.0.0.1", now, now + 5.0)
        lobby.speaks(f"stranger{i}", now)
    assert "rank" in lobby and lobby.strangers == 4


@pytest.mark.parametrize(("limit", "room"), [(64, 16), (256, 32), (1024, 128), (1 << 20, 256), (-1, 256)])
def test_room_goes_by_the_limit_of_descriptors(monkeypatch, limit, room):
    monkeypatch.setattr(rules.resource, "getrlimit", lambda _: (limit, limit))
    assert room_for_strangers() == room


def test_complaints_are_limited_in_rate(monkeypatch, caplog):
    clock = [100.0]
    monkeypatch.setattr(rules.time, "monotonic", lambda: clock[0])
    complaints = Complaints(logging.getLogger("test.complaints"), burst=3, interval=10.0)
    with caplog.at_level(logging.WARNING, "test.complaints"):
        for i in range(1000):
            complaints.warn("refused %d", i)
        assert [r.getMessage() for r in caplog.records] == ["refused 0", "refused 1", "refused 2"]
        clock[0] += 10.5
        complaints.warn("refused %d", 1000)
        complaints.warn("refused %d", 1001)
    assert [r.getMessage() for r in caplog.records][3:] == ["refused 1000 (997 more like it since the last such line)"]
