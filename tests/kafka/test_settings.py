"""Are the settings of a cluster understood, bad ones refused with a remedy, and secrets kept?"""

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from streamdp.core.errors import InvalidConfig
from streamdp.testing.certificates import write_certificates
from streamdp_adapters.kafka import KafkaTechnology
from streamdp_adapters.kafka.settings import KafkaSettings, TokenFile

SASL = {
    "bootstrap": "broker:9093",
    "security_protocol": "SASL_SSL",
    "sasl_mechanism": "SCRAM-SHA-512",
    "username": "alice",
    "password": "xyzzy",
}


def test_one_line_is_enough_for_a_plain_broker() -> None:
    client = KafkaSettings.parse({"bootstrap": "one:9092, [::1]:9093"}).client()
    assert client["bootstrap_servers"] == ["one:9092", "[::1]:9093"]
    assert client["security_protocol"] == "PLAINTEXT"


def test_text_of_the_environment_becomes_the_right_type(tmp_path: Path) -> None:
    (tmp_path / "word").write_text("xyzzy\n")
    settings = KafkaSettings.parse(
        {
            **{name: value for name, value in SASL.items() if name != "password"},
            "password_file": str(tmp_path / "word"),
            "single_broker": "true",
            "session_timeout_ms": "6000",
        }
    )
    assert settings.single_broker
    assert settings.session_timeout_ms == 6000
    assert settings.client()["sasl_plain_password"] == "xyzzy"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bootstrap": "nowhere"}, "transport.bootstrap: not an address"),
        ({"bootstrap": "b:1, kafka://u:xyzzy@h"}, 'such as "localhost:9092", got other text as'),
        ({"bootstrap": "u:xyzzy@h:1"}, "transport.bootstrap: not an address"),
        ({"bootstrap": "b:945693"}, "transport.bootstrap: not an address"),
        ({"bootstrap": "b:0"}, "transport.bootstrap: not an address"),
        ({"bootstrap": "b:²"}, "transport.bootstrap: not an address"),
        ({"bootstrap": "::1:9092"}, "transport.bootstrap: not an address"),
        ({"bootstrap": "*:9092"}, "transport.bootstrap: not an address"),
        ({"bootstrap": "a..b:9092"}, "transport.bootstrap: not an address"),
        ({"username": ""}, "transport.username: empty; expected text, got nothing"),
        ({"password": ""}, "transport.password: empty; expected text, got nothing"),
        ({"bootsrap": "x:1"}, "transport.bootsrap: unknown"),
        ({"security_protocol": "TLS"}, "transport.security_protocol: unknown"),
        ({"sasl_mechanism": "GSSAPI"}, "transport.sasl_mechanism: unknown"),
        ({"security_protocol": "SSL"}, "does not use sasl_mechanism, username, password;"),
        (
            {"security_protocol": "SASL_PLAINTEXT", "ca_file": __file__, "key_file": __file__},
            "does not use ca_file, key_file; expected SASL_SSL, or without",
        ),
        ({"token_file": __file__}, "transport.token_file: is not used by SCRAM-SHA-512"),
        (
            {"sasl_mechanism": "OAUTHBEARER", "token_file": __file__},
            "transport.username: is not used by OAUTHBEARER",
        ),
        ({"password_file": __file__}, "password, password_file: exclude each other"),
        (
            {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN"},
            "would send the secret in the clear",
        ),
        ({"username": None}, "wrong type"),
        ({"ca_file": "/nowhere"}, "transport.ca_file: no such file"),
        ({"certificate_file": __file__}, "both or neither"),
        ({"key_password_file": __file__}, "key_password_file: needs key_file"),
        (
            dict.fromkeys(("certificate_file", "key_file"), __file__)
            | {"key_password_file": "/nowhere"},
            "transport.key_password_file: no such file",
        ),
        ({"session_timeout_ms": "soon"}, "wrong type"),
        ({"session_timeout_ms": -5}, "session_timeout_ms: not a time; expected 1 to"),
        ({"session_timeout_ms": 2**31}, "session_timeout_ms: not a time; expected 1 to"),
    ],
)
def test_what_cannot_work_is_refused_without_naming_the_secret(
    change: dict[str, object], message: str
) -> None:
    with pytest.raises(InvalidConfig) as refused:
        KafkaSettings.parse({**SASL, **change})
    assert message in str(refused.value)
    assert "xyzzy" not in str(refused.value)


