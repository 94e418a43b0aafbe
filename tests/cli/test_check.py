"""Does `check` refuse what `run` would? Whoever checks first must not find out later."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from streamdp.core.errors import InvalidConfig
from streamdp.ports import StreamTopics
from streamdp.testing.certificates import write_certificates
from streamdp_adapters.sqlite import Sqlite
from streamdp_adapters.sqlite.transport import LARGEST_VALUE
from tests.support.asking import free_port
from tests.support.calling import Streamdp, written


def test_does_check_refuse_what_run_would(
    tmp_path: Path, streamdp: Streamdp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything that a listener reads, by one code path; what is right is accepted."""
    token = tmp_path / "token"
    token.write_text("a token of some length")
    pem = tmp_path / "server.pem"
    write_certificates(tmp_path)
    port, other = free_port(), free_port()
    listen = f'[http]\nlisten = "127.0.0.1:{port}"\n'
    operations = f'[operations]\nlisten = "127.0.0.1:{port}"\n'
    operator_listen = f'[operations]\noperator_listen = "127.0.0.1:{other}"\n'
    wrong = {
        listen + f'token_file = "{tmp_path}/none"': "http.token_file: cannot be read",
        listen + f'certificate_file = "{pem}"\nkey_file = "{tmp_path}/none"': "unusable",
        listen + f'certificate_file = "{pem}"': "TLS needs both files",
        operations + f'token_file = "{tmp_path}/none"': "operations.token_file: cannot be read",
        listen + "most_series = 50": "http.most_series: not a key of `serve`; expected it in the"
            " table [operations]",
        operations + "most_series = 50": "operations.most_series: too few",
        operator_listen: "operations.operator_token_file: missing",
        operator_listen + f'operator_token_file = "{tmp_path}/none"': "cannot be read",
        f'[operations]\noperator_listen = "0.0.0.0:{other}"\noperator_token_file = "{token}"':
            "not on loopback",
        f'{operations}operator_listen = "127.0.0.1:{port}"\noperator_token_file = "{token}"':
            f"another listener has this port; expected a port of its own, got 127.0.0.1:{port}",
    }  # fmt: skip
    path = written(tmp_path)
    text = path.read_text()
    for http, message in wrong.items():
        path.write_text(text + http + "\n")
        for command in ("check", "run"):
            ended = streamdp(command, "-c", str(path))
            assert (ended.code, message in ended.err) == (2, True), (command, http, ended.err)
            assert f"streamdp: {path}: " in ended.err
    path.write_text(text + operations)
    monkeypatch.setenv("STREAMDP__OPERATIONS__TOKEN_FILE", "/none")
    named = streamdp("check", "-c", str(path)).err
    assert named.startswith("streamdp: STREAMDP__OPERATIONS__TOKEN_FILE: cannot be read; expected")
    monkeypatch.undo()
    operator = f'operator_listen = "127.0.0.1:1"\noperator_token_file = "{token}"\n'
    path.write_text(f'{text}{listen}token_file = "{token}"\n{operations}{operator}')
    checked = streamdp("check", "-c", str(path))
    assert checked.code == 0
    assert f"`streamdp serve` answers look-ups at 127.0.0.1:{port}" in checked.out
    assert f"answer probes and metrics at 127.0.0.1:{port}" in checked.out
    path.write_text(text)
    without = streamdp("check", "-c", str(path)).out
    assert "http.listen is not set" in without
    assert "operations.listen is not set" in without


@pytest.mark.parametrize(
    ("transport", "message"),
    [
        ('kind = "sqlite"\npath = "{0}"', "path: no place for a file; expected a file, or a name"),
        ('kind = "sqlite"\npath = "{0}/no/shop.db"', "a name in an existing folder, got {0}/no"),
        ('kind = "kafka"\nbootstrap = "127.0.0.1:1"\nsecurity_protocol = "SSL"\nca_file = "{1}"',
         "certificate_file, key_file: cannot be used; expected PEM files that belong together"),
        ('kind = "kafka"\nbootstrap = "127.0.0.1:1"\nsecurity_protocol = "SASL_SSL"\n'
         'sasl_mechanism = "SCRAM-SHA-512"\nusername = "u"\npassword_file = "{1}"',
         "transport.password_file: empty; expected text in {1}, got nothing"),
        ('kind = "kafka"\nbootstrap = "::1:9092"', "transport.bootstrap: not an address; expected"),
    ],
)  # fmt: skip
def test_does_check_refuse_a_transport_that_run_would(
    tmp_path: Path, streamdp: Streamdp, transport: str, message: str
) -> None:
    """Its files are read, and nothing is connected to."""
    empty = tmp_path / "empty"
    empty.touch()
    path = written(tmp_path)
    table = transport.format(tmp_path, empty)
    path.write_text(re.sub(r'kind = "sqlite"\n.*\npartitions = 2', table, path.read_text()))
    for command in ("check", "run"):
        ended = streamdp(command, "-c", str(path))
        assert (ended.code, message.format(tmp_path, empty) in ended.err) == (2, True), ended.err
        assert "; expected " in ended.err


@pytest.mark.parametrize("name", ["new losses", "löss", "l" * 250, "."])
def test_does_check_refuse_a_topic_that_the_transport_cannot_have(
    tmp_path: Path, streamdp: Streamdp, name: str
) -> None:
    """A file has any topic, Kafka not; the broker is not asked."""
    path = written(tmp_path)
    text = path.read_text().replace("[topics.losses]", f'[topics."{name}"]')
    path.write_text(text.replace('input = "losses"', f'input = "{name}"'))
    assert streamdp("check", "-c", str(path)).code == 0
    kafka = 'kind = "kafka"\nbootstrap = "127.0.0.1:1"'
    path.write_text(re.sub(r'kind = "sqlite"\n.*\npartitions = 2', kafka, path.read_text()))
    for command in ("check", "run"):
        ended = streamdp(command, "-c", str(path))
        assert ended.code == 2
        assert "stream home: no topic of Kafka can have this name; expected 1 to 249" in ended.err


def test_does_check_refuse_values_that_no_file_holds(tmp_path: Path) -> None:
    technology = Sqlite.from_settings({"path": tmp_path / "shop.db"}, app="shop")
    topics = StreamTopics("shop", "home", "losses", largest_value=LARGEST_VALUE)
    technology.check_streams([topics])
    with pytest.raises(InvalidConfig, match="stream home: its largest value does not fit"):
        technology.check_streams([replace(topics, largest_value=LARGEST_VALUE + 1)])
