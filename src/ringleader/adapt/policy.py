"""Which candidate is next: predictions corrected by measurements, trials at the start, hysteresis afterwards.

Pure and deterministic, see `estimates`: every rank runs its own copy on the same numbers.

The aim is the time of a step, which is what happens outside of the collective and the part of the collective that
somebody waits for. Among the candidates whose step is nearly as short as the shortest one, the one that the user likes
best is right: lossy formats are not used for what they do not bring.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ringleader.adapt.estimates import Estimates, Row
from ringleader.adapt.loads import Candidate, Load

__all__ = ["Choice", "Policy", "Settings"]

_RUNS = 2  # the first run of a candidate makes its plan, and so does not count
_CLEAR = 1.5  # a loss by this factor needs no second look
_LOOKS = 2
_DOUBT = 1.25  # on predictions of what was never measured, among equals
_CALM = 0.3
_STEADY = 2.0  # most that one measurement changes what a candidate is thought to take beside the wire
_MODEL_OFF = 4.0  # most by which what was measured corrects the model for what was not
_SHORTEST_HOLD, _LONGEST_HOLD = 3, 256  # calls
_FORGIVEN = 8  # runs as expected, after which a disappointment is the first one again
_SURPRISE = 0.02  # seconds above the expectation that no making of a plan explains


@dataclass(frozen=True)
class Settings:
    """How eager a policy is.

    Attributes
    ----------
    margin
        A change must shorten the step by this part; a return to a better liked format must still be right if it took
        this part longer than predicted.
    tolerance
        A step may be this part longer than the shortest one for the sake of a better liked format.
    trials
        Algorithms of a format that are tried when it is first used.
    """

    margin: float = 0.1
    tolerance: float = 0.02
    trials: int = 3


@dataclass(frozen=True)
class Choice:
    """A decision: the candidate's place in the list, and why."""

    index: int
    reason: str


@dataclass
class _Known:
    """What is known of a candidate: seconds beside the wire, whether measured, runs, and seconds of the last one."""

    load: Load
    rest: float
    runs: int = 0
    measured: bool = False
    last: float = 0.0


@dataclass
class _Hold:
    """A format that took longer than predicted is left alone until a call, and for longer each time."""

    calls: int = 0
    until: int = 0


