"""Settings: parsing, refusal of what is unknown or wrong, and the documentation that must show the same table."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest

from ringleader.errors import InvalidArgument
from ringleader.runtime import config as config_module
from ringleader.runtime import ucx
from ringleader.runtime.config import SETTINGS, SUBSYSTEMS, Config, logger, settings_table, setup_logging

DOCS = Path(__file__).parents[2] / "docs" / "configuration.md"


def read(**variables: str) -> Config:
    return Config.from_environment({f"RINGLEADER_{name}": value for name, value in variables.items()})


def test_defaults_need_no_environment():
    config = Config.from_environment({"PATH": "/bin", "NCCL_ALGO": "Ring"})
    assert config == Config()
    assert config.use_shm and config.channels == 2


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("ALGO", " ring ", "ring"),
        ("PROTO", "PUSH", "push"),
        ("TRANSPORT", "tcp", "tcp"),
        ("SHM_DISABLE", "yes", True),
        ("SHM_DISABLE", "0", False),
        ("BUFFSIZE", "4194304", 4 << 20),
        ("BUFFSIZE", "4m", 4 << 20),
        ("BUFFSIZE", "64 KiB", 64 << 10),
        ("SOCKET_FAMILY", "af_inet6", "AF_INET6"),
        ("SOCKET_IFNAME", "^docker,lo", "^docker,lo"),
        ("TIMEOUT", "2.5", 2.5),
        ("SPIN_US", "0", 0),
        ("DEBUG", "info", "INFO"),
        ("DEBUG_SUBSYS", "net,init", ("INIT", "NET")),
        ("DEBUG_SUBSYS", "^COLL", tuple(s for s in SUBSYSTEMS if s != "COLL")),
        ("DEBUG_SUBSYS", "ALL", SUBSYSTEMS),
    ],
)
def test_values(name, text, value):
    assert getattr(read(**{name: text}), name.lower()) == value


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("PROTO", "ll128", "auto, pull or push"),
        ("TRANSPORT", "ib", "auto, shm, tcp or ucx"),
        ("SHM_DISABLE", "2", "0 or 1"),
        ("BUFFSIZE", "4T", "K, M or G"),
        ("BUFFSIZE", "100", "from 4K"),
        ("BUFFSIZE", "-4K", "from 4K"),
        ("TIMEOUT", "0", "above 0"),
        ("TIMEOUT", "inf", "above 0"),
        ("TIMEOUT", "nan", "above 0"),
        ("TIMEOUT", "soon", "seconds"),
        ("MIN_NCHANNELS", "0", "1 to 64"),
        ("DEBUG", "LOUD", "VERSION, WARN, INFO or TRACE"),
        ("DEBUG_SUBSYS", "NETT", "NET"),
        ("SOCKET_IFNAME", " ", "prefixes"),
        ("NET", "ib", "tcp or ucx"),
        ("IB_HCA", "mlx5_0:x", "devices"),
        ("IB_HCA", "mlx5_0,,mlx5_1", "devices"),
        ("IB_TIMEOUT", "32", "1 to 31"),
        ("RANK", "first", "integer from 0"),
        ("ISA", "sse9", "avx512"),
    ],
)
def test_bad_values_say_what_is_expected(name, text, expected):
    with pytest.raises(InvalidArgument, match=re.escape(f"RINGLEADER_{name}={text!r}")) as caught:
        read(**{name: text})
    assert expected in str(caught.value)


def test_unknown_name_lists_the_valid_ones_and_suggests_the_nearest():
    with pytest.raises(InvalidArgument, match="did you mean RINGLEADER_TIMEOUT") as caught:
        read(TIMEOUTS="3")
    for setting in SETTINGS:
        assert setting.variable in str(caught.value)
    with pytest.raises(InvalidArgument, match="unknown setting 'speed'"):
        Config.from_environment({}, speed=3)


def test_overrides_win_and_are_checked_alike():
    environ = {"RINGLEADER_TIMEOUT": "3", "RINGLEADER_TRANSPORT": "tcp"}
    config = Config.from_environment(environ, timeout=5.5, transport=None, shm_disable=True, debug_subsys=("NET",))
    assert (config.timeout, config.transport, config.shm_disable, config.debug_subsys) == (5.5, "tcp", True, ("NET",))
    with pytest.raises(InvalidArgument, match="TIMEOUT='-1'"):
        Config.from_environment({}, timeout=-1)


def test_contradictions():
    with pytest.raises(InvalidArgument, match="contradict"):
        read(TRANSPORT="shm", SHM_DISABLE="1")
    for transport, net in (("tcp", "ucx"), ("ucx", "tcp")):
        with pytest.raises(InvalidArgument, match="contradict"):
            read(TRANSPORT=transport, NET=net)
    with pytest.raises(InvalidArgument, match="above"):
        read(MIN_NCHANNELS="4", MAX_NCHANNELS="3")


@pytest.mark.parametrize(
    ("given", "network", "shm"),
    [
        ({}, "tcp", True),
        ({"NET": "ucx"}, "ucx", True),
        ({"NET": "ucx", "SHM_DISABLE": "1"}, "ucx", False),
        ({"TRANSPORT": "ucx"}, "ucx", False),
        ({"TRANSPORT": "tcp"}, "tcp", False),
    ],
)
def test_what_carries_data(given, network, shm):
    config = read(**given)
    assert (config.network, config.use_shm) == (network, shm)


@pytest.mark.parametrize(
    ("text", "devices"),
    [("mlx5_0", "mlx5_0:1"), ("mlx5_0, mlx5_1:2", "mlx5_0:1,mlx5_1:2"), ("^mlx5_3", "^mlx5_3:1")],
)
def test_infiniband_devices_are_told_to_ucx_with_their_ports(text, devices):
    assert ucx.settings(read(IB_HCA=text)) == {"RNDV_SCHEME": "get_zcopy", "NET_DEVICES": devices}
    assert ucx.settings(Config()) == {"RNDV_SCHEME": "get_zcopy"} and ucx.environment(Config()) == {}


def test_the_ucx_library_that_is_asked_for_is_the_only_one_tried(tmp_path):
    assert ucx.libraries(read(UCX_LIBRARY=str(tmp_path))) == [str(tmp_path / "libucp.so.0")]
    assert ucx.libraries(Config())[0] == "libucp.so.0"


@pytest.mark.parametrize(("low", "high", "channels"), [(1, 64, 2), (4, 8, 4), (1, 1, 1), (3, 3, 3)])
def test_channels(low, high, channels):
    assert read(MIN_NCHANNELS=str(low), MAX_NCHANNELS=str(high)).channels == channels


def test_secret_is_never_shown():
    assert "correct horse battery" not in repr(read(SECRET="correct horse battery"))
    with pytest.raises(InvalidArgument) as caught:
        read(SECRET="short secret")
    assert "short secret" not in str(caught.value)


@pytest.mark.parametrize("setting", [s for s in SETTINGS if s.section == "settings"], ids=lambda s: s.name)
def test_documented_defaults_are_the_defaults(setting):
    value = getattr(Config(), setting.name.lower())
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        assert setting.parse(setting.default) == value
    elif isinstance(value, str):
        assert setting.default == value


def test_documentation_shows_exactly_the_table():
    text = DOCS.read_text()
    for section in ("settings", "launch"):
        assert settings_table(section) in text
    rows = re.findall(r"^\| `(RINGLEADER_\w+)`", text, re.MULTILINE)
    assert rows == [s.variable for s in SETTINGS if s.section == "settings"] + [
        s.variable for s in SETTINGS if s.section == "launch"
    ]


# ------------------------------------------------------------------------------------------------------------ logging


@pytest.fixture
def clean_logging():
    root = logging.getLogger("ringleader")
    before = root.handlers[:], root.level, root.propagate
    yield root
    for handler in root.handlers:
        if handler not in before[0]:
            handler.close()
    root.handlers, root.level, root.propagate = before
    config_module._handler = None


def test_log_goes_to_the_file_and_keeps_to_the_subsystems(tmp_path, clean_logging):
    setup_logging(read(DEBUG="INFO", DEBUG_SUBSYS="NET", DEBUG_FILE=str(tmp_path / "log.%p")))
    logger("NET").info("interface eth7")
    logger("NET").debug("too fine")
    logger("COLL").info("not asked for")
    logger("COLL").warning("always told")
    (file,) = tmp_path.iterdir()
    text = file.read_text()
    assert re.fullmatch(r"log\.\d+", file.name)
    assert "Ringleader 0" in text and "interface eth7" in text and "always told" in text
    assert "too fine" not in text and "not asked for" not in text


def test_unwritable_log_file_does_not_end_the_run(tmp_path, capsys, clean_logging):
    setup_logging(read(DEBUG="WARN", DEBUG_FILE=str(tmp_path / "no" / "such" / "folder")))
    logger("NET").warning("still told")
    assert "still told" in capsys.readouterr().err


def test_without_debug_the_logging_of_the_application_is_left_alone(clean_logging):
    before = clean_logging.handlers[:]
    setup_logging(Config())
    assert clean_logging.handlers == before and clean_logging.propagate


def test_unknown_subsystem():
    with pytest.raises(InvalidArgument, match="INIT, NET"):
        logger("NETT")