def test_a_password_file_that_is_not_there_is_refused() -> None:
    by_file = {name: value for name, value in SASL.items() if name != "password"}
    with pytest.raises(InvalidConfig, match=r"transport\.password_file: no such file") as refused:
        KafkaSettings.parse({**by_file, "password_file": "xyzzy"})  # the secret in its place
    assert "xyzzy" not in str(refused.value)


def test_files_that_no_connection_could_use_are_refused_before_there_is_one(
    tmp_path: Path,
) -> None:
    """By the entry point, which every command opens; a file that is right is accepted."""
    write_certificates(tmp_path)
    pem, own, bad = tmp_path / "ca.pem", tmp_path / "client.pem", tmp_path / "bad"
    locked = tmp_path / "locked.pem"
    key = load_pem_private_key(own.read_bytes(), None)
    locked.write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"xyzzy"))
        + own.read_bytes().partition(b"-----END PRIVATE KEY-----\n")[2]
    )
    by_file = {name: value for name, value in SASL.items() if name != "password"}
    by_token = {**by_file, "sasl_mechanism": "OAUTHBEARER", "token_file": bad}
    del by_token["username"]
    own_key = {"certificate_file": locked, "key_file": locked}
    tls = {"bootstrap": "broker:9093", "security_protocol": "SSL"}
    unusable = "certificate_file, key_file: cannot be used; expected PEM files that belong together"
    for content, table, message in (
        (b"nothing", {**tls, "ca_file": bad}, unusable),
        (b"nothing", {**tls, "certificate_file": bad, "key_file": bad}, unusable),
        (b"", {**tls, "certificate_file": own, "key_file": pem}, unusable),
        (b"", {**tls, **own_key}, unusable),  # and nobody is asked for the password
        (b"wrong", {**tls, **own_key, "key_password_file": bad}, unusable),
        (b"x" * 2000, {**tls, **own_key, "key_password_file": bad}, unusable),
        (b"\n", {**tls, **own_key, "key_password_file": bad}, "transport.key_password_file: empty"),
        (b"\xff\xfe\x80", {**by_file, "password_file": bad}, "transport.password_file: unreadable"),
        (
            b"\r\n",
            {**by_file, "password_file": bad},
            "transport.password_file: empty; expected text",
        ),
        (b"\xff\xfe\x80", by_token, "transport.token_file: unreadable; expected text in"),
        (b"", by_token, "transport.token_file: empty; expected text in"),
    ):
        bad.write_bytes(content)
        with pytest.raises(InvalidConfig) as refused:
            KafkaTechnology.from_settings(table, app="shop")
        assert message in str(refused.value)
    bad.write_text("xyzzy\n")
    right: dict[str, object] = {**tls, "ca_file": pem, **own_key, "key_password_file": bad}
    for table in (right, by_token, {**by_file, "password_file": bad}):
        KafkaTechnology.from_settings(table, app="shop")


def test_a_mechanism_without_what_it_needs_is_refused() -> None:
    plain = {"bootstrap": "broker:9093", "security_protocol": "SASL_SSL"}
    with pytest.raises(InvalidConfig, match=r"transport\.token_file: missing"):
        KafkaSettings.parse({**plain, "sasl_mechanism": "OAUTHBEARER"})
    with pytest.raises(InvalidConfig, match="username, password_file: missing"):
        KafkaSettings.parse({**plain, "sasl_mechanism": "PLAIN", "username": "alice"})


def test_secrets_are_in_no_repr() -> None:
    assert "xyzzy" not in repr(KafkaSettings.parse(SASL))


def test_a_file_that_is_no_certificate_is_named(tmp_path: Path) -> None:
    bad = tmp_path / "ca.pem"
    bad.write_text("nothing")
    with pytest.raises(InvalidConfig, match=r"transport\.ca_file"):
        KafkaSettings.parse({**SASL, "ca_file": str(bad)}).client()


async def test_a_token_is_read_anew_each_time(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("first\n")
    provider = TokenFile(path)
    assert await provider.token() == "first"
    path.write_text("second\n")
    assert await provider.token() == "second"
    path.write_text("\n")
    with pytest.raises(OSError, match=r"transport\.token_file: empty"):
        await provider.token()
