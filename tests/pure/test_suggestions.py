"""Every argument, setting and option that takes one of several names suggests the nearest to one that is unknown."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ringleader as rl
from ringleader.cli.main import main
from ringleader.errors import RingleaderError
from ringleader.runtime.config import SETTINGS, SUBSYSTEMS, Config

SOURCES = Path(rl.__file__).parent
X = np.ones(4, np.float32)


@pytest.fixture(scope="module")
def comm():
    with rl.init(rank=0, size=1) as comm:
        yield comm


CALLS: dict[str, tuple[Callable[[Any], object], str]] = {
    "op": (lambda c: c.all_reduce(X, "mean"), "avg"),
    "op misspelt": (lambda c: c.reduce(X, 0, "prodd"), "prod"),
    "op of another library": (lambda c: c.reduce_scatter(X, None, "product"), "prod"),
    "op, persistent": (lambda c: c.all_reduce_init(X, "maximum"), "max"),
    "op, compressed": (lambda c: c.all_reduce(X, "average", compression=rl.compress.FP16()), "avg"),
    "wire": (lambda c: c.all_reduce(X, wire="bf17"), "bf16"),
    "wire between nodes": (lambda c: c.all_reduce(X, wire={"inter": "1bit"}), "onebit"),
    "wire, persistent": (lambda c: c.all_reduce_init(X, wire="int9"), "int8"),
    "round_to_wire": (lambda c: rl.round_to_wire(X, "in8"), "int8"),
    "algorithm": (lambda c: c.all_reduce(X, algorithm="rng"), "ring"),
    "algorithm by a wrong alias": (lambda c: c.broadcast(X, algorithm="binomal"), "binomial"),
    "algorithm of a barrier": (lambda c: c.barrier(algorithm="disemination"), "dissemination"),
    "algorithm's parameter": (lambda c: c.all_reduce(X, algorithm="ring:segment=2"), "segments"),
    "explain": (lambda c: c.explain("allreduces", 8), "all_reduce"),
    "compression": (lambda c: c.all_reduce(X, compression="fp16"), "FP16()"),
    "compression misspelt": (lambda c: c.all_reduce(X, compression="topkk"), "TopK()"),
    "policy": (lambda c: rl.compress.Policy("powersdg"), "PowerSGD()"),  # type: ignore[arg-type]
    "error feedback": (lambda c: rl.compress.ErrorFeedback("onebit"), "OneBit()"),  # type: ignore[arg-type]
    "adaptive policies": (lambda c: rl.adapt.allowed(["bf61"], None), "bf16"),
    "setting by keyword": (lambda c: rl.init(rank=0, size=1, transprt="shm"), "transport"),
    "value by keyword": (lambda c: rl.init(rank=0, size=1, transport="shmem"), "shm"),
    "schedule": (lambda c: rl.schedule.Builder("all_recude", n=2, chunks=1), "all_reduce"),
    "build": (lambda c: rl.algorithms.build("all_gather", "brucks", 4), "bruck"),
    "rules": (lambda c: rl.tune.Rule("all_reduce", algorithm="ringg"), "ring"),
    "rule's protocol": (lambda c: rl.tune.Rule("all_reduce", protocol="pul"), "pull"),
    "rule's wire": (lambda c: rl.tune.Rule("all_reduce", wire="itn8"), "int8"),
}


@pytest.mark.parametrize("kind", CALLS)
def test_calls(comm, kind: str) -> None:
    call, near = CALLS[kind]
    with pytest.raises((RingleaderError, ValueError), match=f"did you mean '?{re.escape(near)}'?\\?"):
        call(comm)


VALUES = {
    "TRANSPORT": ("infiniband", "ucx"), "NET": ("tcpp", "tcp"), "WIRE": ("onebyte", "onebit"),
    "INSIDE": ("ncl", "nccl"), "ISA": ("avx", "avx2"), "DEBUG": ("TRACES", "TRACE"), "PROTO": ("pul", "pull"),
    "SOCKET_FAMILY": ("INET", "AF_INET"), "DEBUG_SUBSYS": ("INIT,COMPRES", "COMPRESS"),
}  # fmt: skip


@pytest.mark.parametrize("name", VALUES)
def test_values_of_settings(name: str) -> None:
    value, near = VALUES[name]
    with pytest.raises(ValueError, match=f"RINGLEADER_{name}='{value}' is not valid.*did you mean '{near}'"):
        Config.from_environment({f"RINGLEADER_{name}": value})


def test_every_setting_that_is_a_choice_is_tried_above() -> None:
    choices = {s.name for s in SETTINGS if "choice" in s.parse.__qualname__ or "several" in s.parse.__qualname__}
    assert choices <= set(VALUES), choices - set(VALUES)


@pytest.mark.parametrize("setting", [s.name for s in SETTINGS])
def test_misspelt_variables(setting: str) -> None:
    wrong = f"{setting[:-1]}{setting[-1]}X"
    with pytest.raises(ValueError, match=f"unknown setting RINGLEADER_{wrong}; did you mean RINGLEADER_"):
        Config.from_environment({f"RINGLEADER_{wrong}": "1"})


@pytest.mark.parametrize(
    ("arguments", "near"),
    [
        (["bench", "--op", "allreduse"], "all_reduce"),
        (["bench", "--transport", "rdma"], "ucx"),
        (["bench", "-d", "flaot"], "float"),
        (["bench", "-o", "mean"], "avg"),
        (["bench", "--memory", "registred"], "registered"),
        (["bench", "--protocol", "pusch"], "push"),
        (["bench", "--vs", "glo"], "gloo"),
        (["bench", "--algorithm", "rng"], "ring"),
        (["verify", "ring", "--mode", "exakt"], "exact"),
        (["draw", "ring", "--protocol", "write"], "push"),
        (["draw", "ringg"], "ring"),
        (["explain", "allreduce", "1M", "-n", "2", "--wire", "in8"], "int8"),
        (["tune", "--places", "2:shmm"], "shm"),
        (["export", "ring", "-o", "x.xml", "--protocol", "LL182"], "LL128"),
        (["rules", "check", "-f", "omp", __file__], "ompi"),
        (["brench"], "bench"),
    ],
)
def test_options(capsys, arguments: list[str], near: str) -> None:
    assert main(arguments) == 2
    text = capsys.readouterr().err
    assert len(text.splitlines()) == 1 and f"id you mean '{near}'" in text, text


@pytest.mark.parametrize("name", ["f16", "fp16", "float16", "half", "FP16"])
def test_one_format_has_all_its_names_everywhere(comm, name: str) -> None:
    lossy = np.float32([0.1])
    rounded = lossy.astype(np.float16).astype(np.float32)
    np.testing.assert_array_equal(rl.round_to_wire(lossy, name), rounded)
    assert comm.all_reduce(X.copy(), wire=name).tolist() == [1, 1, 1, 1]
    assert comm.all_reduce(X.copy(), wire={"inter": name}).tolist() == [1, 1, 1, 1]
    assert Config.from_environment({"RINGLEADER_WIRE": name}).wire == "f16"
    assert rl.tune.Rule("all_reduce", wire=name).wire == "f16"
    assert [each.name for each in rl.adapt.allowed([name], None)] == ["f32", "f16"]
    from ringleader.cli.patterns import kind_of

    assert kind_of(name).name == "float16"


def test_every_logger_is_a_subsystem() -> None:
    """What is logged can be asked for: all names of loggers in the sources are in the setting's list."""
    used = set()
    for path in SOURCES.rglob("*.py"):
        used |= set(re.findall(r'\b(?:get)?[lL]ogger\("(?:ringleader\.)?([A-Z0-9_]+)"\)', path.read_text()))
    assert {"INIT", "COMPRESS", "ADAPT"} <= used <= set(SUBSYSTEMS), used - set(SUBSYSTEMS)
    for name in SUBSYSTEMS:
        assert Config.from_environment({"RINGLEADER_DEBUG_SUBSYS": name}).debug_subsys == (name,)
    existing = {n for n in logging.root.manager.loggerDict if n.startswith("ringleader.")}
    assert existing <= {f"ringleader.{name}" for name in SUBSYSTEMS}