@dataclass
class Policy:
    """The state of the choice for one kind of call.

    Parameters
    ----------
    candidates, loads
        In any order; equal on all ranks.
    estimates
        Of the network; shared with the policies of other kinds of calls.
    settings
        See `Settings`.
    """

    candidates: list[Candidate]
    loads: list[Load]
    estimates: Estimates
    settings: Settings = field(default_factory=Settings)
    current: int = 0
    calls: int = 0
    outside: float = 0.0
    window: float = 0.0

    def __post_init__(self) -> None:
        self._known = [_Known(load, load.rest) for load in self.loads]
        self._tried: set[int] = set()  # preferences whose algorithms were tried
        self._queue: list[int] = []
        self._holds: dict[int, _Hold] = {each.preference: _Hold() for each in self.candidates}
        self._good_runs = 0
        self._looks = 0
        self._expected = 0.0
        self._steps_seen = 0

    # --------------------------------------------------------------------------------------------------- learning

    def learn(self, rows: Sequence[Row]) -> None:
        """Take in what all ranks measured of the latest call, which ran `current`."""
        self.calls += 1
        known = self._known[self.current]
        self.estimates.learn(rows, known.load.fan)
        # All leave about together, so who came last was in it for the shortest time: that is what it takes.
        last = min(rows, key=lambda row: row.seconds)
        if self.calls > 1:  # before the first call there was no step
            weight = 1.0 if self._steps_seen == 0 else _CALM
            self.outside += weight * (last.outside - self.outside)
            self.window += weight * (last.window - self.window)
            self._steps_seen += 1
        self.estimates.at_least(known.load, last.seconds)
        known.runs += 1
        known.last = last.seconds
        expected = self._expected or last.seconds
        if known.runs >= _RUNS or last.seconds > 2 * expected + _SURPRISE:
            self._correct(known, last.seconds)
        hold = self._holds[self.candidates[self.current].preference]
        if last.seconds > _CLEAR * expected + 1e-3:
            if self._good_runs >= _FORGIVEN:
                hold.calls = 0
            hold.calls = min(_LONGEST_HOLD, max(_SHORTEST_HOLD, 2 * hold.calls))
            hold.until = self.calls + hold.calls
            self._good_runs = 0
        else:
            self._good_runs += 1

    def _correct(self, known: _Known, seconds: float) -> None:
        rest = max(seconds - self.estimates.wire_seconds(known.load), 0.1 * known.load.rest)
        if known.measured:
            change = min(max(rest / max(known.rest, 1e-9), 1 / _STEADY), _STEADY)
            rest = known.rest * (1 + _CALM * (change - 1))
        known.rest, known.measured = rest, True

    def seconds(self, index: int) -> float:
        """What a candidate is expected to take."""
        known = self._known[index]
        wire = self.estimates.wire_seconds(known.load)
        return wire + (known.rest if known.measured else known.load.rest * self._model_off())

    def _model_off(self) -> float:
        ratios = [known.rest / known.load.rest for known in self._known if known.measured and known.load.rest > 0]
        return min(max(sum(ratios) / len(ratios), 1.0), _MODEL_OFF) if ratios else 1.0

    def step(self, seconds: float) -> float:
        """The time of a step in which the collective takes so long."""
        return self.outside + self.window + max(0.0, seconds - self.window)

    # --------------------------------------------------------------------------------------------------- choosing

    def choose(self) -> Choice | None:
        """Decide what the next call runs; None: as before."""
        times = [self.seconds(index) for index in range(len(self.candidates))]
        choice = self._decide(times)
        if choice is not None:
            self.current = choice.index
            self._looks = 0
        self._expected = times[self.current]
        return choice

    def _decide(self, times: list[float]) -> Choice | None:
        if self.calls < _RUNS:
            return None
        if self._queue:
            return self._next_trial(times)
        target = self._target(times)
        preference = self.candidates[target].preference
        if preference not in self._tried and self._worth_trials(preference):
            self._tried.add(preference)
            self._queue = self._trials(preference, times)
            return self._next_trial(times)
        if target == self.current:
            self._looks = 0
            return None
        return self._switch(target, times)

    def _worth_trials(self, preference: int) -> bool:
        """Whether the format is in use, and a faster algorithm would make a difference to steps."""
        exposed = self.seconds(self.current) * (1 + self.settings.margin) > self.window
        return exposed and self.candidates[self.current].preference == preference

    def _switch(self, target: int, times: list[float]) -> Choice | None:
        """Hysteresis: change only for a clear gain, seen twice unless it is large."""
        now, then = self.step(times[self.current]), self.step(times[target])
        limit = self._limit(times)
        better_liked = self.candidates[target].preference < self.candidates[self.current].preference
        if better_liked:
            enough = self.step(times[target] * (1 + self.settings.margin)) <= limit
            clear = False
        else:
            enough = now > then * (1 + self.settings.margin)
            clear = now > then * _CLEAR
        if not enough:
            self._looks = 0
            return None
        self._looks += 1
        if self._looks < _LOOKS and not clear:
            return None
        if better_liked:
            reason = f"the network allows {self.candidates[target].format.name}: a step of {_ms(then)} (now {_ms(now)})"
        else:
            reason = f"a step of {_ms(then)} instead of {_ms(now)}"
        self._good_runs = 0
        return Choice(target, reason)

    def _limit(self, times: list[float]) -> float:
        return min(self.step(each) for each in times) * (1 + self.settings.tolerance)

    def _target(self, times: list[float]) -> int:
        """The best liked format that is nearly as fast as the fastest candidate, with its fastest algorithm."""
        limit = self._limit(times)
        here = self.candidates[self.current].preference
        held = [preference for preference, hold in self._holds.items() if hold.until > self.calls and preference < here]
        free = [
            i
            for i, each in enumerate(self.candidates)
            if each.preference not in held and each.preference >= min(max(held, default=-1) + 1, here)
        ]
        good = [i for i in free if self.step(times[i]) <= limit]
        if not good:
            return min(free, key=lambda i: (self.step(times[i]), i))
        liked = min(self.candidates[i].preference for i in good)
        doubt = [1.0 if known.measured else _DOUBT for known in self._known]
        same = [i for i in good if self.candidates[i].preference == liked]
        return min(same, key=lambda i: (times[i] * doubt[i], i))

    # ----------------------------------------------------------------------------------------------------- trials

    def _trials(self, preference: int, times: list[float]) -> list[int]:
        """The algorithms of a format that may well be its fastest one."""
        same = [i for i, each in enumerate(self.candidates) if each.preference == preference]
        same.sort(key=lambda i: (times[i], i))
        near = [i for i in same if times[i] <= _CLEAR * times[same[0]]][: self.settings.trials]
        return near if len(near) > 1 else []

    def _next_trial(self, times: list[float]) -> Choice | None:
        while self._queue:
            index = self._queue[0]
            known = self._known[index]
            best = min((k.last for k in self._known if k.measured), default=known.last)
            hopeless = known.runs and known.last > 2 * best + _SURPRISE
            if known.runs < _RUNS and not hopeless:
                return None if index == self.current else Choice(index, f"tried: {_ms(times[index])} expected")
            self._queue.pop(0)
        # The best of what was measured, at once: hysteresis is for changes of the network.
        target = self._target(times)
        return None if target == self.current else Choice(target, f"fastest of those tried: {_ms(times[target])}")

    # ------------------------------------------------------------------------------------------- other candidates

    def replace(self, kept: Sequence[int], more: Sequence[tuple[Candidate, Load]]) -> None:
        """Keep some candidates, among them `current`, and add others."""
        current = self.candidates[self.current]
        self.candidates = [self.candidates[i] for i in kept] + [candidate for candidate, _ in more]
        self._known = [self._known[i] for i in kept] + [_Known(load, load.rest) for _, load in more]
        self.loads = [known.load for known in self._known]
        self.current = self.candidates.index(current)
        self._queue = []


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms"