@pytest.mark.parametrize(
    "command", ["", "bench", "verify", "draw", "tune", "overlap", "rules", "rules import", "export"]
)
def test_help_shows_texts_as_they_are(capsys, command: str) -> None:
    assert main([*command.split(), "--help"]) == 0
    text = capsys.readouterr().out
    assert text.isascii(), [letter for letter in text if not letter.isascii()]
    if not command:
        assert "a:b," in text


def test_output_shows_names_as_they_are(capsys, tmp_path) -> None:
    """Neither colons nor brackets in file names are taken for emojis and styles."""
    path = tmp_path / "[bold]a:b:+1:.json"
    assert main(["export", "ring", "-n", "2", "-o", str(path)]) == 0
    assert path.name in capsys.readouterr().out
    assert main(["draw", "ring", "-n", "2", "--svg", str(path.with_suffix(".svg"))]) == 0
    assert path.with_suffix(".svg").name in capsys.readouterr().out
    rules = tmp_path / "[red]:b:.json"
    rules.write_text(rl.tune.dumps(rl.tune.BUILT_IN))
    for command in (["rules", str(rules)], ["rules", "check", str(rules)]):
        assert main(command) == 0
        assert rules.name in capsys.readouterr().out


@pytest.mark.parametrize("content", ["hello world\n", '{"a": 1}', "<x/>", "a,b\n"])
def test_files_of_no_known_kind(capsys, tmp_path, content: str) -> None:
    """Whoever reads a file says what kinds there are."""
    path = tmp_path / "some.txt"
    path.write_text(content)
    for command in (["rules", "check", str(path)], ["rules", "import", str(path)]):
        assert main(command) == 2
        text = capsys.readouterr().err
        assert all(kind in text for kind in ("ringleader", "ompi", "ompi-json", "nccl-csv")), text
    assert main(["--load", str(path), "algorithms"]) == 2
    text = capsys.readouterr().err
    assert all(kind in text for kind in (".py", ".xml", ".json", "MSCCL++")), text
    with pytest.raises(RingleaderError, match=r"of no known kind; known are: MSCCL \(.xml\), MSCCL\+\+ \(.json\)"):
        rl.algorithms.load_msccl(path)
    with pytest.raises(RingleaderError, match=r"some\.txt, line 1.*(expected|valid)"):
        rl.tune.load(path)
    assert main(["overlap", str(path)]) == 2
    assert "timeline" in capsys.readouterr().err
